"""Records logits of Hugging Face models in tests/models/golden, the oracle of the golden tests.

    python scripts/make_golden.py

It takes a few seconds and needs torch and transformers. The same versions write the same bytes.

Each file holds one tiny random model: its tensors under their Hugging Face names, and the text of
config.json as the metadata ``config``. The file also holds ``tokens`` int32 [B, S], ``logits``
float32 [B, S, V] and ``prompt`` int32 []. The model read the first ``prompt`` tokens in one call,
and the others one at a time with the key/value cache.
"""

import json
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "models" / "golden"
BATCH, LENGTH = 2, 20
SHAPE = dict(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=12,
    num_hidden_layers=2,
    max_position_embeddings=64,
    rms_norm_eps=1e-3,
)
HEADS = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8)
LLAMA, MISTRAL, QWEN2, QWEN3 = (dict(model_type=family, **SHAPE) for family in ("llama", "mistral", "qwen2", "qwen3"))

# Small thetas spread the four wavelengths of eight dimensions over 6 to 200 positions. So scaling
# by wavelength meets short, long and blended ones.
LLAMA3 = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
)
YARN = dict(rope_theta=10.0, rope_type="yarn", factor=4.0, original_max_position_embeddings=16)
DYNAMIC = dict(rope_theta=100.0, rope_type="dynamic", factor=4.0)

# Models recorded with the config.json that transformers saves.
SAVED = {
    "llama_gqa": LLAMA | HEADS,
    "llama_tied": LLAMA | HEADS | dict(tie_word_embeddings=True),
    "llama_biases": LLAMA | HEADS | dict(attention_bias=True, mlp_bias=True),
    "rope_dynamic_short": LLAMA | HEADS | dict(max_position_embeddings=24, rope_parameters=DYNAMIC),
    "rope_dynamic_cached": LLAMA | HEADS | dict(max_position_embeddings=16, rope_parameters=DYNAMIC),
    "rope_yarn_mscale": LLAMA
    | HEADS
    | dict(rope_parameters=YARN | dict(mscale=1.5, mscale_all_dim=0.5, beta_fast=4.0, beta_slow=0.5)),
    "rope_yarn_attention_factor": LLAMA
    | HEADS
    | dict(rope_parameters=YARN | dict(attention_factor=1.3, beta_fast=2.0, truncate=False)),
    "mistral": MISTRAL | HEADS | dict(sliding_window=None),
    "mistral_sliding": MISTRAL
    | HEADS
    | dict(sliding_window=6, rope_parameters=dict(rope_theta=100.0, rope_type="default")),
    "qwen2": QWEN2 | dict(num_attention_heads=2, num_key_value_heads=2),
    "qwen3": QWEN3 | HEADS,
    "qwen3_sliding": QWEN3
    | HEADS
    | dict(
        attention_bias=True,
        use_sliding_window=True,
        sliding_window=6,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "qwen3_tied": QWEN3 | HEADS | dict(tie_word_embeddings=True),
}

# Models recorded with the config.json below: in the older style, without optional fields.
OLD = {
    "llama_mha": LLAMA | dict(num_attention_heads=2, rope_theta=500.0),
    "rope_linear": LLAMA | HEADS | dict(rope_scaling=dict(type="linear", factor=3.0)),
    "rope_dynamic_long": LLAMA
    | HEADS
    | dict(max_position_embeddings=16, rope_theta=100.0, rope_scaling=dict(type="dynamic", factor=2.0)),
    "rope_llama3": LLAMA | HEADS | dict(rope_theta=100.0, rope_scaling=LLAMA3),
    "rope_yarn": LLAMA
    | HEADS
    | dict(max_position_embeddings=16, rope_theta=10.0, rope_scaling=dict(type="yarn", factor=4.0)),
    "qwen2_sliding": QWEN2
    | HEADS
    | dict(use_sliding_window=True, sliding_window=6, max_window_layers=1, rope_theta=100.0),
}

# The number of tokens in the first call, where it is not all of them.
PROMPTS = {"rope_dynamic_cached": 11}


def main():
    logging.disable_progress_bar()
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, raw in (SAVED | OLD).items():
        torch.manual_seed(0)
        model = build(raw)
        tokens = torch.randint(raw["vocab_size"], (BATCH, LENGTH))
        prompt = PROMPTS.get(name, LENGTH)
        logits = score(model, tokens, prompt)
        weights, text = save(model)
        recorded = {"tokens": tokens.int(), "logits": logits.float(), "prompt": torch.tensor(prompt, dtype=torch.int32)}
        # The metadata has one entry only, because safetensors writes several in any order.
        metadata = {"config": json.dumps(raw) if name in OLD else text}
        save_file(weights | recorded, GOLDEN / f"{name}.safetensors", metadata)
        print(f"{name:28} logits std {logits.std():.2f}, {(GOLDEN / f'{name}.safetensors').stat().st_size} bytes")


def build(raw: dict) -> PreTrainedModel:
    """A random model of the architecture that transformers reads from the config.json ``raw``."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(raw))
        config = AutoConfig.from_pretrained(directory)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    for name, param in model.named_parameters():
        # transformers starts all norms at one and all biases at zero. Equal values would hide a
        # mix-up of two norms or two biases.
        mean, std = (1 if "norm" in name else 0), 0.2
        if "norm" not in name and not name.endswith("bias"):
            std = 1.5 * param.shape[-1] ** -0.5
        torch.nn.init.normal_(param, mean, std)
    return model


@torch.no_grad()
def score(model: PreTrainedModel, tokens: torch.Tensor, prompt: int) -> torch.Tensor:
    """Logits [B, S, V]: the first ``prompt`` tokens in one call, the others one by one."""
    out = model(tokens[:, :prompt], use_cache=True)
    logits = [out.logits]
    for i in range(prompt, tokens.shape[1]):
        out = model(tokens[:, i : i + 1], past_key_values=out.past_key_values, use_cache=True)
        logits.append(out.logits)
    return torch.cat(logits, 1)


def save(model: PreTrainedModel) -> tuple[dict, str]:
    """The tensors and the config.json that transformers writes for a model."""
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        return load_file(Path(directory, "model.safetensors")), Path(directory, "config.json").read_text()


if __name__ == "__main__":
    main()
