"""The kinds of feed-forwards: sub-layers that read each token by itself."""

from collections.abc import Callable
from typing import Any

from ..kinds import FeedForwardConfig
from .absent import NoMlp, NoMlpConfig
from .experts import Experts, ExpertsConfig
from .gated import GatedMlp, GatedMlpConfig
from .plain import PlainMlp, PlainMlpConfig

FEED_FORWARDS: dict[type[FeedForwardConfig], Callable[..., Any]] = {
    GatedMlpConfig: GatedMlp,
    PlainMlpConfig: PlainMlp,
    ExpertsConfig: Experts,
    NoMlpConfig: NoMlp,
}
"""The module of each kind of feed-forward, by the class of its configuration."""
