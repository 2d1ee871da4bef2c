"""The loop: draft a tree, score it in one forward, verify, commit. Everything else in specjax is called from here.

Invariants:
  The root, a row's newest token, is never in the cache: ``tokens[b, cache.length[b]]`` is row b's root.
  ``cache.length`` is the number of committed tokens, and each was computed by the target on the committed tokens before it.
  A finished row commits nothing.
  What a row emits depends neither on its neighbours in the batch nor on how steps are chunked: its key is its own, folded with
  places of its text.

All functions are pure. ``drafter`` and ``rule`` are static; ``target`` and ``draft`` are modules, passed as arguments so that
their weights are not compiled in.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from . import cache as kv
from .cache import KVCache
from .context import Context, advance_along, advance_tree
from .logprobs import Logprobs, empty_logprobs, recorded
from .models.decoder import Decoder, Output
from .parallel import split_nodes, whole_nodes
from .sampling import SamplingParams, probabilities
from .stats import Counters
from .tree import Tree, ancestors
from .verify import Verdict, argmax_walk

_MISSED = 4
"""Tokens that ``catch_up`` reads at a time. A row that is behind has as much room: it ends at its limit, and then comes one path."""


@struct.dataclass
class DecodeState:
    """A batch in the middle of decoding.

    Attributes:
      tokens: int32 [B, T], prompt and output of each row; what lies after the root is void.
      cache: the target's keys and values of all tokens before the root.
      drafter: whatever the drafter keeps.
      sampling: options of each row.
      prompt: int32 [B], tokens of the prompt.
      states: int32 [B], the state of the row's constraint after the root.
      stops: ``stops.StopAutomaton`` of all rows' stop strings, or None.
      stopping: int32 [B], its state after the root.
      logprobs: Logprobs, or None if nobody asked.
      key: typed keys [B].
      limit: int32 [B], tokens at which a row ends, prompt included. ``T`` leaves room for one path beyond it.
      stop_ids: int32 [B, n], tokens that end a row; -1 matches none.
      done: bool [B].
      failed: bool [B], the target's logits were NaN.
      step: int32, rounds so far.
      counters: what happened, for statistics.
    """

    tokens: jax.Array
    cache: KVCache
    drafter: Any
    sampling: SamplingParams
    prompt: jax.Array
    states: jax.Array
    stops: Any
    stopping: jax.Array
    logprobs: Logprobs | None
    key: jax.Array
    limit: jax.Array
    stop_ids: jax.Array
    done: jax.Array
    failed: jax.Array
    step: jax.Array
    counters: Counters

    @property
    def root(self) -> jax.Array:
        """Int32 [B], the newest token of each row."""
        return jnp.take_along_axis(self.tokens, self.cache.length[:, None], 1)[:, 0]

    def context(self, nodes: jax.Array, path: jax.Array, states: jax.Array) -> Context:
        """What precedes nodes below the root, see ``Context``."""
        return Context(self.tokens, self.prompt, self.cache.length + 1, self.limit, self.stop_ids, nodes, path, states)


def prefill(
    target: Decoder,
    draft,
    tokens,
    lengths,
    sampling,
    key,
    limit,
    stop_ids,
    stops=None,
    stopping=None,
    *,
    drafter,
    chunk: int,
    dtype,
    logprobs: int | None = None,
) -> DecodeState:
    """Reads the prompts: all but the last token of each go into the cache, the last becomes the root.

    Args:
      draft: the drafter's own model or parameters, or None.
      tokens: int32 [B, T], prompts left-aligned. ``T`` is the capacity, a multiple of ``chunk`` and at least
        ``max(limit) + drafter.depth + 1``.
      lengths: int32 [B], tokens in each prompt, at least 1.
      sampling, key, limit, stop_ids: see ``DecodeState``.
      stops, stopping: automaton of the stop strings and each row's first state in it, or None.
      chunk: tokens that one forward reads. Static, as are ``drafter``, ``dtype``, the cache's, and ``logprobs``.
      logprobs: how many of the likeliest tokens to record at each place, 0 for the emitted one alone, None for nothing.
    """
    B, T = tokens.shape
    cache, taps, finite = fill(target, tokens, lengths - 1, chunk, dtype, drafter.taps)
    return DecodeState(
        tokens=tokens,
        cache=cache,
        drafter=drafter.init(target, draft, tokens, lengths, taps, chunk=chunk, dtype=dtype),
        sampling=sampling,
        prompt=lengths,
        states=sampling.start,
        stops=stops,
        stopping=jnp.zeros(B, jnp.int32) if stopping is None else stopping,
        logprobs=None if logprobs is None else empty_logprobs(B, T, logprobs),
        key=key,
        limit=limit,
        stop_ids=stop_ids,
        done=(lengths >= limit) | ~finite,
        failed=~finite,
        step=jnp.int32(0),
        counters=Counters.zeros(B, drafter.depth),
    )


def fill(model: Decoder, tokens, lengths, chunk: int, dtype, taps: tuple[int, ...] = ()) -> tuple[KVCache, tuple, jax.Array]:
    """Commits ``tokens[b, :lengths[b]]`` to a new cache of capacity T, ``chunk`` tokens at a time.

    Returns the cache, the taps float32 [B, T, E] of those tokens, and bool [B]: whether all hidden states are finite.
    """
    B, T = tokens.shape
    node = jnp.arange(chunk)
    mask = jnp.tril(jnp.ones((chunk, chunk), bool))

    def read(i, carry):
        cache, kept, finite = carry
        start = jnp.full(B, i * chunk)
        positions = start[:, None] + node
        piece = lax.dynamic_slice_in_dim(tokens, i * chunk, chunk, 1)
        out = model(piece, positions, mask, cache.replace(length=start), taps=taps, rope_lengths=lengths[:, None] + 1)
        finite &= (jnp.isfinite(out.hidden).all(-1) | (positions >= lengths[:, None])).all(-1)
        kept = tuple(lax.dynamic_update_slice_in_dim(whole, part, i * chunk, 1) for whole, part in zip(kept, out.taps))
        # A write that did not depend on what was read would make XLA:CPU copy the cache.
        return kv.commit(cache, out.rows, None, jnp.where(finite, start, 0), lengths), kept, finite

    kept = tuple(jnp.zeros((B, T, model.config.hidden_size)) for _ in taps)
    nothing = (kv.empty(model.config, B, T, dtype), kept, jnp.ones(B, bool))
    cache, kept, finite = lax.fori_loop(0, (jnp.max(lengths) + chunk - 1) // chunk, read, nothing)
    return cache.replace(length=lengths), kept, finite


@struct.dataclass
class Round:
    """What one round found out before anything is written.

    Attributes:
      tree: what was drafted.
      drafting: what the drafter's ``commit`` will find as its state.
      out: the target's view of the tree.
      p: float32 [B, N, V], the target's distribution after each node.
      verdict: what the rule made of it.
      failed: bool [B], the target's logits were NaN, now or before.
    """

    tree: Tree
    drafting: Any
    out: Output
    p: jax.Array
    verdict: Verdict
    failed: jax.Array


def catch_up(model: Decoder, cache: KVCache, tokens, length) -> KVCache:
    """The cache with ``tokens[b, :length[b]]`` committed, of which a draft may have missed the newest while others drafted.

    Reads a few tokens of all rows at a time until none is behind: not once where the draft drafted in the last round.

    Args:
      tokens: int32 [B, T].
      length: int32 [B], at least ``cache.length``. T leaves room for ``_MISSED`` tokens after those of a row that is behind.
    """
    node = jnp.arange(_MISSED)
    mask = jnp.tril(jnp.ones((_MISSED, _MISSED), bool))

    def read(cache):
        positions = cache.length[:, None] + node
        out = model(jnp.take_along_axis(tokens, positions, 1, mode="clip"), positions, mask, cache)
        # As in ``fill``: what is written must depend on what was read. A row of which the draft makes NaN is void to it anyway.
        finite = (jnp.isfinite(out.hidden).all(-1) | (positions >= length[:, None])).all(-1)
        start = jnp.where(finite, cache.length, 0)
        return kv.commit(cache, out.rows, None, start, jnp.minimum(cache.length + _MISSED, length))

    return lax.while_loop(lambda cache: jnp.any(cache.length < length), read, cache)


def step(target: Decoder, draft, state: DecodeState, *, drafter, rule: Callable) -> DecodeState:
    """One round: every unfinished row emits between one and ``drafter.depth + 1`` tokens.

    A drafter with ``lengths`` has a round compiled for each of them, and ``drafter.choose(state)`` says which is run.
    """

    def turn(state, **length):
        return settle(target, draft, state, judge(target, draft, state, drafter=drafter, rule=rule, **length), drafter=drafter)

    lengths = getattr(drafter, "lengths", ())
    if len(lengths) < 2:
        return turn(state)
    chosen = drafter.choose(state)
    for i, k in enumerate(lengths):
        state = once(chosen == i, partial(turn, length=k), state)
    return state


def once(wanted: jax.Array, turn: Callable, carry):
    """``turn(carry)`` if ``wanted``, a scalar bool, else ``carry``: a loop of at most one turn.

    ``lax.cond`` would mean the same, and XLA:CPU copies every cache that goes through its branches.
    """
    return lax.while_loop(lambda loop: loop[0], lambda loop: (jnp.bool(False), turn(loop[1])), (wanted, carry))[1]


def judge(target: Decoder, draft, state: DecodeState, *, drafter, rule: Callable, **length) -> Round:
    """The first half of a round: drafts a tree, scores it and decides. ``length``: one of the drafter's ``lengths``, if it has any."""
    draft_key, verify_key = round_keys(state, drafter.depth + 1)
    with jax.named_scope("draft"):
        tree, drafting = drafter.draft(target, draft, state, draft_key, **length)
        tree = whole_nodes(tree)
    with jax.named_scope("forward"):
        out = forward(target, tree, state.cache, drafter.taps, getattr(drafting, "begun", None))
    with jax.named_scope("verify"):
        p = probabilities(out.logits, state.sampling, tree_context(state, tree))
        verdict = verify(p, tree, state.sampling, rule, verify_key)
    failed = state.failed | jnp.isnan(out.logits).any((1, 2)) | _impossible(p, verdict)
    return Round(tree, drafting, out, p, verdict, failed)


