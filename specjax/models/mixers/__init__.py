"""The kinds of mixers: sub-layers in which tokens read one another."""

from flax import nnx

from ..kinds import MixerConfig
from .attention import Attention, AttentionConfig

MIXERS: dict[type[MixerConfig], type[nnx.Module]] = {AttentionConfig: Attention}
"""The module of each kind of mixer, by the class of its configuration."""
