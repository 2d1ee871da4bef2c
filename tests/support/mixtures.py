"""Tiny models with experts, one of each family."""

from specjax import Decoder, ModelConfig
from specjax.models.feed_forwards import ExpertsConfig, GatedMlpConfig
from specjax.models.rope import Rope

from .models import TINY, tiny_model

_BASE = TINY.replace(windows=(None, None))
_EXPERTS = ExpertsConfig(5, 2, 24)
MIXTURES: dict[str, ModelConfig] = {
    "mixtral": _BASE.replace(family="mixtral", intermediate_size=24, mlps=(_EXPERTS,) * 2),
    "qwen2_moe": _BASE.replace(
        family="qwen2_moe",
        qkv_bias=True,
        mlps=(None, ExpertsConfig(5, 2, 24, normed=False, shared=GatedMlpConfig(16))),
    ),
    "qwen3_moe": _BASE.replace(family="qwen3_moe", qk_norm=True, mlps=(_EXPERTS, None)),
    "gpt_oss": _BASE.replace(
        family="gpt_oss",
        intermediate_size=24,
        sinks=True,
        qkv_bias=True,
        out_bias=True,
        rope=Rope(1e4, "yarn", factor=4.0, original_max_position_embeddings=64, truncate=False),
        windows=(8, None),
        mlps=(ExpertsConfig(5, 2, 24, bias=True, clamp=(1.702, 7.0)),) * 2,
    ),
}
"""The configuration of a tiny model of each family."""


def make_mixture(family: str, seed: int = 0, **changes) -> Decoder:
    """A random model of a family, with the first layers only if ``num_layers`` says so."""
    config = MIXTURES[family]
    if "num_layers" in changes:
        config = config.with_layers(range(changes.pop("num_layers")))
    return tiny_model(seed, config=config, **changes)
