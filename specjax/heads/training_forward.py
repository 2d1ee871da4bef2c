"""Heads over whole texts, for training and planning.

All rows of a text are read in one call for each step. Drafting, in contrast, continues row by row.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp

from ..models.attention import Seen
from ..models.decoder import Decoder, Output
from .base import HeadModule, RowModule


def read_target(target: Decoder, tokens: jax.Array, taps: tuple[int, ...] = ()) -> Output:
    """The target's output for tokens int32 [B, S], without key/value rows or gradients."""
    S = tokens.shape[1]
    positions = jnp.broadcast_to(jnp.arange(S), tokens.shape)
    return jax.lax.stop_gradient(target(tokens, positions, Seen.causal(S), taps=taps).replace(rows=()))


def unroll(
    head: HeadModule, target: Decoder, features: jax.Array, tokens: jax.Array, steps: int
) -> Iterator[tuple[RowModule, jax.Array]]:
    """Yields for each step the module of the head that runs, and its hidden states [B, N, E].

    The first step reads the target's ``features`` float32 [B, N, E], each further step the hidden
    states of the step before. In step s, row i reads token s + i of ``tokens``, int32 [B, at least
    N + steps - 1]. A P-EAGLE head reads its mask in all steps but the first.

    In its first step a module sees its own rows 0 to i from row i, as it does when it drafts with a
    cache. The last module repeats for all further steps. In its c-th repetition row i is at
    position i + c. It sees rows 0 to i of the module's first step, and row i alone of each
    repetition. ``Seen`` describes this without a matrix of rows by rows.
    """
    B, N = features.shape[:2]
    rows, mask = None, head.mask(target)
    for s in range(steps):
        k = min(s, len(head.modules) - 1)
        again = s - k
        positions = jnp.broadcast_to(jnp.arange(N) + again, (B, N))
        seen = Seen.causal(N) if again == 0 else Seen.causal(N).replace(inner=jnp.ones((1, again), bool))
        read = tokens[:, s : s + N]
        if mask is not None and s:
            read, features = jnp.full_like(read, mask[0]), jnp.broadcast_to(mask[1], features.shape)
        out = head.modules[k](target, read, features, positions, seen, rows=rows if again else None)
        features, rows = out.hidden, out.rows
        yield head.modules[k], out.hidden
