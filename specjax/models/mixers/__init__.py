"""The kinds of mixers: sub-layers in which tokens read one another."""

from flax import nnx

from ..kinds import MixerConfig
from .attention import Attention, AttentionConfig
from .delta_rule import DeltaRule, DeltaRuleConfig

MIXERS: dict[type[MixerConfig], type[nnx.Module]] = {AttentionConfig: Attention, DeltaRuleConfig: DeltaRule}
"""The module of each kind of mixer, by the class of its configuration."""