def settle(target: Decoder, draft, state: DecodeState, found: Round, *, drafter) -> DecodeState:
    """The second half: cuts the verdict where a row ends, and commits what is left of it."""
    tree, out, failed = found.tree, found.out, found.failed
    emitted, verdict, done, accepted, stopping = _stop(state, tree, found.verdict, failed)
    with jax.named_scope("commit"):
        # A failed row is void and may be written anywhere; this makes the write depend on the reads, without which
        # XLA:CPU would copy the cache.
        start = jnp.where(failed, 0, state.cache.length)
        path = None if tree.is_chain else verdict.path
        cache = kv.commit(state.cache, out.rows, path, start, state.cache.length + verdict.length)
        drafting = drafter.commit(target, draft, state.replace(drafter=found.drafting), tree, out, verdict)
    return state.replace(
        tokens=jax.vmap(lax.dynamic_update_slice)(state.tokens, emitted, (state.cache.length + 1)[:, None]),
        cache=cache,
        drafter=drafting,
        states=_constraint_state(state, emitted, verdict),
        stopping=stopping,
        logprobs=state.logprobs and recorded(state.logprobs, out.logits, verdict.path, emitted, state.cache.length + 1),
        done=done,
        failed=failed,
        step=state.step + 1,
        counters=state.counters.add(~state.done, tree.valid.sum(-1) - 1, accepted),
    )


