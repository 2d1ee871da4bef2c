"""Families with one difference from Llama: Seed-OSS, Helium, Arcee, Apertus, HunYuan and SmolLM3.

Every fourth layer of SmolLM3 has no rotary positions (2501.18795).
"""

import dataclasses

from ...errors import ConfigError
from ...kernels.gpu.attention import Scores
from ...models.config import ModelConfig
from ...models.feed_forwards.plain import XIELU_BETA, XIELU_EPS
from ...models.mixers import AttentionConfig
from ...models.rope import Rope
from ..blocks import Tensor, interleave
from ..json_fields import choice, flag, integer, list_of, read_fields
from ..rope_options import read_rope
from ..schemas import (
    ACTIVATION,
    BOUND,
    DECODER,
    EPS,
    HEAD_DIM,
    HEADS,
    LAYER_TYPES,
    NEVER,
    POSITIONS,
    ROTARY_DECODER,
    WINDOW,
)
from .base import LLAMA_LAYER, Family, first_window, layer_types, model_names, read_windows

_OPTIONS = ROTARY_DECODER | {"head_dim": HEAD_DIM, "attention_bias": flag(), "mlp_bias": flag()}
_PLAIN = {"mlp.up": ["mlp.up_proj.weight"], "mlp.up_bias": ["mlp.up_proj.bias"]}


def _read(options: dict, where: str) -> dict:
    bias = options["attention_bias"]
    return dict(qkv_bias=bias, out_bias=bias, mlp_bias=options["mlp_bias"])


def _write(config: ModelConfig) -> dict:
    # The default padding of transformers need not lie in the vocabulary.
    return {"attention_bias": config.qkv_bias, "mlp_bias": config.mlp_bias, "pad_token_id": None}


def _read_apertus(options: dict, where: str) -> dict:
    """Versions of transformers differ in the positions of a file without a table."""
    bias = options["attention_bias"]
    if not (options["rope_scaling"] or options["rope_parameters"]):
        raise ConfigError(f"{where}: rope_parameters is missing; apertus needs it")
    return dict(qk_norm=True, gated=False, qkv_bias=bias, out_bias=bias)


SEED_OSS = Family(
    "seed_oss",
    "SeedOssForCausalLM",
    "Seed-OSS 36B",
    _OPTIONS
    | {
        "num_key_value_heads": HEADS.optional(8),
        "head_dim": HEAD_DIM.optional(128),
        "max_position_embeddings": POSITIONS.otherwise(524288),
        "attention_bias": flag(True),
        "attention_out_bias": flag(),
    },
    model_names(),
    read=lambda options, where: _read(options, where) | dict(out_bias=options["attention_out_bias"]),
    write=lambda config: _write(config) | {"attention_out_bias": config.out_bias},
    harmless=frozenset({"residual_dropout"}),
)

HELIUM = Family(
    "helium",
    "HeliumForCausalLM",
    "Helium 1 2B",
    _OPTIONS
    | {
        "num_key_value_heads": HEADS.otherwise(20),
        "head_dim": integer(2, 4096).otherwise(128),
        "max_position_embeddings": POSITIONS.otherwise(4096),
        "rms_norm_eps": EPS.otherwise(1e-8),
    },
    model_names(
        LLAMA_LAYER
        | {
            "mixer.qkv": [Tensor(f"self_attn.{x}_proj.weight", interleave) for x in "qkv"],
            "mixer.qkv_bias": [Tensor(f"self_attn.{x}_proj.bias", interleave) for x in "qkv"],
        }
    ),
    read=lambda options, where: _read(options, where) | dict(out_bias=False),
    write=_write,
    theta=100000.0,
)

ARCEE = Family(
    "arcee",
    "ArceeForCausalLM",
    "AFM 4.5B",
    _OPTIONS
    | {
        "max_position_embeddings": POSITIONS.otherwise(4096),
        "rms_norm_eps": EPS.otherwise(1e-5),
        "hidden_act": ACTIVATION.otherwise("relu2"),
    },
    model_names(LLAMA_LAYER | _PLAIN),
    read=lambda options, where: _read(options, where) | dict(gated=False),
    write=_write,
)

