"""Jump-forward: the tokens that constraints force are the drafts of a round of their own.

Where a constraint allows one token alone, the target accepts it with probability one. A chain of
such tokens costs one forward and no draft. The target verifies it like any other chain.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from ..core.ask_host import ask_host
from ..core.conditional import run_if
from ..core.logit_adjustments import Automaton
from ..core.state import DecodeState
from ..core.tree import chain
from .drafter import Drafter
from .resting import Resting, can_rest, may_rest, resting_rule

MOST_FORCED = 3
"""The most forced tokens of a round. Most forced runs are shorter, and each node costs time."""


@dataclasses.dataclass(frozen=True)
class Forced(Resting):
    """Proposes forced tokens in place of a method.

    ``state.drafter`` is a pair: the method's state, and the tokens of ``forced_tokens``.
    """

    @property
    def depth(self) -> int:
        return min(MOST_FORCED, self.method.depth or MOST_FORCED)

    def propose(self, target, draft, state, key):
        own, forced = state.drafter
        with_root = lambda root, forced: jnp.concatenate([root[:, None], forced], 1)
        valid = with_root(jnp.ones_like(state.done), forced >= 0)
        return jax.vmap(chain)(with_root(state.root, jnp.maximum(forced, 0)), None, valid), own


def may_jump(state: DecodeState, rule: Callable) -> bool:
    """Whether rounds of forced tokens are possible.

    They need constraints and a rule that may rest. A record of rounds has only those of the method,
    so there are none where rounds are recorded.
    """
    return state.request.sampling.constraint is not None and state.rounds is None and can_rest(rule)


def jump_or(
    method_round: Callable, one_round: Callable, state: DecodeState, *, drafter: Drafter, rule: Callable
) -> DecodeState:
    """The state after a round of forced tokens, or after ``method_round(state)``.

    Use it where ``may_jump``. Forced tokens are taken if they are at least as many, over all rows,
    as the drafts that the method is expected to have accepted. For a row these are (accepted drafts
    + 1) / (rounds + 1), without the first 1 for a method that drafts nothing. Forced tokens do not
    count as drafts.

    Args:
      one_round: ``(state, drafter=..., rule=...) -> state``, a round of a method.
      rule: the method's rule.
    """
    forcing = Forced(drafter)
    forced = forced_tokens(state, forcing.depth)
    counters = state.counters
    accepted = (counters.accepted_at.sum(1) + min(drafter.depth, 1)) / (counters.calls + 1)
    least = jnp.maximum(jnp.where(state.done, 0.0, accepted).sum(), 1.0)
    has_room = jnp.max(state.length) + forcing.depth < state.tokens.shape[1]
    jumps = ((forced >= 0).sum().astype(jnp.float32) >= least) & has_room & may_rest(rule, state)

    def jump(state: DecodeState) -> DecodeState:
        before = state.replace(drafter=(state.drafter, forced))
        after = one_round(before, drafter=forcing, rule=resting_rule(rule))
        zeros = jnp.zeros_like(state.length)
        return after.replace(
            from_draft=state.from_draft,
            counters=counters.add(~state.done, zeros, zeros),
            progress=state.add_progress(zeros, zeros, after.length - state.length),
        )

    state = run_if(jumps, jump, state)
    return run_if(~jumps, method_round, state)


def forced_tokens(state: DecodeState, most: int) -> jax.Array:
    """Int32 [B, ``most``], the tokens that the rows' constraints force after the root, then -1."""
    constraint = state.request.sampling.constraint
    assert constraint is not None  # see ``may_jump``
    forced = jnp.full((state.done.size, most), -1, jnp.int32)
    if constraint.table is not None:
        forced = _forced_by_table(constraint.table, jnp.where(state.done, 0, state.constraint_state), most)
    if constraint.write_forced is not None:
        forced = _forced_by_host(state, forced, constraint.write_forced)
    return forced


def _forced_by_table(automaton: Automaton, states: jax.Array, most: int) -> jax.Array:
    """The tokens that automata force after ``states`` int32 [B]."""
    token = jnp.arange(automaton.classes.size, dtype=jnp.int32)
    classes = jnp.zeros(automaton.next.shape[1], jnp.int32)
    tokens_of = classes.at[automaton.classes].add(1)
    token_of = classes.at[automaton.classes].max(token)

    def follow(states, _):
        """The next states and the forced tokens. A choice gives -1 and state 0."""
        after = automaton.next[states]
        is_only = jnp.where(after >= 0, tokens_of, 0).sum(1) == 1
        only = jnp.argmax(after >= 0, 1)
        following = jnp.where(is_only, jnp.take_along_axis(after, only[:, None], 1)[:, 0], 0)
        return following, jnp.where(is_only, token_of[only], -1)

    return lax.scan(follow, states, None, most)[1].T


def _forced_by_host(state: DecodeState, otherwise: jax.Array, write_forced: Callable) -> jax.Array:
    """The tokens that grammars force, and ``otherwise`` [B, F] in rows without a grammar."""
    grammar = state.request.sampling.grammar
    assert grammar is not None  # set together with ``write_forced``
    grammars = jnp.where(state.done, 0, grammar)
    asked = jnp.concatenate([jnp.stack([grammars, state.prompt_length, state.length], 1), state.tokens], 1)
    answer = jax.ShapeDtypeStruct(otherwise.shape, jnp.int32)
    ask = partial(ask_host, write_forced, answer)
    found = lax.cond(jnp.any(grammars > 0), ask, lambda asked: otherwise, asked)
    return jnp.where(grammars[:, None] > 0, found, otherwise)