def run(target: Decoder, draft, state: DecodeState, until, *, drafter, rule: Callable) -> DecodeState:
    """Steps until every row is done or ``state.step`` reaches ``until``, without leaving the device. Donate ``state``."""

    def unfinished(state):
        return jnp.any(~state.done) & (state.step < until)

    return lax.while_loop(unfinished, lambda state: step(target, draft, state, drafter=drafter, rule=rule), state)


def forward(target: Decoder, tree: Tree, cache: KVCache, taps: tuple[int, ...] = (), begun: tuple | None = None) -> Output:
    """The target's view of every node, with logits: ``tree`` is batched, its leaves [B, N, ...]. ``begun``: see ``Decoder``."""
    mask = jax.vmap(ancestors)(tree)
    positions = cache.length[:, None] + mask.sum(-1) - 1
    out = target(split_nodes(tree.tokens), positions, mask, cache, taps=taps, begun=begun)
    return out.replace(logits=target.logits(split_nodes(out.hidden)))


def tree_context(state: DecodeState, tree: Tree) -> Context:
    """What precedes each node of a batched tree."""
    path = jax.vmap(ancestors)(tree).at[:, :, 0].set(False)
    automaton = state.sampling.constraint
    states = jnp.zeros_like(tree.tokens) if automaton is None else advance_tree(automaton, state.states, tree)
    return state.context(tree.tokens, path, states)


