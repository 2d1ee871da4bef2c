"""The kinds of feed-forwards: sub-layers that read each token by itself."""

from flax import nnx

from ..kinds import FeedForwardConfig
from .experts import Experts, ExpertsConfig
from .gated import GatedMlp, GatedMlpConfig
from .plain import PlainMlp, PlainMlpConfig

FEED_FORWARDS: dict[type[FeedForwardConfig], type[nnx.Module]] = {
    GatedMlpConfig: GatedMlp,
    PlainMlpConfig: PlainMlp,
    ExpertsConfig: Experts,
}
"""The module of each kind of feed-forward, by the class of its configuration."""
