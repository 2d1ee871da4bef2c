"""Phi-1, Phi-1.5, Phi-2 and GPT-J: both sub-layers read one norm; heads are rotated in part."""

import math

from ...errors import ConfigError
from ...models.rope import Rope
from ..blocks import Tensor, interleave
from ..json_fields import choice, integer
from ..schemas import ACTIVATION, CORE, EPS, HEAD_DIM, NEVER, POSITIONS, ROPE, ROTARY_DECODER, SIZE, SIZES, without
from .base import LLAMA_LAYER, Family, layer_names, model_names, with_biases
from .gpt2 import GPT2

_FORM = dict(norm="layer", normed="shared", parallel=True, gated=False, mlp_bias=True, logit_bias=True)

_MODULES = {
    "norm": "input_layernorm",
    "mixer.out": "self_attn.dense",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}
_NAMES = model_names(LLAMA_LAYER | with_biases(_MODULES)) | with_biases({"norm": "model.final_layernorm"})
_NAMES |= {"logit_bias": ["lm_head.bias"]}

_GPTJ_LAYER = with_biases({"norm": "ln_1", "mlp.up": "mlp.fc_in", "mlp.down": "mlp.fc_out"}) | {
    "mixer.qkv": [Tensor(f"attn.{x}_proj.weight", interleave) for x in "qkv"],
    "mixer.out": ["attn.out_proj.weight"],
}


def _read_gptj(options: dict, where: str) -> dict:
    size, rotated = options["n_embd"] // options["n_head"], options["rotary_dim"]
    if rotated % 2 or rotated > size:
        raise ConfigError(f"{where}: rotary_dim is {rotated}; it must be even, and at most the {size} of a head")
    share = rotated / size
    if int(share * size) < rotated:  # rounded down
        share = math.nextafter(share, 1)
    rope = Rope(rotated=share)
    return _FORM | dict(rope=rope, intermediate_size=options["n_inner"] or 4 * options["n_embd"])


PHI = Family(
    "phi",
    "PhiForCausalLM",
    "Phi-1, Phi-1.5, Phi-2",
    without(ROTARY_DECODER, "rms_norm_eps")
    | {
        "head_dim": HEAD_DIM,
        "max_position_embeddings": POSITIONS.otherwise(2048),
        "partial_rotary_factor": ROPE["partial_rotary_factor"],
        "hidden_act": ACTIVATION.otherwise("gelu_new"),
        "layer_norm_eps": EPS.otherwise(1e-5),
        "qk_layernorm": NEVER,
    },
    _NAMES,
    refused="qk_layernorm",
    read=lambda options, where: _FORM | dict(qkv_bias=True, out_bias=True),
    renamed={"rms_norm_eps": "layer_norm_eps"},
    rotated=0.5,
    harmless=frozenset({"resid_pdrop", "embd_pdrop"}),
)

GPTJ = Family(
    "gptj",
    "GPTJForCausalLM",
    "GPT-J 6B",
    CORE
    | {
        "n_embd": SIZES["hidden_size"],
        "n_inner": SIZE.optional(),
        "n_layer": SIZES["num_hidden_layers"],
        "n_head": SIZES["num_attention_heads"],
        "n_positions": POSITIONS.otherwise(2048),
        "rotary_dim": integer(2, 4096).otherwise(64),
        "activation_function": ACTIVATION.otherwise("gelu_new"),
        "layer_norm_epsilon": EPS.otherwise(1e-5),
        "rotary": choice(True).optional(),
        "scale_attn_weights": choice(True).optional(),
    },
    {
        "embed": ["transformer.wte.weight"],
        "head": ["lm_head.weight"],
        "logit_bias": ["lm_head.bias"],
    }
    | with_biases({"norm": "transformer.ln_f"})
    | layer_names("transformer.h.N", _GPTJ_LAYER),
    read=_read_gptj,
    write=lambda config: {"rotary_dim": config.rope.rotated_size(config.head_dim)},
    renamed=GPT2.renamed,
    theta=None,
    harmless=GPT2.harmless,
)
