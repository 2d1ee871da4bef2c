"""The static configuration of one layer: a mixer, a feed-forward, and the form that joins them.

A kind of mixer or feed-forward is a file with a configuration, a frozen dataclass, and a module.
The class of the configuration selects the module, see ``mixers.MIXERS`` and
``feed_forwards.FEED_FORWARDS``.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Self

from ..core.stored_rows import blank
from .cross_attention import CrossConfig
from .layers import Norm
from .stacks import Stack


@dataclasses.dataclass(frozen=True)
class SubLayerConfig(ABC):
    """The base of configurations of sub-layers.

    ``absent``: whether it stands for no sub-layer, before which a layer has no norm.
    """

    absent: ClassVar[bool] = False

    @property
    def stacks(self) -> Mapping[str, Stack]:
        """The row order of each parameter that stacks matrices, by its name in the module."""
        return {}

    @abstractmethod
    def count_weights(self, width: int) -> int:
        """The number of weights in the matrices, for a stream of ``width``."""

    @abstractmethod
    def split_over(self, devices: int) -> Self:
        """The configuration of the same sub-layer, split over ``devices``.

        Raises RequestError where the devices do not divide its heads, or its width.
        """


@dataclasses.dataclass(frozen=True)
class MixerConfig(SubLayerConfig):
    """The base of configurations of mixers, the sub-layers in which tokens read one another.

    A mixer is a module ``kind(config: LayerConfig, keys, dtype)``, with ``keys`` two random keys;
    ``config.mixer`` is its own configuration. It is called as

        mixer(normed, nodes, past, rows) -> (added, new_rows)

    - ``normed`` float32 [B, N, E]: the normed stream.
    - ``nodes``: the forward's ``layer.Nodes``.
    - ``past``: the mixer's arrays of the cache, each [B, K, T, D], or its state; None without
      a cache.
    - ``rows``: the mixer's uncommitted rows of earlier calls, each [B, K, M, D], or None.
    - ``added`` float32 [B, N, E]: the output. ``new_rows``: ``rows`` followed by the rows of the N
      nodes.
    """

    @property
    def row_shapes(self) -> tuple[tuple[int, int], ...]:
        """(K, D) of each array that the mixer keeps in the cache: K vectors of size D for a token.

        A mixer that keeps a state has none.
        """
        return ()

    def empty(self, batch: int, capacity: int, dtype):
        """The mixer's part of a cache without tokens: arrays [B, K, T, D], or a state."""
        return tuple(blank((batch, K, capacity, D), dtype) for K, D in self.row_shapes)

    @property
    def source(self) -> int | None:
        """The layer whose past and rows this mixer reads; None for a mixer that reads its own."""
        return None


@dataclasses.dataclass(frozen=True)
class FeedForwardConfig(SubLayerConfig):
    """The base of configurations of feed-forwards, the sub-layers that read each token by itself.

    A feed-forward is a module ``kind(config: LayerConfig, keys, dtype)``, with ``keys`` two random
    keys; ``config.mlp`` is its own configuration. It is called as
    ``feed_forward(normed)``. Its output is added to the stream; both are float32 [B, N, E].
    """


@dataclasses.dataclass(frozen=True)
class LayerConfig:
    """A layer of a decoder. Hashable, static under ``jit``.

    Attributes:
      width, depth: the width E of the stream, and the number of layers L of the decoder.
      mixer, mlp: the two sub-layers.
      norm: the kind of the norms.
      normed: "before" norms the input of each sub-layer, "after" its output, "both" both. "stream"
        norms the sum of stream and output, as the first transformers did. "shared" norms the stream
        once for both sub-layers of a parallel layer.
      parallel: whether the feed-forward reads the stream that enters the mixer, and both outputs
        are added to it.
      per_layer_size: the width of the input of its own that each layer has (Gemma 4); 0 for none.
      scaled: whether a factor of its own multiplies the output of the layer.
      residual_scale: the factor on the output of each sub-layer.
      cross: the sub-layer between mixer and feed-forward that reads an encoder's outputs; None for
        none.
    """

    width: int
    depth: int
    mixer: MixerConfig
    mlp: FeedForwardConfig
    norm: Norm
    normed: str = "before"
    parallel: bool = False
    per_layer_size: int = 0
    scaled: bool = False
    residual_scale: float = 1.0
    cross: CrossConfig | None = None
