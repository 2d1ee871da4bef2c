"""Adjustments of logits by a node's history: bias, penalties, minimal lengths and constraints."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from .ask_host import ask_host
from .context import Context


class Automaton(Protocol):
    """The tables of the automata of all rows, see ``requests.constraint.Automaton``."""

    @property
    def next(self) -> jax.Array: ...
    @property
    def classes(self) -> jax.Array: ...
    @property
    def shortest(self) -> jax.Array: ...
    @property
    def longest(self) -> jax.Array: ...


@jax.jit
def penalise(
    logits: jax.Array,
    context: Context,
    *,
    bias: jax.Array,
    repetition_penalty: jax.Array,
    presence_penalty: jax.Array,
    frequency_penalty: jax.Array,
    min_new_tokens: jax.Array,
) -> jax.Array:
    """Logits float32 [B, N, V] after bias, penalties and ``min_new_tokens``.

    ``SamplingParams`` describes these options.

    All nodes of a row share the histogram of its text. Only the tokens on a node's path have other
    counts. Their few logits are computed apart and written over the others.
    """
    # 1. The tokens of each row that would end it too early.
    V = logits.shape[-1]
    rows = jnp.arange(logits.shape[0])[:, None, None]
    nodes = jnp.arange(logits.shape[1])[:, None]
    drafted = context.nodes[:, None]
    early = (context.generated < min_new_tokens[:, None])[..., None]
    stop_ids = jnp.where(context.stop_ids < 0, V, context.stop_ids)
    stops = jnp.zeros((logits.shape[0], V), bool).at[rows[:, 0], stop_ids].set(True, mode="drop")

    def penalise_tokens(logits, bias, occurs, count, stops):
        logits = logits + bias
        repetition = jnp.where(occurs, repetition_penalty[:, None, None], 1)
        logits = jnp.where(logits < 0, logits * repetition, logits / repetition)
        presence = presence_penalty[:, None, None] * jnp.float32(count > 0)
        logits = logits - (frequency_penalty[:, None, None] * count + presence)
        return jnp.where(early & stops, -jnp.inf, logits)

    # 2. The logits of the tokens on each path.
    text, output = context.text_counts(V)
    of_row = (jnp.broadcast_to(bias, stops.shape), text > 0, output, stops)  # each [B, V]
    bias, _, counts, stopping = (jnp.take_along_axis(table[:, None], drafted, 2) for table in of_row)  # [B, 1, M]
    on_path = jnp.take_along_axis(logits, drafted, 2)  # [B, N, M]
    on_path = penalise_tokens(on_path, bias, True, counts + context.path_counts, stopping)

    # 3. The logits of all tokens, then those on the path over them.
    logits = penalise_tokens(logits, *(table[:, None] for table in of_row))
    return logits.at[rows, nodes, jnp.where(context.path, drafted, V)].set(on_path, mode="drop")


class RowConstraints(struct.PyTreeNode):
    """The constraints of all rows. A row has an automaton, a grammar or neither.

    Attributes:
      table: the automata, on the device; None if no row has one.
      write_masks, write_forced: the functions of the host that know the rows' grammars, see
        ``requests.grammar_masks``; None if no row has one. Static.
    """

    table: Automaton | None = None
    write_masks: Callable | None = struct.field(pytree_node=False, default=None)
    write_forced: Callable | None = struct.field(pytree_node=False, default=None)


@jax.jit
def constrain(logits: jax.Array, context: Context, constraint: RowConstraints, min_new_tokens: jax.Array) -> jax.Array:
    """Logits float32 [B, N, V] with minus infinity at the tokens that the constraints forbid.

    An automaton forbids a token if no completion after it meets the constraint, ``min_new_tokens``
    and the row's limit. A grammar forbids a token if no text of any length completes it. A node
    whose path has broken the constraint keeps its logits, because it is never reached.
    """
    if constraint.table is not None:
        logits = jnp.where(_allowed_by_table(context, constraint.table, min_new_tokens), logits, -jnp.inf)
    if constraint.write_masks is not None and context.grammars is not None:
        allowed = _allowed_by_host(context, context.grammars, constraint.write_masks, logits.shape)
        logits = jnp.where(allowed, logits, -jnp.inf)
    return logits


def _allowed_by_table(context: Context, automaton: Automaton, min_new_tokens: jax.Array) -> jax.Array:
    """Bool [B, N, V], the tokens that the automata allow after each node."""
    after = automaton.next[jnp.maximum(context.states, 0)]  # [B, N, C]
    reached = jnp.maximum(after, 0)
    least = min_new_tokens[:, None] - context.generated - 1
    room = context.limit[:, None] - context.length[:, None] - context.path.sum(-1) - 1
    long_enough = automaton.longest[reached] >= least[..., None]
    short_enough = automaton.shortest[reached] <= room[..., None]
    allowed = (after >= 0) & long_enough & short_enough
    allowed = (allowed | (context.states < 0)[..., None])[..., automaton.classes]
    return allowed | ~allowed.any(-1, keepdims=True)


def _allowed_by_host(context: Context, grammars: jax.Array, write_masks: Callable, shape: tuple[int, ...]) -> jax.Array:
    """Bool [B, N, V], the tokens that the grammars allow after each node.

    The masks do not depend on the logits, so that the host may find them while the target scores.
    It is not asked if no row has a grammar.
    """
    B, N, V = shape
    words = -(-V // 32)
    node = jnp.arange(N)
    parent = jnp.where(context.path & (node != node[:, None]), node, 0).max(-1)
    numbers = jnp.stack([grammars, context.prompt_length, context.length, jnp.full_like(grammars, N)], 1)
    asked = jnp.concatenate([numbers, context.nodes, parent, context.tokens], 1)
    result = jax.ShapeDtypeStruct((B, N * words), jnp.uint32)
    allow_all = lambda asked: jnp.full(result.shape, 0xFFFFFFFF, jnp.uint32)
    masks = lax.cond(jnp.any(grammars > 0), partial(ask_host, write_masks, result), allow_all, asked)
    masks = masks.reshape(B, N, words)
    bits = masks[..., None] >> jnp.arange(32, dtype=jnp.uint32) & 1
    return (bits > 0).reshape(B, N, -1)[..., :V]
