"""GPT-NeoX and Pythia: both sub-layers read the same stream, and heads are rotated in part."""

from ...models.config import ModelConfig
from ..json_fields import flag
from ..schemas import ACTIVATION, CORE, EPS, HEAD_DIM, POSITIONS, ROPE, ROTARY, SIZES
from .base import Family, layer_names, with_biases

_LAYER = {
    "mixer_norm": "input_layernorm",
    "mixer.qkv": "attention.query_key_value",
    "mixer.out": "attention.dense",
    "mlp_norm": "post_attention_layernorm",
    "mlp.up": "mlp.dense_h_to_4h",
    "mlp.down": "mlp.dense_4h_to_h",
}


def _read(options: dict, where: str) -> dict:
    bias = options["attention_bias"]
    return dict(
        norm="layer",
        parallel=options["use_parallel_residual"],
        gated=False,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=True,
    )


def _write(config: ModelConfig) -> dict:
    return {"use_parallel_residual": config.parallel, "attention_bias": config.qkv_bias}


GPT_NEOX = Family(
    "gpt_neox",
    "GPTNeoXForCausalLM",
    "Pythia 14M to 12B, GPT-NeoX-20B",
    CORE
    | {name: SIZES[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")}
    | {
        "head_dim": HEAD_DIM,
        "max_position_embeddings": POSITIONS.otherwise(2048),
        "hidden_act": ACTIVATION.otherwise("gelu"),
        "layer_norm_eps": EPS.otherwise(1e-5),
        "rotary_pct": ROPE["partial_rotary_factor"],
        "rotary_emb_base": ROTARY["rope_theta"],
        "rope_scaling": ROTARY["rope_scaling"],
        "rope_parameters": ROTARY["rope_parameters"],
        "use_parallel_residual": flag(True),
        "attention_bias": flag(True),
    },
    {"embed": ["gpt_neox.embed_in.weight"], "head": ["embed_out.weight"]}
    | with_biases({"norm": "gpt_neox.final_layer_norm"})
    | layer_names("gpt_neox.layers.N", with_biases(_LAYER)),
    read=_read,
    write=_write,
    renamed={
        "rms_norm_eps": "layer_norm_eps",
        "rope_theta": "rotary_emb_base",
        "partial_rotary_factor": "rotary_pct",
    },
    rotated=0.25,
    harmless=frozenset({"hidden_dropout", "classifier_dropout"}),
    aliases={"embed_out.weight": "lm_head.weight"},
)
