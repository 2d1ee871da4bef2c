"""GPT-2: learned positions, layer norms, and weights [in, out]."""

from ...models.rope import Rope
from ..blocks import Tensor, transpose
from ..json_fields import choice, flag
from ..schemas import ACTIVATION, CORE, EPS, NEVER, POSITIONS, SIZE, SIZES
from .base import Family, layer_names, with_biases

_LAYER = with_biases({"mixer_norm": "ln_1", "mlp_norm": "ln_2"}) | {
    "mixer.qkv": [Tensor("attn.c_attn.weight", transpose)] * 3,
    "mixer.qkv_bias": ["attn.c_attn.bias"] * 3,
    "mixer.out": [Tensor("attn.c_proj.weight", transpose)],
    "mixer.out_bias": ["attn.c_proj.bias"],
    "mlp.up": [Tensor("mlp.c_fc.weight", transpose)],
    "mlp.up_bias": ["mlp.c_fc.bias"],
    "mlp.down": [Tensor("mlp.c_proj.weight", transpose)],
    "mlp.down_bias": ["mlp.c_proj.bias"],
}


def _read(options: dict, where: str) -> dict:
    return dict(
        intermediate_size=options["n_inner"] or 4 * options["n_embd"],
        rope=Rope(rotated=0.0),
        position_offset=0,
        norm="layer",
        gated=False,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
    )


GPT2 = Family(
    "gpt2",
    "GPT2LMHeadModel",
    "GPT-2 124M to 1.5B, DistilGPT2",
    CORE
    | {
        "tie_word_embeddings": flag(True),
        "n_embd": SIZES["hidden_size"],
        "n_inner": SIZE.optional(),
        "n_layer": SIZES["num_hidden_layers"],
        "n_head": SIZES["num_attention_heads"],
        "n_positions": POSITIONS.otherwise(1024),
        "activation_function": ACTIVATION.otherwise("gelu_new"),
        "layer_norm_epsilon": EPS.otherwise(1e-5),
        "scale_attn_weights": choice(True).otherwise(True),
        "scale_attn_by_inverse_layer_idx": NEVER,
        "reorder_and_upcast_attn": NEVER,
        "add_cross_attention": NEVER,
    },
    {
        "embed": ["transformer.wte.weight"],
        "positions": ["transformer.wpe.weight"],
        "head": ["lm_head.weight"],
    }
    | with_biases({"norm": "transformer.ln_f"})
    | layer_names("transformer.h.N", _LAYER),
    refused="scale_attn_by_inverse_layer_idx, reorder_and_upcast_attn, add_cross_attention",
    read=_read,
    renamed={
        "hidden_size": "n_embd",
        "intermediate_size": "n_inner",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
        "hidden_act": "activation_function",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    theta=None,
    harmless=frozenset({
        "n_ctx", "_num_labels", "embd_pdrop", "resid_pdrop", "attn_pdrop", "summary_type", "summary_use_proj",
        "summary_activation", "summary_proj_to_labels", "summary_first_dropout",
    }),
)  # fmt: skip
