"""Phi-3 and Phi-4: Llama's layers, fused projections, stretched or partial positions."""

from ...models.config import ModelConfig
from ..json_fields import Field, integer
from ..schemas import EPS, HEAD_DIM, NEVER, POSITIONS, ROPE, ROTARY_DECODER, WINDOW
from .base import LLAMA_LAYER, Family, first_window, model_names

_NAMES = model_names(
    LLAMA_LAYER | {"mixer.qkv": ["self_attn.qkv_proj.weight"] * 3, "mlp.gate_up": ["mlp.gate_up_proj.weight"] * 2}
)
_ONE = integer(1, 1).optional()


def _longrope(table: dict | None) -> dict | None:
    """The options of rotary positions, with today's name of the scaling."""
    if not table:
        return table
    return table | {name: "longrope" for name in ("rope_type", "type") if table.get(name) in ("su", "yarn")}


_TABLE = Field("an object", lambda value: isinstance(value, dict), None, null=True, convert=_longrope)


def _read(options: dict, where: str) -> dict:
    return dict(windows=(options["sliding_window"],) * options["num_hidden_layers"])


def _write(config: ModelConfig) -> dict:
    trained = config.rope.original_max_position_embeddings or config.max_position_embeddings
    own = {"sliding_window": first_window(config), "original_max_position_embeddings": trained}
    return own | {"pad_token_id": None}  # the default of transformers need not lie in the vocabulary


PHI3 = Family(
    "phi3",
    "Phi3ForCausalLM",
    "Phi-3 and Phi-3.5 mini and medium, Phi-4, Phi-4-mini",
    ROTARY_DECODER
    | {
        "rope_scaling": _TABLE,
        "rope_parameters": _TABLE,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": POSITIONS.otherwise(4096),
        "original_max_position_embeddings": POSITIONS.otherwise(4096),
        "partial_rotary_factor": ROPE["partial_rotary_factor"],
        "rms_norm_eps": EPS.otherwise(1e-5),
        "sliding_window": WINDOW.optional(),
        "attention_bias": NEVER,
        "mlp_bias": NEVER,
        "lm_head_bias": NEVER,
        "interpolate_factor": _ONE,
        "full_attn_mod": _ONE,
    },
    _NAMES,
    refused="rope scaling other than longrope; Phi-3-small and mixtures of experts, which have other architectures",
    read=_read,
    write=_write,
    rotated=1.0,
    harmless=frozenset({"embd_pdrop", "resid_pdrop", "attn_pdrop"}),
)
