"""SmolLM3: Llama's layers, of which every fourth has no rotary positions (2501.18795)."""

from ...errors import ConfigError
from ...kernels.gpu.attention import Scores
from ...models.config import ModelConfig
from ...models.mixers import AttentionConfig
from ...models.rope import Rope
from ..json_fields import choice, flag, integer, list_of
from ..schemas import CORE, HEAD_DIM, HEADS, LAYER_TYPES, POSITIONS, ROTARY, SIZES, WINDOW
from .base import Family, model_names
from .windows import layer_types, read_windows


def _read(options: dict, where: str) -> dict:
    layers, heads = options["num_hidden_layers"], options["num_attention_heads"]
    rotated = options["no_rope_layers"]
    if rotated is None:
        rotated = [(i + 1) % options["no_rope_layer_interval"] for i in range(layers)]
    if len(rotated) < layers:
        raise ConfigError(
            f"{where}: no_rope_layers has {len(rotated)} entries; give one for each of the {layers} layers"
        )
    window = options["sliding_window"] if options["use_sliding_window"] else None
    windows = read_windows(options, where, tuple(None if rotated[i] else window for i in range(layers)))
    bias = options["attention_bias"]
    fixed = [
        AttentionConfig(
            heads, options["num_key_value_heads"] or heads, options["head_dim"] or options["hidden_size"] // heads,
            Rope(rotated=0.0), Scores(window), bias, bias,
        )
        for window in windows
    ]  # fmt: skip
    mixers = tuple(None if rotated[i] else fixed[i] for i in range(layers))
    return dict(
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=options["mlp_bias"],
        windows=windows,
        mixers=mixers if any(mixers) else (),
    )


def _write(config: ModelConfig) -> dict:
    window = next((window for window in config.windows if window), None)
    return {
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
        "no_rope_layers": [int(mixer is None) for mixer in config.mixers or [None] * config.num_layers],
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "layer_types": layer_types(config),
        "pad_token_id": None,  # the default of transformers need not lie in the vocabulary
    }


SMOLLM3 = Family(
    "smollm3",
    "SmolLM3ForCausalLM",
    "SmolLM3 3B",
    CORE
    | SIZES
    | ROTARY
    | {
        "tie_word_embeddings": flag(True),
        "num_key_value_heads": HEADS.optional(4),
        "head_dim": HEAD_DIM,
        "max_position_embeddings": POSITIONS.otherwise(32768),
        "use_sliding_window": flag(),
        "sliding_window": WINDOW.optional(),
        "layer_types": LAYER_TYPES,
        "no_rope_layers": list_of(choice(0, 1)).optional(),
        "no_rope_layer_interval": integer(1, 1024).otherwise(4),
        "attention_bias": flag(),
        "mlp_bias": flag(),
    },
    model_names(),
    read=_read,
    write=_write,
    theta=2e6,
    harmless=frozenset({"max_window_layers"}),
)
