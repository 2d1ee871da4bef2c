"""Records logits of Hugging Face models in tests/models/golden, the oracle of the golden tests.

    python scripts/golden/make_golden.py [name ...]

The folder ``models`` has the config.json of each model. The script takes a few seconds and needs
torch and transformers. The same versions write the same bytes.

Each file holds one tiny random model: its tensors under their Hugging Face names, and the text of
config.json as the metadata ``config``. The file also holds ``tokens`` int32 [B, S], ``logits``
float32 [B, S, V] and ``prompt`` int32 []. The model read the first ``prompt`` tokens in one call,
and the others one at a time with the key/value cache. The file of an encoder-decoder, in the folder
``encoder_decoders``, also holds ``source`` int32 [B, S], of which the encoder read the first ``lengths``.
"""

import json
import re
import sys
import tempfile
from pathlib import Path

import torch
from models.dense import DENSE, OLD, SAVED
from models.encoder_decoders import ENCODER_DECODERS
from models.hybrids import HYBRIDS
from models.mixtures import MIXTURES
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from transformers.utils import logging

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "models" / "golden"
BATCH, LENGTH = 2, 20
SPECIAL = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)

# The number of tokens in the first call, where it is not all of them.
PROMPTS = {"rope_dynamic_cached": 11, "phi3_longrope_cached": 11, "qwen3_next": 12}

ZERO_CENTRED = ("gemma2", "gemma3_text", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
"""Families whose norms add one to their weights, but for the norms of the delta rule."""


def main():
    logging.disable_progress_bar()
    GOLDEN.mkdir(parents=True, exist_ok=True)
    asked = sys.argv[1:]
    for name, raw in ENCODER_DECODERS.items():
        if asked and name not in asked:
            continue
        record_encoder_decoder(name, SPECIAL | dict(decoder_start_token_id=0, pad_token_id=3) | raw)
    families = {name: SPECIAL | raw for name, raw in (DENSE | MIXTURES | HYBRIDS).items()}
    for name, raw in (SAVED | OLD | families).items():
        if not asked or name in asked:
            record_decoder(name, raw)


def record_encoder_decoder(name: str, raw: dict) -> None:
    torch.manual_seed(0)
    model = build(raw, AutoModelForSeq2SeqLM)
    source, tokens = torch.randint(raw["vocab_size"], (2, BATCH, LENGTH)).unbind()
    lengths = torch.tensor([LENGTH, LENGTH - 7])
    with torch.no_grad():
        mask = torch.arange(LENGTH) < lengths[:, None]
        logits = model(input_ids=source, attention_mask=mask, decoder_input_ids=tokens).logits
    weights, text = save(model)
    recorded = {"source": source.int(), "lengths": lengths.int(), "tokens": tokens.int(), "logits": logits.float()}
    write(GOLDEN / "encoder_decoders" / f"{name}.safetensors", weights | recorded, text, logits)


def record_decoder(name: str, raw: dict) -> None:
    torch.manual_seed(0)
    model = build(raw)
    packed = pack(model) if name.endswith("mxfp4") else {}
    tokens = torch.randint(raw["vocab_size"], (BATCH, LENGTH))
    prompt = PROMPTS.get(name, LENGTH)
    logits = score(model, tokens, prompt)
    weights, text = save(model)
    if packed:
        weights = {key: value for key, value in weights.items() if f"{key}_blocks" not in packed} | packed
        text = json.dumps(json.loads(text) | dict(quantization_config=dict(quant_method="mxfp4")))
    recorded = {"tokens": tokens.int(), "logits": logits.float(), "prompt": torch.tensor(prompt, dtype=torch.int32)}
    config = json.dumps(raw) if name in OLD else text
    write(GOLDEN / f"{name}.safetensors", weights | recorded, config, logits)


def write(path: Path, tensors: dict, config: str, logits: torch.Tensor) -> None:
    """Writes one file. Its metadata has one entry only, because safetensors writes several in any order."""
    path.parent.mkdir(exist_ok=True)
    save_file(tensors, path, {"config": config})
    print(f"{path.stem:28} logits std {logits.std():.2f}, {path.stat().st_size} bytes")


def build(raw: dict, kind=AutoModelForCausalLM) -> PreTrainedModel:
    """A random model of the architecture that transformers reads from the config.json ``raw``."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(raw))
        config = AutoConfig.from_pretrained(directory)
    model = kind.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    if raw["model_type"] == "t5" and not config.scale_decoder_outputs:  # transformers ties all T5 models at first
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    for name, param in model.named_parameters():
        # transformers starts all norms at one and all biases at zero. Equal values would hide a
        # mix-up of two norms or two biases.
        is_norm = re.search(r"norm|ln_", name) and not name.endswith("bias")
        zero_centred = raw["model_type"] in ZERO_CENTRED and "linear_attn" not in name
        mean, std = (1 if is_norm and not zero_centred else 0), 0.2
        if not is_norm and not name.endswith("bias"):
            std = 1.5 * param.shape[-1] ** -0.5
        torch.nn.init.normal_(param, mean, std)
    for name, buffer in model.named_buffers():
        if name.endswith(("layer_scalar", "e_score_correction_bias", "final_logits_bias")):
            torch.nn.init.normal_(buffer, 1, 0.2)
    return model


@torch.no_grad()
def pack(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Random MXFP4 experts, which the model gets as transformers unpacks them, by their names in a checkpoint."""
    packed = {}
    for name, param in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            X, inputs, outputs = param.shape
            blocks = torch.randint(256, (X, outputs, inputs // 32, 16), dtype=torch.uint8)
            scales = torch.randint(122, 126, (X, outputs, inputs // 32), dtype=torch.uint8)
            param.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
            packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    return packed


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
