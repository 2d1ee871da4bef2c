"""The products of nodes with the experts that they chose.

The choices are sorted by expert into tiles of a few nodes, and a loop computes one tile after
another. It reads the chosen experts only, has static shapes, and gives each node the same sum in
any batch, up to rounding. XLA for TPU would copy all weights [out, in] for ``jax.lax.ragged_dot``.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ...kernels.cpu import product as product_kernel
from .. import quantised_products
from ..layers import linear
from ..quantised_weights import Quantised

_SMALLEST_TILE, _LARGEST_TILE = 4, 32
"""Places of a tile. A read of weights takes as long as their product with a few nodes."""


EXPECTED_TIMES = "about_{:.3f}_times"
"""The scope of a loop, which tells planning how often it is expected to run."""


class Weights(NamedTuple):
    """The weights of X experts:

    ``gate`` and ``up`` [X, F, E], ``down`` [X, E, F], biases [X, F] or None.

    The matrices may be ``Quantised``.
    """

    gate: jax.Array | Quantised
    up: jax.Array | Quantised
    down: jax.Array | Quantised
    gate_bias: jax.Array | None = None
    up_bias: jax.Array | None = None


UNIT_AXES = 1, 1, 2, 1, 1
"""The axis F of each of the ``Weights``."""


def multiply_chosen(x: jax.Array, chosen: jax.Array, share: jax.Array, weights: Weights, clamp=None) -> jax.Array:
    """The sum of each node's experts, float32 [B, N, E], without the biases of ``down``.

    Args:
      x: float32 [B, N, E].
      chosen: int32 [B, N, k], the experts of each node.
      share: float32 [B, N, k], their weights.
      clamp: see ``ExpertsConfig.clamp``.
    """
    flat = lambda a: a.reshape(-1, a.shape[-1])
    return _multiply(clamp, flat(x), flat(chosen), flat(share), weights).reshape(x.shape)


def _sum_of_chosen(clamp, x, chosen, share, weights: Weights) -> jax.Array:
    """The loop over tiles, in the form of the platform.

    A GPU would wait for the host in each iteration of a loop whose end depends on the data. There
    the loop runs through all tiles, and empty tiles read one expert again, from the cache.
    """
    form = partial(in_tiles, clamp)
    to_the_end = partial(in_tiles, clamp, ends=False)
    return lax.platform_dependent(x, chosen, share, weights, cuda=to_the_end, rocm=to_the_end, default=form)


def in_tiles(clamp, x, chosen, share, weights: Weights, *, ends: bool = True) -> jax.Array:
    """The sums float32 [n, E] for nodes x [n, E].

    The loop ends after the last tile in use, if it ``ends``.
    """
    k, X = chosen.shape[1], weights.gate.shape[0]
    size = tile_size(len(x), k, X)
    tiles = make_tiles(chosen, X, size)
    x = x.astype(weights.gate.dtype)

    def run(t, results):
        rows = x[lax.dynamic_slice_in_dim(tiles.nodes, t * size, size)]
        return lax.dynamic_update_slice_in_dim(results, _expert(rows, weights, tiles.expert[t], clamp), t * size, 0)

    count = tiles.count if ends else len(tiles.expert)
    with jax.named_scope(EXPECTED_TIMES.format(expected_experts(X, k, len(x)))):
        results = lax.fori_loop(0, count, run, jnp.zeros((len(tiles.nodes), x.shape[1]), jnp.float32))
    return jnp.einsum("nk,nke->ne", share, results[tiles.place])


def _expert(rows: jax.Array, weights: Weights, number: jax.Array, clamp) -> jax.Array:
    """``down (act(gate x) * up x)`` of one expert for rows [n, E]."""
    gate = _linear(rows, weights.gate, weights.gate_bias, number)
    units = activate(gate, _linear(rows, weights.up, weights.up_bias, number), clamp)
    return _linear(units, weights.down, None, number)


def _linear(rows: jax.Array, weights: jax.Array | Quantised, biases: jax.Array | None, number: jax.Array) -> jax.Array:
    """``layers.linear`` with one of the matrices [X, out, in]."""
    by_slice = lambda rows, weights, number: linear(rows, weights[number])
    if isinstance(weights, Quantised):
        y = quantised_products.multiply(rows, weights, number)
    elif product_kernel.fits(rows, weights):
        kernel = lambda rows, weights, number: product_kernel.product(
            rows.astype(weights.dtype), weights, number=number
        )
        y = lax.platform_dependent(rows, weights, number, cpu=kernel, default=by_slice)
    else:
        y = by_slice(rows, weights, number)
    return y if biases is None else y + biases[number].astype(jnp.float32)


def activate(gate: jax.Array, up: jax.Array, clamp: tuple[float, float] | None) -> jax.Array:
    """The units of gate and up: ``silu(gate) * up``, or gpt-oss's clamped units."""
    if clamp is None:
        return jax.nn.silu(gate) * up
    alpha, limit = clamp
    gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
    return gate * jax.nn.sigmoid(alpha * gate) * (up + 1)


