"""A head reads a whole text at once.

Training and planning use this; drafting continues one row at a time.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp

from ..models.attention import Seen
from ..models.decoder import Decoder, Output
from .base import HeadModule


def read_target(target: Decoder, tokens: jax.Array, taps: tuple[int, ...] = ()) -> Output:
    """The target's output for tokens int32 [B, S], without key/value rows.

    No gradient flows into the target.
    """
    S = tokens.shape[1]
    positions = jnp.broadcast_to(jnp.arange(S), tokens.shape)
    return jax.lax.stop_gradient(target(tokens, positions, Seen.causal(S), taps=taps).replace(rows=()))


def unroll(
    head: HeadModule, target: Decoder, features: jax.Array, tokens: jax.Array, steps: int
) -> Iterator[tuple[HeadModule, jax.Array]]:
    """Yields for each step a module of the head and its hidden states float32 [B, N, E].

    The head begins with the target's ``features`` [B, N, E] and continues its own hidden states. In
    step s, row i reads token s + i of ``tokens`` int32 [B, at least N + steps - 1].

    Each module sees its own rows up to i, at positions 0 to i, because its cache holds these rows
    when it drafts. When the last module is used again, for the c-th time, row i is at position i +
    c. Of these repeated steps it sees row i alone, its own chain. Positions of a chain are compared
    with the positions it grew from, so that no matrix of rows by rows is needed. A P-EAGLE head
    reads its mask in all steps but the first.
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
