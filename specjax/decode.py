"""The round and the loop: propose a tree, score it in one forward, accept a path, commit it.

Invariants:
  The root is a row's newest token, ``tokens[b, cache.length[b]]``. It is never in the cache.
  The cache holds the target's keys and values of the ``cache.length`` tokens before the root.
  A finished row commits nothing.
  The tokens of a row depend neither on its neighbours nor on how many rounds one call runs.

Functions are pure. ``drafter`` and ``rule`` are static, ``target`` and ``draft`` are pytrees.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from .cache import commit as commit_rows
from .conditional import run_if
from .drafter import Drafter
from .ending import cut_at_end, has_failed
from .logprobs import record
from .models.base import Model, Scored
from .parallel import split_nodes, whole_nodes
from .sampling import probabilities
from .settings import own_settings
from .state import DecodeState
from .tree import Tree, ancestors
from .verify import Verdict, accept, seen_options


class Round(struct.PyTreeNode):
    """The results of a round, before any of them is written.

    Attributes:
      tree: the proposed tree.
      drafted: the drafter's state between ``propose`` and ``commit``.
      scored: the target's output for every node.
      p: float32 [B, N, V], the target's distribution after each node.
      verdict: the rule's verdict, before it is cut at the row's end.
      failed: bool [B], whether the row has failed in this round or before, see ``has_failed``.
    """

    tree: Tree
    drafted: Any
    scored: Scored
    p: jax.Array
    verdict: Verdict
    failed: jax.Array


@own_settings()
def step(target: Model, draft, state: DecodeState, *, drafter: Drafter, rule: Callable) -> DecodeState:
    """One round: every unfinished row emits between one and ``drafter.depth + 1`` tokens."""
    return _rounds(target, draft, state, lambda state: jnp.bool(False), drafter, rule)


def _rounds(
    target: Model, draft, state: DecodeState, goes_on: Callable, drafter: Drafter, rule: Callable
) -> DecodeState:
    """One round, and more rounds while ``goes_on(state)`` and the drafter holds its choice of a shape.

    For a drafter with several shapes of drafts, one round is compiled for each, and one of them runs.
    """

    def do_round(state: DecodeState, prepared=None, drafter=drafter) -> DecodeState:
        if prepared is not None:
            state = state.replace(drafter=state.drafter.replace(prepared=prepared))
        found = propose_and_accept(target, draft, state, drafter=drafter, rule=rule)
        return commit(target, draft, state, found, drafter=drafter)

    if len(drafter.shapes) < 2:
        return do_round(state)
    state, prepared, chosen = drafter.begin(target, draft, state)
    for shape in drafter.shapes:
        own, wanted = drafter.at_shape(shape), jnp.array([choice == shape for choice in drafter.choices])[chosen]

        def add_round(state, prepared=prepared, own=own):
            after = do_round(state, prepared, own)
            counters = after.counters.add_choice(~state.done, chosen, after.length - state.length)
            return after.replace(counters=counters)

        if own.holds(state) is None:
            state = run_if(wanted, add_round, state)
            continue
        nothing = jax.tree.map(jnp.zeros_like, prepared)
        state = lax.while_loop(
            lambda loop: loop[0] | wanted & goes_on(loop[2]) & own.holds(loop[2]),
            lambda loop: (jnp.bool(False), nothing, add_round(loop[2], loop[1])),
            (wanted, prepared, state),
        )[2]
    return state


@own_settings()
def propose_and_accept(target: Model, draft, state: DecodeState, *, drafter: Drafter, rule: Callable) -> Round:
    """The first half of a round: proposes a tree, scores it in one forward and accepts a path."""
    propose_key, accept_keys = round_keys(state, drafter.depth + 1)
    with jax.named_scope("propose"):
        tree, drafted = drafter.propose(target, draft, state, propose_key)
        tree = whole_nodes(tree)
    with jax.named_scope("score"):
        scored = score(target, tree, state, drafter.taps, drafter.computed_layers(drafted))
    with jax.named_scope("accept"):
        sampling = state.request.sampling
        p = probabilities(scored.logits, seen_options(rule, sampling), state.tree_context(tree))
        seeded = state.request.seeded
        verdict = accept(rule, p, tree, accept_keys, sampling.temperature, state.counters, seeded, target)
    return Round(tree, drafted, scored, p, verdict, state.failed | has_failed(scored.logits, p, verdict))


@own_settings()
@jax.named_scope("commit")
def commit(target: Model, draft, state: DecodeState, found: Round, *, drafter: Drafter) -> DecodeState:
    """The second half: cuts the path at the row's end, and writes it to the cache and the text."""
    tree, scored, p, going = found.tree, found.scored, found.p, ~(state.done | found.failed)
    verdict, emission = cut_at_end(state, tree, found.verdict, found.failed)
    path = None if tree.is_chain else verdict.path
    length, place = state.cache.length + verdict.length, state.cache.length + 1
    write = jax.vmap(lax.dynamic_update_slice)
    drafted, accepted = tree.valid.sum(-1) - 1, emission.from_draft.sum(-1)
    return state.replace(
        tokens=write(state.tokens, emission.tokens, place[:, None]),
        from_draft=write(state.from_draft, emission.from_draft, place[:, None]),
        cache=commit_rows(state.cache, scored.rows, path, length, valid=~found.failed),
        drafter=drafter.commit(target, draft, state.replace(drafter=found.drafted), tree, scored, verdict),
        done=emission.done,
        failed=found.failed,
        constraint_state=emission.constraint_state,
        stop_state=emission.stop_state,
        round=state.round + 1,
        logprobs=state.logprobs and record(state.logprobs, scored.logits, p, verdict.path, emission.tokens, place),
        counters=state.counters.add(~state.done, drafted, accepted),
        rounds=state.rounds and state.rounds.add(tree, scored, found.verdict, place - 1, going),
        progress=state.add_progress(drafted, accepted, verdict.length),
    )


@own_settings()
def run(target: Model, draft, state: DecodeState, until, *, drafter: Drafter, rule: Callable) -> DecodeState:
    """Runs rounds until all rows are done or ``state.round`` is ``until``. Donate ``state``."""

    def is_unfinished(state):
        return jnp.any(~state.done) & (state.round < until)

    return lax.while_loop(
        is_unfinished, lambda state: _rounds(target, draft, state, is_unfinished, drafter, rule), state
    )


def score(target: Model, tree: Tree, state: DecodeState, taps: tuple = (), computed: tuple | None = None) -> Scored:
    """The target's output, logits included, for every node of a batched tree, leaves [B, N, ...].

    ``computed``: results of the first layers, if the drafter has run them already; see ``Model``.
    """
    mask = jax.vmap(ancestors)(tree)
    positions = state.cache.length[:, None] + mask.sum(-1) - 1
    out = target(split_nodes(tree.tokens), positions, mask, state.cache, taps=taps, computed=computed)
    return Scored(out.hidden, out.rows, out.taps, logits=target.logits(split_nodes(out.hidden)))


def round_keys(state: DecodeState, places: int) -> tuple[jax.Array, jax.Array]:
    """Keys [B] for proposing and [B, places] for accepting, derived from places of the text."""

    def of_row(key, n):
        propose, accept = jax.random.split(key)
        return jax.random.fold_in(propose, n), jax.vmap(jax.random.fold_in, (None, 0))(accept, n + jnp.arange(places))

    return jax.vmap(of_row)(state.request.keys, state.cache.length)