def expected_experts(count: int, chosen: int, nodes: int) -> float:
    """How many of X experts n nodes read, if each chooses any k with equal chance:

    X (1 - (1 - k / X)^n).

    The nodes of a text choose alike more often, so they read fewer.
    """
    return count * (1 - (1 - chosen / count) ** nodes)


class Tiles(NamedTuple):
    """Choices sorted by expert, in T tiles of m places. A tile has choices of one expert.

    Attributes:
      nodes: int32 [T * m], the node at each place; any node at empty places.
      expert: int32 [T].
      count: int32, the number of tiles in use, which come first.
      place: int32 [n, k], where each choice lies.
    """

    nodes: jax.Array
    expert: jax.Array
    count: jax.Array
    place: jax.Array


def tile_size(nodes: int, chosen: int, count: int) -> int:
    """Places of a tile: about the mean number of nodes of an expert.

    The number is a power of two, and no more than ``nodes``.
    """
    mean = -(-nodes * chosen // count)
    return min(1 << (nodes - 1).bit_length(), max(_SMALLEST_TILE, 1 << (mean - 1).bit_length()), _LARGEST_TILE)


def make_tiles(chosen: jax.Array, count: int, size: int) -> Tiles:
    """The tiles of ``size`` places for choices int32 [n, k] among ``count`` experts.

    There is room for all choices, however they fall: each expert that is chosen has at most one
    tile that is not full.
    """
    n, k = chosen.shape
    of_choice, t = chosen.reshape(-1), jnp.arange(min(n * k, count + n * k // size))
    order = jnp.argsort(of_choice, stable=True)
    sizes = (of_choice[:, None] == jnp.arange(count)).sum(0)
    tiles = -(-sizes // size)
    first_tile, first_choice = (jnp.cumsum(x) - x for x in (tiles, sizes))
    expert = (first_tile + tiles <= t[:, None]).sum(1).clip(max=count - 1)
    sorted_choice = (first_choice[expert] + (t - first_tile[expert]) * size)[:, None] + jnp.arange(size)
    nodes = (order // k)[sorted_choice.reshape(-1).clip(max=n * k - 1)]
    place = first_tile[of_choice] * size + jnp.argsort(order) - first_choice[of_choice]
    return Tiles(nodes, expert, tiles.sum(), place.reshape(n, k))


def dense(clamp, x, chosen, share, weights: Weights) -> jax.Array:
    """Every node with every expert, one expert after another.

    The backward pass computes the units again.
    """

    @jax.checkpoint
    def add(y, one):
        w, number = one
        units = activate(linear(x, w.gate, w.gate_bias), linear(x, w.up, w.up_bias), clamp)
        of_nodes = jnp.where(chosen == number, share, 0).sum(-1, keepdims=True)
        return y + of_nodes * linear(units, w.down), None

    return lax.scan(add, jnp.zeros_like(x), (weights, jnp.arange(weights.gate.shape[0])))[0]


_multiply = jax.custom_vjp(_sum_of_chosen, nondiff_argnums=(0,))


def _forward(clamp, *operands):
    return _multiply(clamp, *operands), operands


def _backward(clamp, operands, cotangent):
    """The gradients of the dense form. A loop that ends by its data has none."""
    x, chosen, share, weights = operands
    _, pull = jax.vjp(lambda x, share, weights: dense(clamp, x, chosen, share, weights), x, share, weights)
    of_x, of_share, of_weights = pull(cotangent)
    return of_x, None, of_share, of_weights


_multiply.defvjp(_forward, _backward)
