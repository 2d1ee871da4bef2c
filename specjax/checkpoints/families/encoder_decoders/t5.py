"""T5: biases of scores by distance, and neither positions nor a scale of scores."""

from typing import Any

from ....errors import ConfigError
from ....models.config import ModelConfig
from ....models.relative_positions import Relative
from ....models.rope import Rope
from ...json_fields import choice, flag, integer
from ...schemas import ACTIVATION, ACTIVATIONS, CORE, EPS, LONGEST, POSITIONS, SIZES, TOKEN_ID
from ..base import Family
from . import BEGIN, decoder_prompt, write_prompt

_FEED_FORWARDS = {"relu": "relu", "gelu": "gelu", "gated-relu": "relu", "gated-gelu": "gelu_new", "gated-silu": "silu"}
"""The activation of each kind of feed-forward, by its name in transformers."""


def _attention(place: str, kind: str, parameters: dict[str, str]) -> dict[str, list[str]]:
    return {path: [f"{place}.{kind}.{x}.weight" for x in tensors] for path, tensors in parameters.items()}


def _layer(place: str, number: int) -> dict[str, list[str]]:
    """The names of self-attention, and of the feed-forward, which is sub-layer ``number``."""
    mlp = f"{place}.layer.{number}"
    return _attention(f"{place}.layer.0", "SelfAttention", {"mixer.qkv": "qkv", "mixer.out": "o"}) | {
        "mixer_norm": [f"{place}.layer.0.layer_norm.weight"],
        "mlp_norm": [f"{mlp}.layer_norm.weight"],
        "mlp.gate_up": [f"{mlp}.DenseReluDense.wi_{i}.weight" for i in (0, 1)],
        "mlp.up": [f"{mlp}.DenseReluDense.wi.weight"],
        "mlp.down": [f"{mlp}.DenseReluDense.wo.weight"],
    }


_CROSS = _attention(
    "decoder.block.N.layer.1",
    "EncDecAttention",
    {"cross.query": "q", "cross.key": "k", "cross.value": "v", "cross.out": "o"},
) | {"cross_norm": ["decoder.block.N.layer.1.layer_norm.weight"]}
_RELATIVE = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"


def _read(options: dict, where: str) -> dict:
    buckets, most = options["relative_attention_num_buckets"], options["relative_attention_max_distance"]
    if most <= buckets // 2:
        raise ConfigError(
            f"{where}: relative_attention_max_distance is {most}; it must be above half of the {buckets} buckets"
        )
    kind, layers = options["feed_forward_proj"], options["num_layers"]
    scaled = options["scale_decoder_outputs"]
    scaled = options["tie_word_embeddings"] if scaled is None else scaled
    same: dict[str, Any] = dict(
        num_heads=options["num_heads"],
        num_kv_heads=options["num_heads"],
        head_dim=options["d_kv"],
        max_position_embeddings=LONGEST // 2,  # distances have no bound
        norm_eps=options["layer_norm_epsilon"],
        rope=Rope(rotated=0.0),
        attention_scale=1.0,
        gated=kind.startswith("gated-"),
        activation=ACTIVATIONS[_FEED_FORWARDS[kind]],
        relative=Relative(buckets, most),
    )
    encoder = ModelConfig("t5", options["vocab_size"], options["d_model"], options["d_ff"], layers, **same)
    return same | dict(
        num_layers=options["num_decoder_layers"] or layers,
        tie_embeddings=scaled,
        logit_scale=options["d_model"] ** -0.5 if scaled else 1.0,
        encoder=encoder,
        decoder_prompt=decoder_prompt(options, where),
    )


def _write(config: ModelConfig) -> dict:
    encoder, relative = config.encoder, config.relative
    assert encoder is not None and isinstance(relative, Relative)
    activations = {(kind.startswith("gated-"), ACTIVATIONS[name]): kind for kind, name in _FEED_FORWARDS.items()}
    kind = activations[config.gated, config.activation]
    return write_prompt(config) | {
        "num_layers": encoder.num_layers,
        "num_decoder_layers": config.num_layers,
        "relative_attention_num_buckets": relative.buckets,
        "relative_attention_max_distance": relative.most,
        "feed_forward_proj": kind,
        "dense_act_fn": _FEED_FORWARDS[kind],
        "scale_decoder_outputs": config.tie_embeddings,
        "n_positions": 512,
    }


T5 = Family(
    "t5",
    "T5ForConditionalGeneration",
    "T5, T5 v1.1, LM-adapted T5, Flan-T5 and Flan-UL2",
    CORE
    | BEGIN
    | {
        "tie_word_embeddings": flag(True),
        "d_model": SIZES["hidden_size"],
        "d_ff": SIZES["intermediate_size"],
        "d_kv": integer(2, 4096).otherwise(64),
        "num_layers": SIZES["num_hidden_layers"],
        "num_decoder_layers": SIZES["num_hidden_layers"].optional(),
        "num_heads": SIZES["num_attention_heads"],
        "relative_attention_num_buckets": integer(4, 4096).otherwise(32),
        "relative_attention_max_distance": integer(1, 2**16).otherwise(128),
        "layer_norm_epsilon": EPS.otherwise(1e-6),
        "feed_forward_proj": choice(*_FEED_FORWARDS).otherwise("relu"),
        "dense_act_fn": ACTIVATION.otherwise("relu"),
        "scale_decoder_outputs": flag(None),
        "n_positions": POSITIONS.otherwise(512),
        "pad_token_id": TOKEN_ID.otherwise(0),
    },
    {
        "embed": ["shared.weight"],
        "relative.table": [f"decoder.{_RELATIVE}"],
        "norm": ["decoder.final_layer_norm.weight"],
        "head": ["lm_head.weight"],
        "encoder.relative.table": [f"encoder.{_RELATIVE}"],
        "encoder.norm": ["encoder.final_layer_norm.weight"],
    }
    | {f"layers.N.{path}": names for path, names in (_layer("decoder.block.N", 2) | _CROSS).items()}
    | {f"encoder.layers.N.{path}": names for path, names in _layer("encoder.block.N", 1).items()},
    refused="biases of distances that layers do not share, as in UMT5",
    read=_read,
    write=_write,
    renamed={
        "hidden_size": "d_model",
        "intermediate_size": "d_ff",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "head_dim": "d_kv",
        "rms_norm_eps": "layer_norm_epsilon",
        "hidden_act": "dense_act_fn",
        "max_position_embeddings": "n_positions",
    },
    theta=None,
    harmless=frozenset({"dropout_rate", "classifier_dropout", "initializer_factor", "is_gated_act", "output_past"}),
    is_unused=lambda config, name: name.endswith("embed_tokens.weight") or "EncDecAttention.relative" in name,
)