APERTUS = Family(
    "apertus",
    "ApertusForCausalLM",
    "Apertus 8B and 70B",
    DECODER
    | {
        "max_position_embeddings": POSITIONS.otherwise(65536),
        "rms_norm_eps": EPS.otherwise(1e-5),
        "hidden_act": choice("xielu").otherwise("xielu"),
        "attention_bias": flag(),
    },
    model_names(
        LLAMA_LAYER
        | _PLAIN
        | {
            "mixer_norm": ["attention_layernorm.weight"],
            "mlp_norm": ["feedforward_layernorm.weight"],
            "mlp.alpha_p": ["mlp.act_fn.alpha_p"],
            "mlp.alpha_n": ["mlp.act_fn.alpha_n"],
        }
    ),
    refused="activations other than xielu",
    read=_read_apertus,
    write=lambda config: {"attention_bias": config.qkv_bias, "pad_token_id": None},
    theta=12e6,
    harmless=frozenset({"hidden_dropout", "mlp_bias", "post_norm", "qk_norm"}),
    is_unused=lambda config, name: name.endswith(("act_fn.beta", "act_fn.eps")),
    fixed=lambda config: {
        f"model.layers.{i}.mlp.act_fn.{name}": number
        for i in range(config.num_layers)
        for name, number in (("beta", XIELU_BETA), ("eps", XIELU_EPS))
    },
)


def _read_hunyuan(options: dict, where: str) -> dict:
    """Transformers reads ``alpha`` of dynamic scaling as a constant factor of the base."""
    heads, bias = options["num_attention_heads"], options["attention_bias"]
    size = options["head_dim"] or options["hidden_size"] // heads
    within = "rope_scaling" if options["rope_scaling"] else "rope_parameters"
    table = {name: value for name, value in (options[within] or {}).items() if name != "alpha"}
    alpha = read_fields(options[within] or {}, {"alpha": BOUND.optional()}, where, within)["alpha"]
    kind = table.get("rope_type") or table.get("type")
    stretched = kind == "dynamic" and alpha is not None
    if stretched:
        table = {"rope_theta": table["rope_theta"]} if "rope_theta" in table else {}
    rope = read_rope(options | {"rope_scaling": None, "rope_parameters": table}, size, where, 10000.0, None)
    if stretched:
        rope = dataclasses.replace(rope, theta=rope.theta * alpha ** (size / (size - 2)))
    mixer = AttentionConfig(
        heads, options["num_key_value_heads"] or heads, size, rope, qkv_bias=bias, out_bias=bias, qk_norm=True,
        norm_after=True,
    )  # fmt: skip
    mixers = (mixer,) * options["num_hidden_layers"]
    return dict(qk_norm=True, qkv_bias=bias, out_bias=bias, rope=rope, mixers=mixers)


HUNYUAN = Family(
    "hunyuan_v1_dense",
    "HunYuanDenseV1ForCausalLM",
    "Hunyuan 0.5B, 1.8B, 4B and 7B",
    ROTARY_DECODER
    | {
        "head_dim": integer(4, 4096).optional(),
        "max_position_embeddings": POSITIONS.otherwise(2048),
        "rms_norm_eps": EPS.otherwise(1e-5),
        "attention_bias": flag(),
        "mlp_bias": NEVER,
        "norm_type": choice("rms").optional(),
        "use_cla": NEVER,
        "use_qk_norm": choice(True).optional(),
    },
    model_names(
        LLAMA_LAYER
        | {
            "mixer.q_norm": ["self_attn.query_layernorm.weight"],
            "mixer.k_norm": ["self_attn.key_layernorm.weight"],
        }
    ),
    read=_read_hunyuan,
    write=lambda config: {"attention_bias": config.qkv_bias},
    theta=None,
    harmless=frozenset({"eod_token_id"}),
)


def _read_smollm3(options: dict, where: str) -> dict:
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


def _write_smollm3(config: ModelConfig) -> dict:
    window = first_window(config)
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
    ROTARY_DECODER
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
    read=_read_smollm3,
    write=_write_smollm3,
    theta=2e6,
    harmless=frozenset({"max_window_layers"}),
)
