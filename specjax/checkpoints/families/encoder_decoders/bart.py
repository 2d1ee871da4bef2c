"""BART: learned positions from row 2 on, and norms of the stream and of embeddings."""

from typing import Any

from ....errors import ConfigError
from ....models.config import ModelConfig
from ....models.rope import Rope
from ...blocks import Tensor, one_row
from ...json_fields import choice, flag
from ...schemas import ACTIVATION, ACTIVATIONS, CORE, HEADS, NEVER, POSITIONS, SIZES, TOKEN_ID
from ..base import Family, with_biases
from . import BEGIN, decoder_prompt, write_prompt

_HARMLESS = frozenset({
    "activation_dropout", "classif_dropout", "classifier_dropout", "decoder_layerdrop", "dropout", "early_stopping",
    "encoder_layerdrop", "force_bos_token_to_be_generated", "forced_eos_token_id", "gradient_checkpointing",
    "init_std", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beams", "num_hidden_layers",
    "output_past", "prefix", "replacing_rate", "save_step", "student_decoder_layers", "student_encoder_layers",
    "_num_labels",
})  # fmt: skip
"""Options of training, of beam search, and second names."""


_Names = dict[str, list[str | Tensor]]


def _layer(place: str) -> _Names:
    modules = {
        "mixer.out": "self_attn.out_proj",
        "mixer_norm": "self_attn_layer_norm",
        "mlp_norm": "final_layer_norm",
        "mlp.up": "fc1",
        "mlp.down": "fc2",
    }
    names = with_biases({path: f"{place}.{name}" for path, name in modules.items()})
    names["mixer.qkv"] = [f"{place}.self_attn.{x}_proj.weight" for x in "qkv"]
    names["mixer.qkv_bias"] = [f"{place}.self_attn.{x}_proj.bias" for x in "qkv"]
    return names


_CROSS = with_biases({
    "cross_norm": "model.decoder.layers.N.encoder_attn_layer_norm",
    "cross.query": "model.decoder.layers.N.encoder_attn.q_proj",
    "cross.key": "model.decoder.layers.N.encoder_attn.k_proj",
    "cross.value": "model.decoder.layers.N.encoder_attn.v_proj",
    "cross.out": "model.decoder.layers.N.encoder_attn.out_proj",
})  # fmt: skip


def _stack(prefix: str, path: str, cross: _Names) -> _Names:
    """The names of a stack whose parameters begin with ``path``."""
    outside = with_biases({"embed_norm": f"{prefix}.layernorm_embedding"})
    outside |= {"positions": [f"{prefix}.embed_positions.weight"]}
    layers = {f"layers.N.{name}": tensors for name, tensors in (_layer(f"{prefix}.layers.N") | cross).items()}
    return {path + name: tensors for name, tensors in (outside | layers).items()}


def _read(options: dict, where: str) -> dict:
    width, heads = options["d_model"], options["encoder_attention_heads"]
    if width % (2 * heads):
        raise ConfigError(
            f"{where}: d_model is {width}; it must be an even multiple of encoder_attention_heads, {heads}"
        )
    same: dict[str, Any] = dict(
        max_position_embeddings=options["max_position_embeddings"],
        norm_eps=1e-5,
        rope=Rope(rotated=0.0),
        position_offset=2,
        norm="layer",
        normed="stream",
        final_norm=False,
        embed_norm=True,
        activation=ACTIVATIONS[options["activation_function"]],
        gated=False,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
    )
    sizes = options["encoder_ffn_dim"], options["encoder_layers"], heads, heads, width // heads
    return same | dict(
        embedding_scale=width**0.5 if options["scale_embedding"] else 1.0,
        logit_bias=True,
        encoder=ModelConfig("bart", options["vocab_size"], width, *sizes, **same),
        decoder_prompt=decoder_prompt(options, where),
    )


def _write(config: ModelConfig) -> dict:
    encoder = config.encoder
    assert encoder is not None
    return write_prompt(config) | {
        "encoder_layers": encoder.num_layers,
        "encoder_ffn_dim": encoder.intermediate_size,
        "encoder_attention_heads": encoder.num_heads,
        "scale_embedding": config.embedding_scale != 1,
    }


BART = Family(
    "bart",
    "BartForConditionalGeneration",
    "BART base and large, BART-CNN and -XSum, DistilBART",
    CORE
    | BEGIN
    | {
        "tie_word_embeddings": flag(True),
        "decoder_start_token_id": TOKEN_ID.otherwise(2),
        "eos_token_id": CORE["eos_token_id"].optional(2),
        "d_model": SIZES["hidden_size"],
        "encoder_layers": SIZES["num_hidden_layers"],
        "decoder_layers": SIZES["num_hidden_layers"],
        "encoder_ffn_dim": SIZES["intermediate_size"],
        "decoder_ffn_dim": SIZES["intermediate_size"],
        "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS,
        "max_position_embeddings": POSITIONS.otherwise(1024),
        "activation_function": ACTIVATION.otherwise("gelu"),
        "scale_embedding": flag(),
        "normalize_before": NEVER,
        "add_final_layer_norm": NEVER,
        "static_position_embeddings": NEVER,
        "normalize_embedding": choice(True).otherwise(True),
        "extra_pos_embeddings": choice(2).otherwise(2),
    },
    {
        "embed": ["model.shared.weight"],
        "head": ["lm_head.weight"],
        "logit_bias": [Tensor("final_logits_bias", one_row)],
    }
    | _stack("model.decoder", "", _CROSS)
    | _stack("model.encoder", "encoder.", {}),
    refused="normalize_before, add_final_layer_norm and static_position_embeddings; mBART",
    read=_read,
    write=_write,
    renamed={
        "hidden_size": "d_model",
        "intermediate_size": "decoder_ffn_dim",
        "num_hidden_layers": "decoder_layers",
        "num_attention_heads": "decoder_attention_heads",
        "hidden_act": "activation_function",
    },
    theta=None,
    harmless=_HARMLESS,
    is_unused=lambda config, name: name.endswith(("embed_tokens.weight", ".version")),
)
