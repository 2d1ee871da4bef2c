"""A chain drawn token by token: what all methods share that draw from a model, be it a draft or a part of the target.

``key`` is that of ``Drafter.draft``, folded with the place in the chain.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from ... import tree
from ...context import advance
from ...sampling import adjusted, sample, warped


@struct.dataclass
class Chain:
    """A chain in the making, P nodes with the root.

    Attributes:
      tokens, valid: int32 and bool [B, P], as in ``Tree``.
      q: float32 [B, P, V], as in ``Tree``.
      states: int32 [B], the state of the constraint after the newest node.
      going: bool [B], whether the row draws another token.
    """

    tokens: jax.Array
    valid: jax.Array
    q: jax.Array
    states: jax.Array
    going: jax.Array

    @property
    def tree(self) -> tree.Tree:
        return jax.vmap(tree.chain)(self.tokens, self.q, self.valid)


def begin(state, depth: int, vocab_size: int) -> Chain:
    """The root alone, with room for ``depth`` tokens. Finished rows draw none."""
    B, root = state.done.size, jnp.arange(depth + 1) == 0
    tokens = jnp.where(root, state.root[:, None], 0)
    return Chain(tokens, jnp.broadcast_to(root, tokens.shape), jnp.zeros((B, depth + 1, vocab_size)), state.states, ~state.done)


def draw(chain: Chain, logits: jax.Array, i, state, key, least: jax.Array | None = None) -> Chain:
    """The chain with node i + 1, from the logits [B, 1, V] after node i.

    Where the likeliest token's probability, before temperature and truncation, lies below ``least`` float32 [B], node i + 1 is the
    row's last.
    """
    B, P = chain.tokens.shape
    place = jnp.arange(P)
    path = jnp.broadcast_to((place > 0) & (place <= i), (B, 1, P))
    context = state.context(chain.tokens, path, chain.states[:, None])
    logits = adjusted(logits.astype(jnp.float32), state.sampling, context)
    q = warped(logits, state.sampling)[:, 0]
    token = sample(jax.vmap(jax.random.fold_in, (0, None))(key, i), q, state.sampling)
    states = chain.states if state.sampling.constraint is None else advance(state.sampling.constraint, chain.states, token)
    put = lambda leaf, new, at: lax.dynamic_update_slice_in_dim(leaf, new[:, None], at, 1)
    return Chain(
        tokens=put(chain.tokens, token, i + 1),
        valid=put(chain.valid, chain.going, i + 1),
        q=put(chain.q, jnp.where(chain.going[:, None], q, 0), i),
        states=states,
        going=chain.going if least is None else chain.going & (jax.nn.softmax(logits[:, 0]).max(-1) >= least),
    )


def grow(chain: Chain, start: int, read: Callable, rows: Any, state, key, least: jax.Array | None = None) -> tuple[Chain, Any, jax.Array]:
    """Reads and draws from node ``start`` on, until the chain is full; with ``least`` until no row goes on.

    ``read(i, token [B, 1], rows) -> logits [B, 1, V], rows`` reads node i, which is beside the rows of those before it.
    Returns the chain, the rows, and int32, the first node that was not read.
    """
    P = chain.tokens.shape[1]

    def unfinished(carry):
        i, chain, _ = carry
        return (i < P - 1) if least is None else (i < P - 1) & chain.going.any()

    def turn(carry):
        i, chain, rows = carry
        logits, rows = read(i, lax.dynamic_slice_in_dim(chain.tokens, i, 1, 1), rows)
        return i + 1, draw(chain, logits, i, state, key, least), rows

    i, chain, rows = lax.while_loop(unfinished, turn, (jnp.int32(start), chain, rows))
    return chain, rows, i
