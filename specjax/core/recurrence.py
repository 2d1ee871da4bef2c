"""The state of a layer with the gated delta rule (Yang et al. 2025), and the rows of its nodes.

The state S [Dk, Dv] of a head maps keys to values. A token with key k, value v, decay alpha and
writing strength beta changes it (arXiv 2412.06464, equation 10, transposed):

    S_t = alpha_t S_{t-1} + k_t u_t^T,    u_t = beta_t (v_t - alpha_t S_{t-1}^T k_t)

Written with the updates u, the state after node i of a tree is a sum over the nodes j on the path
from the root to node i:

    S_i = a_i S + sum_j a_ij k_j u_j^T

S is the committed state, a_i is the product of alpha over the whole path, and a_ij the product
over the nodes of the path after j. So a node needs one row, k, u and log alpha, and no state of its
own. A rejected node leaves nothing to roll back: its row is not in the sum.

Mamba-2 has the same state, with updates that do not depend on it (see ``models.mixers.mamba2``).

The layer also convolves its inputs over the last W tokens of a path. Rows therefore hold these
inputs, and the state holds those of the last W - 1 committed tokens. Other layers have such a short
convolution alone.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

_POSITIONS = 2
"""The axis of nodes in every array of rows, as in ``cache``."""


class State(struct.PyTreeNode):
    """The base of states of layers that read tokens one after another."""

    def blank_rows(self, nodes: int):
        """Rows of zeros for ``nodes`` nodes."""
        raise TypeError(f"{type(self).__name__} must define blank_rows")

    def commit(self, rows, count: jax.Array) -> "State":
        """The state after the first ``count`` int32 [B] of the P rows of a path.

        A count beyond P stands for P, and one below 0 for 0.
        """
        raise TypeError(f"{type(self).__name__} must define commit")


class ConvRows(NamedTuple):
    """Uncommitted rows of M nodes of a short convolution, in topological order.

    Attributes:
      inputs: float32 [B, K, M, C / K], the inputs of the convolution, by groups of channels.
    """

    inputs: jax.Array


class ConvState(State):
    """The state of a short convolution after the committed tokens.

    Attributes:
      inputs: float32 [B, K, W - 1, C / K], the newest inputs, in order; zeros before the first
        token.
    """

    inputs: jax.Array

    def blank_rows(self, nodes: int) -> ConvRows:
        B, K, _, channels = self.inputs.shape
        return ConvRows(jnp.zeros((B, K, nodes, channels), jnp.float32))

    def commit(self, rows: ConvRows, count: jax.Array) -> "ConvState":
        return ConvState(newest(self.inputs, rows.inputs, jnp.clip(count, 0, rows.inputs.shape[_POSITIONS])))


def newest(inputs: jax.Array, added: jax.Array, count: jax.Array) -> jax.Array:
    """The newest W - 1 of ``inputs`` [B, K, W - 1, C] and the first ``count`` [B] of ``added``."""
    at = count[:, None] + jnp.arange(inputs.shape[_POSITIONS])
    return jnp.take_along_axis(jnp.concatenate([inputs, added], _POSITIONS), at[:, None, :, None], _POSITIONS)


class DeltaRows(NamedTuple):
    """Uncommitted rows of M nodes, in topological order.

    Attributes:
      inputs: float32 [B, K, M, C / K], the inputs of the convolution, by key head.
      keys: float32 [B, K, M, Dk], k.
      updates: float32 [B, H, M, Dv], u; K divides H.
      decays: float32 [B, H, M, 1], log alpha.
    """

    inputs: jax.Array
    keys: jax.Array
    updates: jax.Array
    decays: jax.Array


class DeltaState(State):
    """The state of a layer with the delta rule after the committed tokens.

    Attributes:
      memory: float32 [B, H, Dk, Dv], S of each value head.
      inputs: float32 [B, K, W - 1, C / K], the newest inputs of the convolution, in order; zeros
        before the first token.
    """

    memory: jax.Array
    inputs: jax.Array

    def blank_rows(self, nodes: int) -> DeltaRows:
        B, H, Dk, Dv = self.memory.shape
        _, K, _, channels = self.inputs.shape

        def zeros(heads, size):
            return jnp.zeros((B, heads, nodes, size), jnp.float32)

        return DeltaRows(zeros(K, channels), zeros(K, Dk), zeros(H, Dv), zeros(H, 1))

    def commit(self, rows: DeltaRows, count: jax.Array) -> "DeltaState":
        B, H, Dk, Dv = self.memory.shape
        K, P = rows.keys.shape[1:3]
        count = jnp.clip(count, 0, P)
        mask = jnp.arange(P) < count[:, None]
        weights, whole = path_decays(mask[:, None], rows.decays[..., 0])

        # A row beyond the path may hold NaN, so it is cleared as well as weighted by zero.
        def clear(leaf):
            return jnp.where(mask[:, None, :, None], leaf, 0)

        updates = (clear(rows.updates) * weights[:, :, 0, :, None]).reshape(B, K, -1, P, Dv)
        added = product("bkpd,bkgpe->bkgde", clear(rows.keys), updates).reshape(B, H, Dk, Dv)
        return DeltaState(self.memory * whole[..., None] + added, newest(self.inputs, rows.inputs, count))


def path_decays(mask: jax.Array, decays: jax.Array) -> tuple[jax.Array, jax.Array]:
    """a_ij float32 [B, H, N, M], zero for a row j that node i does not see, and a_i [B, H, N].

    The products are sums of logarithms from the end of the path back, without differences. So those
    near 1, which matter, are the most precise.

    Args:
      mask: bool [B, N, M], the rows of the path to each node, its own included.
      decays: float32 [B, H, M], log alpha of each row.
    """
    on_path = jnp.where(mask[:, None], decays[:, :, None], 0)
    return jnp.where(mask[:, None], jnp.exp(_sum_after(on_path)), 0), jnp.exp(on_path.sum(-1))


def lags(mask: jax.Array) -> jax.Array:
    """Int32 [B, N, M], the number of rows on the path to each node that follow each row.

    ``mask`` is as in ``path_decays``.
    """
    return _sum_after(mask.astype(jnp.int32))


def _sum_after(x: jax.Array) -> jax.Array:
    """For each entry of x [..., M] the sum of the entries after it."""
    after = jnp.concatenate([x[..., 1:], jnp.zeros_like(x[..., :1])], -1)
    return lax.cumsum(after, after.ndim - 1, reverse=True)


def product(form: str, *arrays: jax.Array) -> jax.Array:
    """``einsum`` of float32 arrays with all their digits. Errors in a state would stay in it."""
    return jnp.einsum(form, *arrays, precision=lax.Precision.HIGHEST)
