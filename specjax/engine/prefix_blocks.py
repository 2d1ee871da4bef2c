"""Blocks of a prompt that is read: what later prompts with the same beginning need not read again.

A block has the keys, values and taps of ``BLOCK`` tokens. They depend on these tokens and on those
before them. A recurrent state is valid after exactly the tokens that it has read, so the states
are apart, and only some blocks have them. Pure functions for the device.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..core.recurrence import State
from ..loop.prefill import Filled

BLOCK = 16
"""Tokens of a block."""


class Block(NamedTuple):
    """One block of one row.

    Attributes:
      layers: for each layer its keys and values [1, K, BLOCK, D]; () for a recurrent layer.
      taps: float32 [1, BLOCK, E] each.
    """

    layers: tuple
    taps: tuple


def take_blocks(filled: Filled, start: jax.Array, *, count: int) -> tuple[Block, ...]:
    """The ``count`` blocks of a row from place ``start`` on."""
    arrays = _arrays(filled)

    def take(i: int) -> Block:
        cut = lambda axis: lambda leaf: lax.dynamic_slice_in_dim(leaf, start + i * BLOCK, BLOCK, axis)
        return Block(jax.tree.map(cut(2), arrays.layers), jax.tree.map(cut(1), arrays.taps))

    return tuple(map(take, range(count)))


def put_blocks(filled: Filled, blocks: tuple[Block, ...], start: jax.Array) -> Filled:
    """The row with ``blocks`` from place ``start`` on. Donate ``filled``."""
    arrays = _arrays(filled)
    for i, block in enumerate(blocks):
        put = lambda axis: lambda old, new: lax.dynamic_update_slice_in_dim(old, new, start + i * BLOCK, axis)
        arrays = Block(jax.tree.map(put(2), arrays.layers, block.layers), jax.tree.map(put(1), arrays.taps, block.taps))
    layers = [new or old for old, new in zip(filled.cache.layers, arrays.layers)]
    return filled._replace(cache=filled.cache.replace(layers=tuple(layers)), taps=arrays.taps)


def has_states(filled: Filled) -> bool:
    """Whether a row has recurrent states."""
    return any(isinstance(layer, State) for layer in filled.cache.layers)


def take_states(filled: Filled) -> Any:
    """Copies of the recurrent states of a row, by the numbers of their layers."""
    return jax.tree.map(jnp.copy, {i: x for i, x in enumerate(filled.cache.layers) if isinstance(x, State)})


def put_states(filled: Filled, states: dict) -> Filled:
    """The row with copies of ``states``."""
    states = jax.tree.map(jnp.copy, states)
    layers = tuple(states.get(i, layer) for i, layer in enumerate(filled.cache.layers))
    return filled._replace(cache=filled.cache.replace(layers=layers))


def _arrays(filled: Filled) -> Block:
    """All tokens of a row in the form of a block."""
    layers = tuple(() if isinstance(layer, State) else layer for layer in filled.cache.layers)
    return Block(layers, filled.taps)