def verify(p, tree: Tree, sampling: SamplingParams, rule: Callable, key) -> Verdict:
    """The rule for every row, with p float32 [B, N, V] and keys [B, P]. All greedy, the walk alone is computed."""
    return lax.cond(
        jnp.all(sampling.temperature == 0),
        lambda p, tree, key: jax.vmap(argmax_walk)(p, tree),
        lambda p, tree, key: jax.vmap(rule)(p, tree, key),
        p, tree, key,
    )  # fmt: skip


def round_keys(state: DecodeState, places: int) -> tuple[jax.Array, jax.Array]:
    """Keys for this round's draft [B] and for its verification [B, places], by the places of the text that they decide."""

    def of_row(key, n):
        drafting, verifying = jax.random.split(key)
        return jax.random.fold_in(drafting, n), jax.vmap(jax.random.fold_in, (None, 0))(verifying, n + jnp.arange(places))

    return jax.vmap(of_row)(state.key, state.cache.length)


def _stop(state: DecodeState, tree: Tree, verdict: Verdict, failed) -> tuple:
    """Cuts a verdict after the first token that ends the row, by itself or by completing a stop string, and at the row's limit;
    finished rows keep nothing.

    Returns the emitted tokens int32 [B, P], of which ``verdict.length`` count; the verdict, whose bonus is the last of them; the
    new ``done``; how many drafted tokens were emitted, int32 [B]; and the new state of the stop strings.
    """
    place = jnp.arange(verdict.path.shape[1])
    drafted = jnp.take_along_axis(tree.tokens, jnp.roll(verdict.path, -1, 1), 1)
    emitted = jnp.where(place == verdict.length[:, None] - 1, verdict.bonus[:, None], drafted)

    ends = (emitted[:, :, None] == state.stop_ids[:, None, :]).any(-1)
    if state.stops is not None:
        matched = advance_along(state.stops, state.stopping, emitted)
        ends |= state.stops.accept[matched]
    room = state.limit - state.cache.length - 1
    length = jnp.minimum(verdict.length, jnp.minimum(jnp.where(ends, place + 1, place.size).min(-1), room))
    length = jnp.where(state.done | failed, 0, length)
    done = state.done | failed | (length == room) | (ends & (place < length[:, None])).any(-1)

    bonus = _last(emitted, length, state.root)
    stopping = state.stopping if state.stops is None else _last(matched, length, state.stopping)
    return emitted, verdict.replace(length=length, bonus=bonus), done, jnp.minimum(length, verdict.length - 1), stopping


def _last(values: jax.Array, length: jax.Array, otherwise: jax.Array) -> jax.Array:
    """[B], of ``values`` [B, P] the one at ``length - 1``; ``otherwise`` [B] where the length is 0."""
    return jnp.where(length > 0, jnp.take_along_axis(values, jnp.maximum(length - 1, 0)[:, None], 1)[:, 0], otherwise)


def _constraint_state(state: DecodeState, emitted, verdict: Verdict) -> jax.Array:
    """The state after the newest emitted token."""
    if state.sampling.constraint is None:
        return state.states
    return _last(advance_along(state.sampling.constraint, state.states, emitted), verdict.length, state.states)


def _impossible(p, verdict: Verdict) -> jax.Array:
    """Bool [B]: at the root, or where the bonus was drawn, the options leave no token."""
    nodes = jnp.stack([jnp.zeros_like(verdict.length), verdict.path[:, -1]], 1)
    return jnp.isnan(jnp.take_along_axis(p, nodes[..., None], 1)).any((1, 2))
