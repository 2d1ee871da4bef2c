"""Chains that are drawn token by token, from a draft, a head or a part of the target.

``key`` is the key [B] of ``Drafter.propose``, which is folded with the place in the chain; or keys
[B, D], one for each place.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from ...core import tree
from ...core.automata import advance
from ...core.sampling import adjust, sample, warp


class Chain(struct.PyTreeNode):
    """An unfinished chain of P nodes, root included.

    Attributes:
      tokens, valid: int32 and bool [B, P], as in ``Tree``.
      q: float32 [B, P, V], as in ``Tree``.
      states: int32 [B], the state of the row's constraint after the newest node.
      going: bool [B], whether the row draws another token.
    """

    tokens: jax.Array
    valid: jax.Array
    q: jax.Array
    states: jax.Array
    going: jax.Array

    @property
    def tree(self) -> tree.Tree:
        """The batched tree of these nodes."""
        return jax.vmap(tree.chain)(self.tokens, self.q, self.valid)


def begin(state, depth: int, vocab_size: int) -> Chain:
    """A chain with the root and room for ``depth`` tokens. Finished rows draw none."""
    B = state.done.size
    root = jnp.arange(depth + 1) == 0
    tokens = jnp.where(root, state.root[:, None], 0)
    valid = jnp.broadcast_to(root, tokens.shape)
    q = jnp.zeros((B, depth + 1, vocab_size))
    return Chain(tokens, valid, q, state.constraint_state, ~state.done)


def draw(chain: Chain, logits: jax.Array, i, state, key, least: jax.Array | None = None) -> Chain:
    """The chain with node i + 1 added, drawn from the logits [B, 1, V] after node i.

    ``least``: float32 [B]. Node i + 1 is the row's last node if the likeliest token after node i
    has a lower probability, before temperature and truncation.
    """
    B, P = chain.tokens.shape
    options = state.request.sampling
    place = jnp.arange(P)
    path = jnp.broadcast_to((place > 0) & (place <= i), (B, 1, P))
    context = state.context(chain.tokens, path, chain.states[:, None])
    logits = adjust(logits.astype(jnp.float32), options, context)
    q = warp(logits, options)[:, 0]
    key = key[:, i] if key.ndim == 2 else jax.vmap(jax.random.fold_in, (0, None))(key, i)
    token = sample(key, q, options)
    states = advance(options.table, chain.states, token)
    put = lambda leaf, new, at: lax.dynamic_update_slice_in_dim(leaf, new[:, None], at, 1)
    return Chain(
        tokens=put(chain.tokens, token, i + 1),
        valid=put(chain.valid, chain.going, i + 1),
        q=put(chain.q, jnp.where(chain.going[:, None], q, 0), i),
        states=states,
        going=chain.going if least is None else chain.going & (jax.nn.softmax(logits[:, 0]).max(-1) >= least),
    )


def grow(
    chain: Chain,
    start: int,
    read: Callable,
    rows: Any,
    state,
    key,
    least: jax.Array | None = None,
    most: jax.Array | None = None,
) -> tuple[Chain, Any, jax.Array]:
    """Reads nodes and draws their successors, from node ``start`` on until the chain is full.

    Args:
      read: ``(i, token [B, 1], rows) -> logits [B, 1, V], rows`` reads node i. ``rows`` are those
        of the nodes before it.
      rows: the rows before node ``start``.
      least: see ``draw``. With it, the loop also ends when no row draws another token.
      most: int32, the number of tokens of this chain; by default as many as there is room for.

    Returns the chain, the rows, and int32, the first node that was not read.
    """
    P = chain.tokens.shape[1]

    def is_unfinished(carry):
        i, chain, _ = carry
        unfinished = i < (P - 1 if most is None else most)
        return unfinished if least is None else unfinished & chain.going.any()

    def extend(carry):
        i, chain, rows = carry
        logits, rows = read(i, lax.dynamic_slice_in_dim(chain.tokens, i, 1, 1), rows)
        return i + 1, draw(chain, logits, i, state, key, least), rows

    i, chain, rows = lax.while_loop(is_unfinished, extend, (jnp.int32(start), chain, rows))
    return chain, rows, i
