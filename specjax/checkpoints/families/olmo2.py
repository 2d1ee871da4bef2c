"""OLMo 2 and 3, and EXAONE 4: norms after the sub-layers, and norms of queries and of keys.

OLMo norms all heads together. OLMo 3 stretches the positions of layers without a window only. In
EXAONE 4 with windows, the layers without a window have no rotary positions.
"""

from ...models.config import ModelConfig
from ...models.rope import Rope
from ..json_fields import flag, integer, text
from ..rope_options import read_rope, read_table, write_rope
from ..schemas import DECODER, EPS, HEADS, LAYER_TYPES, POSITIONS, WINDOW
from .base import LLAMA_LAYER, Family, every, model_names, read_windows, write_windows

_LAYER = LLAMA_LAYER | {
    "mixer_out_norm": ["post_attention_layernorm.weight"],
    "mlp_out_norm": ["post_feedforward_layernorm.weight"],
}
_NAMES = model_names(_LAYER)
_OPTIONS = DECODER | {
    "max_position_embeddings": POSITIONS.otherwise(2048),
    "rms_norm_eps": EPS.otherwise(1e-5),
}
_WINDOWS = {"sliding_window": WINDOW.optional(4096), "layer_types": LAYER_TYPES}
_THETA = 500000.0
"""The base of the frequencies of OLMo 3, where the file gives none."""


def _read(options: dict, where: str) -> dict:
    bias = options["attention_bias"]
    return dict(normed="after", qk_norm=True, whole_qk_norm=True, qkv_bias=bias, out_bias=bias)


def _write(config: ModelConfig) -> dict:
    return {"attention_bias": config.qkv_bias}


def _size(options: dict) -> int:
    return options["head_dim"] or options["hidden_size"] // options["num_attention_heads"]


def _read_olmo3(options: dict, where: str) -> dict:
    """Transformers gives ``rope_theta`` and ``rope_scaling`` to the layers without a window."""
    kinds = options["rope_parameters"] or {}
    whole = {"rope_theta": options["rope_theta"] or _THETA} | (kinds.get("full_attention") or {})
    tables = {
        "full_attention": whole | (options["rope_scaling"] or {}),
        "sliding_attention": {"rope_theta": _THETA} | (kinds.get("sliding_attention") or {}),
    }
    rope, local = (
        read_table(table, _size(options), options, where, f"rope_parameters.{name}") for name, table in tables.items()
    )
    windows = read_windows(options, where, every(options["num_hidden_layers"], options["sliding_window"], 4))
    return _read(options, where) | dict(rope=rope, local_rope=local, windows=windows)


def _write_olmo3(config: ModelConfig) -> dict:
    local = config.local_rope or config.rope
    return _write(config) | {
        "rope_parameters": {"full_attention": write_rope(config.rope), "sliding_attention": write_rope(local)},
        **write_windows(config),
    }


def _read_exaone4(options: dict, where: str) -> dict:
    layers, window, pattern = (options[x] for x in ("num_hidden_layers", "sliding_window", "sliding_window_pattern"))
    default = every(layers, window, 4 if isinstance(pattern, str) else pattern or 1)
    rope = read_rope(options, _size(options), where, 10000.0, None)
    windows = read_windows(options, where, default)
    whole = rope if window is None else Rope(rotated=0.0)
    return dict(normed="after", qk_norm=True, rope=whole, local_rope=rope, windows=windows)


def _write_exaone4(config: ModelConfig) -> dict:
    written = {"rope_parameters": write_rope(config.local_rope or config.rope)} | write_windows(config)
    return written | ({"sliding_window": None} if config.rope.rotated else {})


OLMO2 = Family(
    "olmo2",
    "Olmo2ForCausalLM",
    "OLMo 2 1B, 7B, 13B, 32B",
    _OPTIONS | {"attention_bias": flag()},
    _NAMES,
    read=_read,
    write=_write,
)

OLMO3 = Family(
    "olmo3",
    "Olmo3ForCausalLM",
    "OLMo 3 7B and 32B",
    _OPTIONS | _WINDOWS | {"attention_bias": flag()},
    _NAMES,
    read=_read_olmo3,
    write=_write_olmo3,
    theta=None,
)

EXAONE4 = Family(
    "exaone4",
    "Exaone4ForCausalLM",
    "EXAONE 4.0 1.2B and 32B",
    _OPTIONS
    | _WINDOWS
    | {
        "num_key_value_heads": HEADS.otherwise(32),
        "sliding_window_pattern": (integer(0, 1024) | text()).optional(4),
    },
    _NAMES,
    read=_read_exaone4,
    write=_write_exaone4,
    theta=None,
)
