"""A layer of a decoder: a mixer and a feed-forward, joined to the residual stream."""

import dataclasses
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ..core.stored_rows import EightBits, Halves
from ..kernels.gpu.attention import Scores
from .attention import Seen, within
from .cross_attention import CrossAttention
from .feed_forwards import FEED_FORWARDS
from .kinds import LayerConfig
from .layers import normalize, param, value_of
from .mixers import MIXERS
from .per_layer import PerLayerInput
from .relative_positions import Bias, Slopes
from .rope import Rope, rotary


@dataclasses.dataclass(frozen=True, eq=False)
class Nodes:
    """The nodes of a forward, as all layers read them.

    Attributes:
      positions: int32 [B, N].
      mask: the uncommitted rows that each node sees, see ``decoder.Decoder``.
      dtype: the type of the rows.
      length: int32 [B], the tokens in the cache.
      row_positions: int32 [B, M], positions of all uncommitted rows; None for those of the nodes.
      rope_lengths: see ``rope.rotary``.
      inputs: float32 [B, N, L, P], the layers' own inputs, see ``per_layer``; or None.
      bias: the bias of the scores by distance, or None.
      source: for each layer the keys and values of an encoder's outputs, see ``KVCache``, or ().
      source_length: int32 [B], the number of these outputs.
    """

    positions: jax.Array
    mask: jax.Array | Seen
    dtype: jnp.dtype | EightBits | Halves
    length: jax.Array
    row_positions: jax.Array | None = None
    rope_lengths: jax.Array | None = None
    inputs: jax.Array | None = None
    bias: Bias | Slopes | None = None
    source: tuple = ()
    source_length: jax.Array | None = None

    def angles(self, rope: Rope, head_dim: int) -> tuple[jax.Array, jax.Array]:
        """Cosines and sines of the positions. Layers with equal rotary positions share them."""
        if (rope, head_dim) not in self._angles:
            self._angles[rope, head_dim] = rotary(self.positions, rope, head_dim, self.rope_lengths)
        return self._angles[rope, head_dim]

    def seen(self, scores: Scores):
        """The mask of a layer with this window or this chunk."""
        rows = self.positions if self.row_positions is None else self.row_positions
        first = scores.first(self.positions)
        return self.mask if first is None else within(self.mask, first, rows)

    @cached_property
    def _angles(self) -> dict:
        return {}


class Layer(nnx.Module):
    """A layer of a decoder or an encoder.

    A norm stands before or after each sub-layer, or both, see ``LayerConfig.normed``:
    ``mixer_norm`` and ``mlp_norm`` are before it or on the stream, ``mixer_out_norm`` and
    ``mlp_out_norm`` after it. A "shared" layer has ``norm`` for both. A layer that reads an encoder
    also has ``cross``, with such norms.

    Trained heads use two variations. The mixer may read ``inputs`` vectors of width E side by side.
    ``first_norm`` says whether the layer norms the input of the mixer.
    """

    mixer: Any  # of mixers.MIXERS
    mlp: Any  # of feed_forwards.FEED_FORWARDS

    def __init__(self, config: LayerConfig, key: jax.Array, dtype, *, inputs: int = 1, first_norm: bool = True):
        keys = jax.random.split(key, 4)
        self.config = config
        wide = {} if inputs == 1 else {"inputs": inputs}
        self.mixer = MIXERS[type(config.mixer)](config, keys[:2], dtype, **wide)
        self.mlp = FEED_FORWARDS[type(config.mlp)](config, keys[2:], dtype)
        before, after = config.normed not in ("after", "shared"), config.normed in ("after", "both")
        crosses = config.cross is not None
        cross_keys = jax.random.split(jax.random.fold_in(key, 5), 4)
        self.cross = CrossAttention(config.cross, config.width, cross_keys, dtype) if config.cross else None
        mixes, feeds = not config.mixer.absent, not config.mlp.absent
        names = {"mixer_norm": before and first_norm and mixes, "cross_norm": before and crosses}
        names |= {"mlp_norm": before and feeds}
        names |= {"mixer_out_norm": after, "cross_out_norm": after and crosses, "mlp_out_norm": after}
        names |= {"norm": config.normed == "shared"}
        for name, present in names.items():
            weight = jnp.full(config.width, 1 - config.norm.offset, dtype)
            setattr(self, name, param(weight, ("embed",)) if present else None)
            biased = present and config.norm.kind == "layer"
            setattr(self, f"{name}_bias", param(jnp.zeros(config.width, dtype), ("embed",)) if biased else None)
        own = config.per_layer_size > 0
        self.per_layer = PerLayerInput(config, jax.random.split(jax.random.fold_in(key, 4)), dtype) if own else None
        self.scalar = param(jnp.ones(1, dtype), (None,)) if config.scaled else None

    def __call__(self, x, nodes: Nodes, past=None, rows=None, number: int = 0, *, mixer: bool = True, mlp: bool = True):
        """The residual stream float32 [B, N, E] after the layer, and the layer's ``Output.rows``.

        Args:
          past, rows: the arrays of the cache and the uncommitted rows that the layer's mixer reads.
          number: the layer's place in its decoder.
          mixer, mlp: whether the layer runs these sub-layers.
        """
        entering, new_rows = x, None
        if mixer:
            added, new_rows = self.mixer(self.before("mixer", x), nodes, past, rows)
            x = self.add("mixer", x, added)
        if self.cross is not None:
            assert nodes.source_length is not None  # a decoder with such layers has an encoder
            added = self.cross(self.before("cross", x), nodes.source[number], nodes.source_length)
            x = self.add("cross", x, added)
        if mlp:
            read = entering if self.config.parallel else x
            x = self.add("mlp", x, self.mlp(self.before("mlp", read)))
        if self.per_layer is not None:
            assert nodes.inputs is not None  # a decoder with such layers makes their inputs
            x = self.per_layer(x, nodes.inputs[:, :, number])
        if self.scalar is not None:
            x = x * self.scalar[...].astype(jnp.float32)
        return x, new_rows

    def before(self, name: str, x):
        """The input of sub-layer ``name`` ("mixer", "cross", "mlp") from the stream x [B, N, E]."""
        if self.config.normed == "stream":
            return x
        return self._norm("norm" if self.config.normed == "shared" else f"{name}_norm", x)

    def add(self, name: str, x, added):
        """The stream x with the output ``added`` of sub-layer ``name``, both float32 [B, N, E]."""
        added = self._norm(f"{name}_out_norm", added)
        x = x + (added if self.config.residual_scale == 1 else added * self.config.residual_scale)
        return self._norm(f"{name}_norm", x) if self.config.normed == "stream" else x

    def _norm(self, name: str, x):
        weight = getattr(self, name)
        if weight is None:
            return x
        return normalize(x, self.config.norm, weight[...], value_of(getattr(self, f"{name}_bias")))
