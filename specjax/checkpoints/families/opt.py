"""OPT: learned positions from row 2 on, and ReLU.

The 350M model norms the stream and has narrow embeddings.
"""

from ...models.config import ModelConfig
from ...models.rope import Rope
from ..json_fields import choice, flag
from ..schemas import ACTIVATION, CORE, NEVER, POSITIONS, SIZES
from .base import Family, layer_names, with_biases

_MODULES = {
    "mixer_norm": "self_attn_layer_norm",
    "mixer.out": "self_attn.out_proj",
    "mlp_norm": "final_layer_norm",
    "mlp.up": "fc1",
    "mlp.down": "fc2",
}
_LAYER = with_biases(_MODULES) | {
    "mixer.qkv": [f"self_attn.{x}_proj.weight" for x in "qkv"],
    "mixer.qkv_bias": [f"self_attn.{x}_proj.bias" for x in "qkv"],
}


def _read(options: dict, where: str) -> dict:
    before, bias, width = options["do_layer_norm_before"], options["enable_bias"], options["word_embed_proj_dim"]
    return dict(
        rope=Rope(rotated=0.0),
        position_offset=2,
        norm="layer",
        normed="before" if before else "stream",
        final_norm=before and not options["_remove_final_layer_norm"],
        gated=False,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        embed_size=0 if width in (None, options["hidden_size"]) else width,
    )


def _write(config: ModelConfig) -> dict:
    before = config.normed == "before"
    return {
        "do_layer_norm_before": before,
        "_remove_final_layer_norm": before and not config.final_norm,
        "enable_bias": config.mlp_bias,
        "word_embed_proj_dim": config.embed_size or config.hidden_size,
    }


OPT = Family(
    "opt",
    "OPTForCausalLM",
    "OPT 125M to 66B, the 350M model too",
    CORE
    | {name: SIZES[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    | {
        "tie_word_embeddings": flag(True),
        "ffn_dim": SIZES["intermediate_size"],
        "max_position_embeddings": POSITIONS.otherwise(2048),
        "activation_function": ACTIVATION.otherwise("relu"),
        "do_layer_norm_before": flag(True),
        "_remove_final_layer_norm": flag(),
        "word_embed_proj_dim": SIZES["hidden_size"].optional(),
        "enable_bias": flag(True),
        "layer_norm_elementwise_affine": choice(True).otherwise(True),
        "fast_attention": NEVER,
    },
    {
        "embed": ["model.decoder.embed_tokens.weight"],
        "positions": ["model.decoder.embed_positions.weight"],
        "project_in": ["model.decoder.project_in.weight"],
        "project_out": ["model.decoder.project_out.weight"],
        "head": ["lm_head.weight"],
    }
    | with_biases({"norm": "model.decoder.final_layer_norm"})
    | layer_names("model.decoder.layers.N", _LAYER),
    refused="layer_norm_elementwise_affine = false",
    read=_read,
    write=_write,
    renamed={"intermediate_size": "ffn_dim", "hidden_act": "activation_function"},
    theta=None,
    harmless=frozenset({"dropout", "activation_dropout", "layerdrop", "init_std", "prefix", "output_projection"}),
)
