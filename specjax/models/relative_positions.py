"""The bias of attention scores by the distance of tokens.

T5 learns it (Raffel et al. 2020, section 2.1). ALiBi has fixed slopes (Press et al. 2022).
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx, struct

from .layers import lookup, matrix


class Bias(struct.PyTreeNode):
    """Numbers added to the scores by the distance between row and node (Raffel et al. 2020).

    Every query head has its own key head.

    Attributes:
      by_distance: float32 [H, 2 D + 1], for rows from D positions before a node to D after it. Rows
        farther away have the numbers of D.
      positions: int32 [B, N], the positions of the nodes.
      rows: int32 [B, M], the positions of the uncommitted rows. Row i of the past is at position i.
    """

    by_distance: jax.Array
    positions: jax.Array
    rows: jax.Array

    def to(self, rows: jax.Array) -> jax.Array:
        """The bias float32 [B, H, N, M] of rows at positions int32 [B or 1, M]."""
        most = self.by_distance.shape[1] // 2
        distance = rows[:, None] - self.positions[:, :, None]
        return self.by_distance[:, jnp.clip(distance, -most, most) + most].swapaxes(0, 1)


class Slopes(struct.PyTreeNode):
    """A bias that falls linearly with the distance. Its attributes are those of ``Bias``.

    Attributes:
      slopes: float32 [H].
    """

    slopes: jax.Array
    positions: jax.Array
    rows: jax.Array

    def to(self, rows: jax.Array) -> jax.Array:
        """See ``Bias.to``."""
        distance = rows[:, None] - self.positions[:, :, None]
        return self.slopes[:, None, None] * distance[:, None].astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class Alibi:
    """Attention with linear biases (Press et al. 2022, arXiv 2108.12409). Static.

    Attributes:
      heads: H.
    """

    heads: int

    def slopes(self) -> np.ndarray:
        """Float32 [H]: for a power of two n the numbers 2^(-8 i / n) for i from 1 to n.

        Otherwise these numbers for the next smaller power of two, and every other of those for its
        double.
        """
        power = 2 ** (self.heads.bit_length() - 1)
        numbers = [2 ** (-8 * i / power) for i in range(1, power + 1)]
        numbers += [2 ** (-4 * i / power) for i in range(1, 2 * (self.heads - power), 2)]
        return np.array(numbers, np.float32)

    def __call__(self, positions: jax.Array, rows: jax.Array) -> Slopes:
        """See ``RelativeBias``."""
        return Slopes(jnp.asarray(self.slopes()), positions, rows)


@dataclasses.dataclass(frozen=True)
class Relative:
    """The buckets of distances. Static.

    Attributes:
      buckets: their number.
      most: the distance from which on all tokens share a bucket.
    """

    buckets: int = 32
    most: int = 128

    def numbers(self, both: bool) -> np.ndarray:
        """Int32 [2 most + 1], the bucket of each distance from -most to most, see ``RelativeBias``.

        One half of the buckets is for single distances, and the other half grows with their
        logarithm.
        """
        distance = np.arange(-self.most, self.most + 1)
        count = self.buckets // 2 if both else self.buckets
        back = np.abs(distance) if both else np.maximum(-distance, 0)
        single = count // 2
        ratio = np.log(np.float32(np.maximum(back, 1)) / np.float32(single)) / np.float32(math.log(self.most / single))
        wide = np.minimum(single + (ratio * np.float32(count - single)).astype(np.int32), count - 1)
        bucket = np.where(back < single, back, wide) + (count * (distance > 0) if both else 0)
        return bucket.astype(np.int32)


class RelativeBias(nnx.Module):
    """A number for each bucket of distances and each head, ``table`` [buckets, H].

    All layers share it.

    Args:
      both: whether later tokens have buckets of their own, as in an encoder.
    """

    def __init__(self, config: Relative, both: bool, heads: int, key: jax.Array, dtype):
        self.config, self.both = config, both
        self.table = matrix(key, (config.buckets, heads), ("table", None), dtype)

    def __call__(self, positions: jax.Array, rows: jax.Array) -> Bias:
        """The bias of nodes at ``positions`` [B, N] to uncommitted rows at ``rows`` [B, M]."""
        numbers = lookup(self.table[...], jnp.asarray(self.config.numbers(self.both)))
        return Bias(numbers.astype(jnp.float32).T, positions, rows)
