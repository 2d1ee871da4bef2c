"""Falcon and BLOOM: layer norms, plain MLPs, and queries, keys and values in one matrix.

Falcon's sub-layers are parallel, and its key heads are few. BLOOM has no positions but linear
biases of the scores.
"""

from ...models.config import ModelConfig
from ...models.relative_positions import Alibi
from ...models.rope import Rope
from ..json_fields import choice, flag, integer
from ..schemas import ACTIVATION, CORE, EPS, HEADS, LONGEST, NEVER, POSITIONS, ROTARY, SIZE, SIZES
from .base import Family, layer_names, with_biases

_LAYER = {
    "mixer.qkv": "self_attention.query_key_value",
    "mixer.out": "self_attention.dense",
    "mlp.up": "mlp.dense_h_to_4h",
    "mlp.down": "mlp.dense_4h_to_h",
}
_OUTSIDE = with_biases({"norm": "transformer.ln_f"})
_OUTSIDE |= {"embed": ["transformer.word_embeddings.weight"], "head": ["lm_head.weight"]}


def _read(options: dict, where: str) -> dict:
    bias, heads, new = options["bias"], options["num_attention_heads"], options["new_decoder_architecture"]
    one_norm = not new or options["num_ln_in_parallel_attn"] == 1
    many = new or not options["multi_query"]
    return dict(
        intermediate_size=options["ffn_hidden_size"] or 4 * options["hidden_size"],
        num_kv_heads=(options["num_kv_heads"] or heads) if many else 1,
        norm="layer",
        normed="shared" if one_norm else "before",
        parallel=True,
        gated=False,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
    )


def _write(config: ModelConfig) -> dict:
    return {
        "new_decoder_architecture": True,
        "num_ln_in_parallel_attn": 1 if config.normed == "shared" else 2,
        "bias": config.mlp_bias,
    }


def _read_bloom(options: dict, where: str) -> dict:
    return dict(
        intermediate_size=4 * options["hidden_size"],
        max_position_embeddings=LONGEST,  # distances have no bound
        rope=Rope(rotated=0.0),
        relative=Alibi(options["num_attention_heads"]),
        embed_norm=True,
        norm="layer",
        activation="gelu_tanh",
        gated=False,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
    )


FALCON = Family(
    "falcon",
    "FalconForCausalLM",
    "Falcon 7B, 11B, 40B and 180B",
    CORE
    | ROTARY
    | {
        "tie_word_embeddings": flag(True),
        "hidden_size": SIZES["hidden_size"],
        "num_hidden_layers": SIZES["num_hidden_layers"],
        "num_attention_heads": HEADS,
        "num_kv_heads": HEADS.optional(),
        "ffn_hidden_size": SIZE.optional(),
        "max_position_embeddings": POSITIONS.otherwise(2048),
        "layer_norm_epsilon": EPS.otherwise(1e-5),
        "activation": ACTIVATION.otherwise("gelu"),
        "bias": flag(),
        "multi_query": flag(True),
        "new_decoder_architecture": flag(),
        "num_ln_in_parallel_attn": integer(1, 2).optional(),
        "parallel_attn": choice(True).otherwise(True),
        "alibi": NEVER,
    },
    _OUTSIDE
    | layer_names(
        "transformer.h.N",
        with_biases(_LAYER | {"norm": "input_layernorm", "mixer_norm": "ln_attn", "mlp_norm": "ln_mlp"}),
    ),
    refused="alibi, and parallel_attn = false, as in Falcon-RW",
    read=_read,
    write=_write,
    renamed={
        "intermediate_size": "ffn_hidden_size",
        "num_key_value_heads": "num_kv_heads",
        "rms_norm_eps": "layer_norm_epsilon",
        "hidden_act": "activation",
    },
    former={"n_embed": "hidden_size"},
    harmless=frozenset({"apply_residual_connection_post_layernorm", "ff_factor", "hidden_dropout"}),
)

BLOOM = Family(
    "bloom",
    "BloomForCausalLM",
    "BLOOM and BLOOMZ 560M to 176B",
    CORE
    | {
        "tie_word_embeddings": flag(True),
        "hidden_size": SIZES["hidden_size"].otherwise(64),
        "num_hidden_layers": SIZES["num_hidden_layers"].otherwise(2),
        "num_attention_heads": HEADS.otherwise(8),
        "layer_norm_epsilon": EPS.otherwise(1e-5),
        "apply_residual_connection_post_layernorm": NEVER,
    },
    _OUTSIDE
    | with_biases({"embed_norm": "transformer.word_embeddings_layernorm"})
    | layer_names(
        "transformer.h.N",
        with_biases(_LAYER | {"mixer_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}),
    ),
    refused="apply_residual_connection_post_layernorm",
    read=_read_bloom,
    renamed={"rms_norm_eps": "layer_norm_epsilon"},
    former={"n_embed": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"},
    theta=None,
    harmless=frozenset({
        "attention_softmax_in_fp32", "bias_dropout_fusion", "hidden_dropout", "masked_softmax_fusion", "n_inner",
        "offset_alibi", "seq_length", "skip_bias_add", "skip_bias_add_qkv", "slow_but_exact", "unk_token_id",
    }),
)  # fmt: skip
