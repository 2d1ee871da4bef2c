"""The kinds of mixers: sub-layers in which tokens read one another."""

from collections.abc import Callable
from typing import Any

from ..kinds import MixerConfig
from .attention import Attention, AttentionConfig
from .delta_rule import DeltaRule, DeltaRuleConfig

MIXERS: dict[type[MixerConfig], Callable[..., Any]] = {AttentionConfig: Attention, DeltaRuleConfig: DeltaRule}
"""The module of each kind of mixer, by the class of its configuration."""
