"""The kinds of mixers: sub-layers in which tokens read one another."""

from collections.abc import Callable
from typing import Any

from ..kinds import MixerConfig
from .absent import NoMixer, NoMixerConfig
from .attention import Attention, AttentionConfig
from .delta_rule import DeltaRule, DeltaRuleConfig
from .latent import LatentAttention, LatentAttentionConfig
from .mamba2 import Mamba2, Mamba2Config
from .short_conv import ShortConv, ShortConvConfig

MIXERS: dict[type[MixerConfig], Callable[..., Any]] = {
    AttentionConfig: Attention,
    LatentAttentionConfig: LatentAttention,
    DeltaRuleConfig: DeltaRule,
    ShortConvConfig: ShortConv,
    Mamba2Config: Mamba2,
    NoMixerConfig: NoMixer,
}
"""The module of each kind of mixer, by the class of its configuration."""
