"""Records logits of models with merged PEFT adapters in tests/checkpoints/golden, the oracle of the adapters' tests.

    python scripts/golden/make_golden_adapters.py

It takes a few seconds and needs torch, transformers and peft. The same versions write the same bytes.

Each file holds one random adapter of the model in tests/models/golden/llama_gqa.safetensors: its
tensors under the names that PEFT saves, and the text of adapter_config.json as the metadata
``config``. The file also holds ``logits`` float32 [B, S, V] of the adapted model for that model's
``tokens``.
"""

import json
import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

TESTS = Path(__file__).resolve().parents[2] / "tests"
BASE = TESTS / "models" / "golden" / "llama_gqa.safetensors"
GOLDEN = TESTS / "checkpoints" / "golden"

ADAPTERS = {
    "lora": LoraConfig(r=4, lora_alpha=6, target_modules=["q_proj", "v_proj"]),
    "all_linear": LoraConfig(r=2, lora_alpha=3, target_modules="all-linear", task_type="CAUSAL_LM"),
    "rslora_patterns": LoraConfig(
        r=4,
        lora_alpha=5,
        use_rslora=True,
        target_modules=["q_proj", "k_proj", "gate_proj", "down_proj"],
        rank_pattern={"down_proj": 2, "layers.0.self_attn.q_proj": 3},
        alpha_pattern={r"layers.\d+.mlp.gate_proj": 2},
    ),
    "embeddings": LoraConfig(r=3, lora_alpha=3, target_modules=["embed_tokens", "o_proj"]),
    "saved_modules": LoraConfig(
        r=2, lora_alpha=2, target_modules=["up_proj"], modules_to_save=["embed_tokens", "lm_head", "norm"]
    ),
    "tokens": LoraConfig(r=2, target_modules=["up_proj"], trainable_token_indices=[3, 7]),
    "tokens_tied": LoraConfig(r=2, target_modules=["up_proj"], trainable_token_indices={"embed_tokens": [3, 7]}),
    "resized": LoraConfig(r=2, target_modules=["up_proj"]),
    "resized_tied": LoraConfig(r=2, target_modules=["up_proj"]),
    "saved_head_tied": LoraConfig(r=2, target_modules=["up_proj"], modules_to_save=["lm_head"]),
    "saved_embedding_tied": LoraConfig(r=2, target_modules=["up_proj"], modules_to_save=["embed_tokens"]),
    "embeddings_tied": LoraConfig(r=2, target_modules=["up_proj", "embed_tokens"]),
}
"""By name. The base is tied, and has three more tokens, where the name says so."""


@torch.no_grad()
def main():
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, settings in ADAPTERS.items():
        torch.manual_seed(0)
        base = build_base(tied="tied" in name)
        if "resized" in name:
            base.resize_token_embeddings(base.config.vocab_size + 3)
        model = get_peft_model(base, settings)
        for path, param in model.named_parameters():
            if "lora_" in path:
                param.normal_(0, param.shape[0] ** -0.5)
            elif "modules_to_save" in path or "trainable_tokens_delta" in path:
                param.add_(0.3 * torch.randn_like(param))
        logits = model(load_file(BASE)["tokens"].long()).logits
        with tempfile.TemporaryDirectory() as directory:
            model.save_pretrained(directory, save_embedding_layers=True if "resized" in name else "auto")
            tensors = load_file(Path(directory, "adapter_model.safetensors"))
            config = json.loads(Path(directory, "adapter_config.json").read_text())
        config = {key: sorted(value) if isinstance(value, list) else value for key, value in config.items()}
        config["base_model_name_or_path"] = None
        save_file(tensors | {"logits": logits}, GOLDEN / f"{name}.safetensors", {"config": json.dumps(config)})
        print(f"{name:16} {len(tensors)} tensors, {(GOLDEN / f'{name}.safetensors').stat().st_size} bytes")


def build_base(tied: bool = False):
    """The model that the golden tests of models record without an adapter.

    ``tied``: whether its output matrix becomes its embedding.
    """
    with safe_open(BASE, framework="pt") as file:
        raw = json.loads(file.metadata()["config"])
        weights = {name: file.get_tensor(name) for name in file.keys() if name not in ("tokens", "logits", "prompt")}
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(raw))
        config = AutoConfig.from_pretrained(directory)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    model.load_state_dict(weights)
    if tied:
        model.config.tie_word_embeddings = True
        model.tie_weights()
    return model


if __name__ == "__main__":
    main()
