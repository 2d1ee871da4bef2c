"""Reading of several prompts in one forward, each from a place of its own on."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from ..core.blocks import Blocks, is_blocks, map_arrays
from ..core.settings import own_settings
from .prefill import Filled, Reads, fill_piece

_HOLLOW = Blocks(None, None)


@own_settings()
def fill_together(
    model: Reads, tokens, lengths, rows: Sequence[Filled], starts: jax.Array, chunk: int, taps: tuple[int, ...] = ()
) -> tuple[Filled, ...]:
    """``fill_chunk`` for P prompts, each of them a ``Filled`` of one row.

    Several must have their keys and values in ``Blocks``, because arrays would be copied. Those of
    the first row have the tables of all rows. The taps of each row are written in place.

    Args:
      tokens, lengths: int32 [P, T] and [P].
      starts: int32 [P], the first place of each row's chunk.
    """
    whole = join_rows([row._replace(taps=()) for row in rows])
    piece = jnp.take_along_axis(tokens, starts[:, None] + jnp.arange(chunk), 1, mode="clip")
    read = fill_piece(model, piece, lengths, whole, starts, taps)

    def take(b: int) -> Filled:
        put = lambda old, new: lax.dynamic_update_slice_in_dim(old, new, starts[b], 1)
        own = map_arrays(lambda leaf: leaf[b : b + 1] if not is_blocks(leaf) else leaf if b == 0 else _HOLLOW, read)
        return own._replace(taps=tuple(map(put, rows[b].taps, own.taps)))

    return tuple(map(take, range(len(rows))))


def join_rows(rows: Sequence):
    """Pytrees of one row as a pytree of all rows, whose ``Blocks`` are those of the first."""
    return map_arrays(lambda *leaves: leaves[0] if is_blocks(leaves[0]) else jnp.concatenate(leaves), *rows)
