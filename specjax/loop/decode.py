"""The round and the loop: propose a tree, score it in one forward, accept a path, commit it.

Invariants:
  The root is a row's newest token, ``tokens[b, cache.length[b]]``. It is never in the cache.
  The cache holds the target's keys and values of the ``cache.length`` tokens before the root.
  A finished row commits nothing.
  The tokens of a row depend neither on its neighbours nor on how many rounds one call runs.

Functions are pure. ``drafter`` and ``rule`` are static, ``target`` and ``draft`` are pytrees.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from ..core.cache import commit as commit_rows
from ..core.logprobs import record
from ..core.sampling import probabilities
from ..core.settings import own_settings
from ..core.state import DecodeState
from ..core.tree import Tree, ancestors
from ..core.verdict import Verdict
from ..models.base import Model, Scored
from ..parallel import split_nodes, whole_nodes
from ..rules.acceptance import accept as accept_path
from ..rules.acceptance import seen_options
from .drafter import Drafter
from .ending import cut_at_end, has_failed
from .jump_forward import jump_or, may_jump


class Round(struct.PyTreeNode):
    """The results of a round, before any of them is written.

    Attributes:
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
def run(target: Model, draft, state: DecodeState, until, *, drafter: Drafter, rule: Callable) -> DecodeState:
    """Runs rounds until all rows are done or ``state.round`` is ``until``. Donate ``state``.

    A method that chooses a shape of drafts for each round chooses here, see ``Chooser``. Rows with
    constraints may jump forward, see ``jump_or``.
    """
    chooser = drafter.chooser
    jumps = may_jump(state, rule)
    one_round = partial(step, target, draft, rule=rule)
    is_unfinished = lambda state: jnp.any(~state.done) & (state.round < until)
    repeats = (lambda state: jnp.bool(False)) if jumps else is_unfinished  # each round may be a jump
    choose = lambda state: chooser.choose_and_run(one_round, target, draft, state, repeats)
    method_round = choose if chooser else partial(one_round, drafter=drafter)
    jump = lambda state: jump_or(method_round, partial(step, target, draft), state, drafter=drafter, rule=rule)
    return lax.while_loop(is_unfinished, jump if jumps else method_round, state)


@own_settings()
def step(target: Model, draft, state: DecodeState, *, drafter: Drafter, rule: Callable) -> DecodeState:
    """One round: every unfinished row emits between one and ``drafter.depth + 1`` tokens.

    This is Algorithm 1 of Leviathan et al. 2023, for trees and for batches. A method that chooses
    shapes drafts with its largest one.
    """
    propose_key, accept_keys = round_keys(state, drafter.depth + 1)
    tree, drafted = propose(target, draft, state, propose_key, drafter=drafter)
    scored = score(target, tree, state, drafter.taps, drafted)
    p, verdict, failed = accept(target, tree, scored, state, accept_keys, rule=rule)
    return commit(target, draft, state, Round(tree, drafted, scored, p, verdict, failed), drafter=drafter)


@own_settings()
@jax.named_scope("propose")
def propose(target: Model, draft, state: DecodeState, key: jax.Array, *, drafter: Drafter) -> tuple[Tree, Any]:
    """A tree below each row's root, and the drafter's state for ``commit``. ``key``: [B]."""
    tree, drafted = drafter.propose(target, draft, state, key)
    return whole_nodes(tree), drafted


@own_settings()
@jax.named_scope("score")
def score(target: Model, tree: Tree, state: DecodeState, taps: tuple = (), drafted: Any = None) -> Scored:
    """The target's output, logits included, for every node of a batched tree, leaves [B, N, ...].

    ``drafted``: the drafter's state after ``propose``, which may hold results of the first layers.
    """
    mask = jax.vmap(ancestors)(tree)
    positions = state.cache.length[:, None] + mask.sum(-1) - 1
    computed = getattr(drafted, "computed", None)
    out = target(split_nodes(tree.tokens), positions, mask, state.cache, taps=taps, computed=computed)
    return Scored(out.hidden, out.rows, out.taps, logits=target.logits(split_nodes(out.hidden)))


@own_settings()
@jax.named_scope("accept")
def accept(target: Model, tree: Tree, scored: Scored, state: DecodeState, keys, *, rule: Callable) -> tuple:
    """``p``, ``verdict`` and ``failed`` of ``Round``. ``keys``: [B, places], see ``round_keys``."""
    sampling = state.request.sampling
    seeded = state.request.seeded
    p = probabilities(scored.logits, seen_options(rule, sampling), state.target_context(tree))
    verdict = accept_path(rule, p, tree, keys, sampling.temperature, state.counters, seeded, target)
    return p, verdict, state.failed | has_failed(scored.logits, p, verdict)


@own_settings()
@jax.named_scope("commit")
def commit(target: Model, draft, state: DecodeState, round: Round, *, drafter: Drafter) -> DecodeState:
    """Cuts the path at the row's end, and writes it to the cache and the text."""
    tree = round.tree
    scored = round.scored
    verdict, emission = cut_at_end(state, tree, round.verdict, round.failed)
    path = None if tree.is_chain else verdict.path
    place = state.cache.length + 1
    drafted = tree.valid.sum(-1) - 1
    accepted = emission.from_draft.sum(-1)
    write = jax.vmap(lax.dynamic_update_slice)
    return state.replace(
        tokens=write(state.tokens, emission.tokens, place[:, None]),
        from_draft=write(state.from_draft, emission.from_draft, place[:, None]),
        cache=commit_rows(state.cache, scored.rows, path, state.cache.length + verdict.length, valid=~round.failed),
        drafter=drafter.commit(target, draft, state.replace(drafter=round.drafted), tree, scored, verdict),
        done=emission.done,
        failed=round.failed,
        constraint_state=emission.constraint_state,
        stop_state=emission.stop_state,
        round=state.round + 1,
        logprobs=state.logprobs
        and record(state.logprobs, scored.logits, round.p, verdict.path, emission.tokens, place),
        counters=state.counters.add(~state.done, drafted, accepted),
        rounds=state.rounds and state.rounds.add(tree, scored, round.verdict, place - 1, ~(state.done | round.failed)),
        progress=state.add_progress(drafted, accepted, verdict.length),
    )


def round_keys(state: DecodeState, places: int) -> tuple[jax.Array, jax.Array]:
    """Keys [B] for proposing and [B, places] for accepting, derived from places of the text."""

    def of_row(key, n):
        propose, accept = jax.random.split(key)
        return jax.random.fold_in(propose, n), jax.vmap(jax.random.fold_in, (None, 0))(accept, n + jnp.arange(places))

    return jax.vmap(of_row)(state.request.keys, state.cache.length)
