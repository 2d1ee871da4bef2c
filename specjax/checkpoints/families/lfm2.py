"""LFM2: gated short convolutions, with attention in some layers."""

from ...models.config import ModelConfig
from ...models.mixers import ShortConvConfig
from ..json_fields import choice, flag, integer, list_of, number
from ..schemas import EPS, HEAD_DIM, HEADS, POSITIONS, ROTARY_DECODER, SIZE, without
from .base import LLAMA_LAYER, Family, layer_names, read_layer_types

_LAYER = LLAMA_LAYER | {
    "mixer_norm": ["operator_norm.weight"],
    "mixer.q_norm": ["self_attn.q_layernorm.weight"],
    "mixer.k_norm": ["self_attn.k_layernorm.weight"],
    "mixer.out": ["self_attn.out_proj.weight"],
    "mixer.gates": ["conv.in_proj.weight"] * 3,
    "mixer.gates_bias": ["conv.in_proj.bias"] * 3,
    "mixer.conv": ["conv.conv.weight"],
    "mixer.conv_bias": ["conv.conv.bias"],
    "mixer.out_proj": ["conv.out_proj.weight"],
    "mixer.out_proj_bias": ["conv.out_proj.bias"],
    "mlp_norm": ["ffn_norm.weight"],
    "mlp.gate_up": ["feed_forward.w1.weight", "feed_forward.w3.weight"],
    "mlp.down": ["feed_forward.w2.weight"],
}


def _read(options: dict, where: str) -> dict:
    layers, attends = range(options["num_hidden_layers"]), options["full_attn_idxs"]
    default = ["full_attention" if attends is None or i in attends else "conv" for i in layers]
    kinds = read_layer_types(options, where, default, needed="full_attention")
    conv = ShortConvConfig(options["hidden_size"], options["conv_L_cache"], options["conv_bias"])
    tied = options["tie_embedding"]
    return dict(
        intermediate_size=_width(options),
        tie_embeddings=options["tie_word_embeddings"] if tied is None else tied,
        qk_norm=True,
        mixers=tuple(conv if kind == "conv" else None for kind in kinds) if "conv" in kinds else (),
    )


def _width(options: dict) -> int:
    """The width of the MLPs, which transformers may shrink and round up."""
    width, step = options["block_ff_dim"] or options["intermediate_size"], options["block_multiple_of"]
    if not options["block_auto_adjust_ff_dim"]:
        return width
    width = int(2 * width / 3)
    if options["block_ffn_dim_multiplier"] is None:
        return width
    return -(-int(options["block_ffn_dim_multiplier"] * width) // step) * step


def _write(config: ModelConfig) -> dict:
    conv = next((mixer for mixer in config.mixers if isinstance(mixer, ShortConvConfig)), None)
    kinds = ["conv" if mixer else "full_attention" for mixer in config.mixers or (None,) * config.num_layers]
    own = {} if conv is None else {"conv_L_cache": conv.kernel, "conv_bias": conv.bias}
    return own | {"layer_types": kinds, "block_auto_adjust_ff_dim": False}


LFM2 = Family(
    "lfm2",
    "Lfm2ForCausalLM",
    "LFM2 and LFM2.5 350M to 2.6B",
    without(ROTARY_DECODER, "hidden_act", "rms_norm_eps")
    | {
        "tie_word_embeddings": flag(True),
        "tie_embedding": flag(None),
        "num_key_value_heads": HEADS.otherwise(8),
        "head_dim": HEAD_DIM,
        "max_position_embeddings": POSITIONS.otherwise(128000),
        "norm_eps": EPS.otherwise(1e-5),
        "intermediate_size": SIZE.otherwise(12288),
        "block_ff_dim": SIZE.optional(),
        "block_auto_adjust_ff_dim": flag(True),
        "block_ffn_dim_multiplier": number(0, 1e3).optional(1.0),
        "block_multiple_of": integer(1, 2**16).otherwise(256),
        "conv_L_cache": integer(2, 64).otherwise(3),
        "conv_bias": flag(),
        "full_attn_idxs": list_of(integer(0, 1023)).optional(),
        "layer_types": list_of(choice("conv", "full_attention")).optional(),
    },
    {
        "embed": ["model.embed_tokens.weight"],
        "norm": ["model.embedding_norm.weight"],
        "head": ["lm_head.weight"],
    }
    | layer_names("model.layers.N", _LAYER),
    read=_read,
    write=_write,
    renamed={"rms_norm_eps": "norm_eps"},
    theta=1e6,
    harmless=frozenset({
        "block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale", "block_use_swiglu",
        "block_use_xavier_init", "conv_dim", "conv_dim_out", "conv_use_xavier_init", "num_heads", "use_pos_enc",
    }),
)  # fmt: skip
