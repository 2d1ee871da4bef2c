"""Command R and Aya: attention and feed-forward run in parallel on one layer norm without a bias.

Rotary positions are interleaved: a pair is two neighbouring dimensions. In Command R7B and A, three
of four layers have windows, and only these have rotary positions.
"""

from ...models.config import ModelConfig
from ...models.rope import Rope
from ..blocks import Tensor, interleave
from ..json_fields import flag, integer
from ..rope_options import read_rope, write_rope
from ..schemas import BOUND, EPS, HEAD_DIM, LAYER_TYPES, NEVER, POSITIONS, ROTARY_DECODER, WINDOW, without
from .base import LLAMA_LAYER, Family, every, model_names, read_windows, write_windows

_LAYER = LLAMA_LAYER | {
    "norm": ["input_layernorm.weight"],
    "mixer.qkv": [Tensor(f"self_attn.{x}_proj.weight", interleave) for x in "qkv"],
    "mixer.qkv_bias": [Tensor(f"self_attn.{x}_proj.bias", interleave) for x in "qkv"],
}
_NAMES = model_names(_LAYER)
_OPTIONS = without(ROTARY_DECODER, "rms_norm_eps") | {
    "tie_word_embeddings": flag(True),
    "head_dim": HEAD_DIM,
    "max_position_embeddings": POSITIONS.otherwise(8192),
    "layer_norm_eps": EPS.otherwise(1e-5),
    "attention_bias": flag(),
    "logit_scale": BOUND.otherwise(0.0625),
}


NO_POSITIONS = Rope(rotated=0.0)
"""Layers without a window have no rotary positions."""


def _read(options: dict, where: str) -> dict:
    bias = options["attention_bias"]
    layer_form = dict(norm="centred", normed="shared", parallel=True)
    return layer_form | dict(qkv_bias=bias, out_bias=bias, logit_scale=options["logit_scale"])


def _read_cohere2(options: dict, where: str) -> dict:
    layers, window = options["num_hidden_layers"], options["sliding_window"]
    windows = read_windows(options, where, every(layers, window, options["sliding_window_pattern"]))
    head_dim = options["head_dim"] or options["hidden_size"] // options["num_attention_heads"]
    local = read_rope(options, head_dim, where, 10000.0, None)
    return _read(options, where) | dict(windows=windows, rope=NO_POSITIONS, local_rope=local)


def _write(config: ModelConfig) -> dict:
    return {"attention_bias": config.qkv_bias, "logit_scale": config.logit_scale}


def _write_cohere2(config: ModelConfig) -> dict:
    return _write(config) | {
        "rope_parameters": write_rope(config.local_rope or config.rope),
        **write_windows(config),
    }


COHERE = Family(
    "cohere",
    "CohereForCausalLM",
    "Command R, Aya 23 and Aya Expanse",
    _OPTIONS | {"use_qk_norm": NEVER},
    _NAMES,
    refused="use_qk_norm, as in Command R+",
    read=_read,
    write=_write,
    renamed={"rms_norm_eps": "layer_norm_eps"},
    theta=500000.0,
)

COHERE2 = Family(
    "cohere2",
    "Cohere2ForCausalLM",
    "Command R7B, Command A, Tiny Aya",
    _OPTIONS
    | {
        "sliding_window": WINDOW.otherwise(4096),
        "sliding_window_pattern": integer(1, 1024).otherwise(4),
        "layer_types": LAYER_TYPES,
    },
    _NAMES,
    read=_read_cohere2,
    write=_write_cohere2,
    renamed={"rms_norm_eps": "layer_norm_eps"},
    theta=None,
    harmless=frozenset({
        "cache_implementation", "layer_switch", "order_of_interleaved_layers", "position_embedding_type", "rotary_pct",
        "use_embedding_sharing", "use_gated_activation", "use_parallel_block", "use_parallel_embedding",
    }),
)  # fmt: skip
