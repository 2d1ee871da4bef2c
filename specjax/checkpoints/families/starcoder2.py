"""StarCoder 2: Llama's form with layer norms, a plain MLP and biases."""

from ...models.config import ModelConfig
from ..json_fields import choice, flag
from ..schemas import ACTIVATION, EPS, HEAD_DIM, HEADS, POSITIONS, ROTARY_DECODER, WINDOW, without
from .base import LLAMA_LAYER, Family, first_window, model_names, with_biases

_NAMES = model_names(
    LLAMA_LAYER
    | {
        "mixer_norm_bias": ["input_layernorm.bias"],
        "mlp_norm_bias": ["post_attention_layernorm.bias"],
    }
    | with_biases({"mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"})
)


def _read(options: dict, where: str) -> dict:
    bias, window = options["use_bias"], options["sliding_window"]
    biases = dict(qkv_bias=bias, out_bias=bias, mlp_bias=bias)
    return biases | dict(norm="layer", gated=False, windows=(window,) * options["num_hidden_layers"])


def _write(config: ModelConfig) -> dict:
    return {"use_bias": config.mlp_bias, "sliding_window": first_window(config)}


STARCODER2 = Family(
    "starcoder2",
    "Starcoder2ForCausalLM",
    "StarCoder 2 3B, 7B, 15B",
    without(ROTARY_DECODER, "rms_norm_eps")
    | {
        "tie_word_embeddings": flag(True),
        "hidden_act": ACTIVATION.otherwise("gelu_pytorch_tanh"),
        "head_dim": HEAD_DIM,
        "max_position_embeddings": POSITIONS.otherwise(4096),
        "norm_epsilon": EPS.otherwise(1e-5),
        "sliding_window": WINDOW.optional(),
        "use_bias": flag(True),
        "num_key_value_heads": HEADS.optional(2),
        "norm_type": choice("layer_norm").optional(),
        "mlp_type": choice("default").optional(),
    },
    _NAMES | {"norm_bias": ["model.norm.bias"]},
    read=_read,
    write=_write,
    renamed={"rms_norm_eps": "norm_epsilon"},
    harmless=frozenset({"residual_dropout", "embedding_dropout"}),
)
