"""OLMo 2: norms after the sub-layers, and norms of all queries and of all keys."""

from ...models.config import ModelConfig
from ..json_fields import flag
from ..schemas import CORE, EPS, HEAD_DIM, POSITIONS, ROTARY, SIZES
from .base import LLAMA_LAYER, Family, model_names

_NAMES = model_names(
    LLAMA_LAYER
    | {
        "mixer_out_norm": ["post_attention_layernorm.weight"],
        "mlp_out_norm": ["post_feedforward_layernorm.weight"],
    }
)


def _read(options: dict, where: str) -> dict:
    bias = options["attention_bias"]
    return dict(normed="after", qk_norm=True, whole_qk_norm=True, qkv_bias=bias, out_bias=bias)


def _write(config: ModelConfig) -> dict:
    return {"attention_bias": config.qkv_bias}


OLMO2 = Family(
    "olmo2",
    "Olmo2ForCausalLM",
    "OLMo 2 1B, 7B, 13B, 32B",
    CORE
    | SIZES
    | ROTARY
    | {
        "head_dim": HEAD_DIM,
        "max_position_embeddings": POSITIONS.otherwise(2048),
        "rms_norm_eps": EPS.otherwise(1e-5),
        "attention_bias": flag(),
    },
    _NAMES,
    read=_read,
    write=_write,
)
