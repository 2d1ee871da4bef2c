"""Decoder layers with convolutions over the places of a block (DFlash 2)."""

import jax
import jax.numpy as jnp
from flax import nnx

from ..models.kinds import LayerConfig
from ..models.layer import Layer, Nodes
from ..models.layers import linear, matrix, param


class Convolution(nnx.Module):
    """Two convolutions around a sub-layer: one of its input, one of its output.

    Each is a causal depthwise convolution over the places of a block:

        out[i, c] = sum over t of (base[t, c] + delta[i, t, c // group]) x[i - t, c]

    Places before the block count as zero. ``delta`` is a product of ``kernels`` with the
    sub-layer's input before the first convolution, for both convolutions. Untrained ones change
    nothing.
    """

    def __init__(self, width: int, taps: int, group: int, places: int, key: jax.Array, dtype):
        self.taps, self.group, self.places = taps, group, places
        identity = jnp.zeros((2, taps, width), dtype).at[:, 0].set(1)
        self.base = param(identity, (None, None, "embed"))
        self.kernels = matrix(key, (2 * taps * (width // group), width), (None, "embed"), dtype, 0.0)

    def deltas(self, x: jax.Array) -> jax.Array:
        """Both kernels' dynamic parts float32 [B, N, 2, taps, groups] of the input x [B, N, E]."""
        return linear(x, self.kernels[...]).reshape(*x.shape[:2], 2, self.taps, -1)

    def __call__(self, x: jax.Array, deltas: jax.Array, side: int) -> jax.Array:
        """The convolution float32 [B, N, E] of x [B, N, E].

        ``side`` is 0 for the input and 1 for the output. The N places are those of one block or of
        several blocks, one after another.
        """
        N, base = x.shape[1], self.base[...].astype(jnp.float32)
        place, out = jnp.arange(N)[:, None] % self.places, jnp.zeros(x.shape)
        for t in range(min(self.taps, N)):
            kernel = base[side, t] + jnp.repeat(deltas[:, :, side, t], self.group, -1)
            earlier = jnp.pad(x, ((0, 0), (t, 0), (0, 0)))[:, :N]
            out = out + jnp.where(place >= t, kernel * earlier, 0)
        return out


class ConvolvedLayer(Layer):
    """A decoder layer with convolutions around its attention and around its feed-forward.

    Only the places of a block pass through them. The keys and values of the context do not.
    """

    def __init__(self, config: LayerConfig, key: jax.Array, dtype, taps: int, group: int, places: int):
        super().__init__(config, key, dtype)
        keys = jax.random.split(jax.random.fold_in(key, 5))
        self.mixer_conv, self.mlp_conv = (Convolution(config.width, taps, group, places, k, dtype) for k in keys)

    def __call__(self, x, nodes: Nodes, past=None, rows=None, number: int = 0, **_):
        """As in ``Layer``; both sub-layers always run."""
        read = self.before("mixer", x)
        deltas = self.mixer_conv.deltas(read)
        added, new_rows = self.mixer(self.mixer_conv(read, deltas, 0), nodes, past, rows)
        x = self.add("mixer", x, self.mixer_conv(added, deltas, 1))
        read = self.before("mlp", x)
        deltas = self.mlp_conv.deltas(read)
        return self.add("mlp", x, self.mlp_conv(self.mlp(self.mlp_conv(read, deltas, 0)), deltas, 1)), new_rows
