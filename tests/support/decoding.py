"""Batches of prompts through the pure layer, as a whole or round by round."""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from specjax.core.sampling import random_keys, sampling_params
from specjax.core.state import DecodeState, Requests
from specjax.core.tree import Tree
from specjax.loop import decode
from specjax.loop.drafter import Drafter
from specjax.loop.prefill import pad_prompts, prefill
from specjax.rules.acceptance import resolve

CAPACITY, CHUNK, NEW = 256, 64, 32
"""Positions of the caches, tokens of one prefill forward, and new tokens of a row, unless a test
says otherwise.
"""

_of_loop = prefill


@partial(jax.jit, static_argnames=("drafter", "chunk", "dtype"))
def prefill(*args, **options) -> DecodeState:
    """The state after the prefill, without weak types, which would compile the first round apart from the next."""
    strong = lambda x: x.astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.number) else x
    return jax.tree.map(strong, _of_loop(*args, **options))


run = jax.jit(decode.run, static_argnames=("drafter", "rule"))


def start(
    target,
    draft,
    drafter: Drafter,
    prompts,
    *,
    limit=None,
    stops=-1,
    seeds=0,
    capacity=CAPACITY,
    chunk=CHUNK,
    **sampling,
) -> DecodeState:
    """The state after the prefill.

    Args:
      draft: what the drafter's functions take as ``draft``.
      limit: tokens at which a row ends, prompt included; by default NEW more than its prompt.
      stops: a token that ends a row; -1 for none.
      limit, stops, seeds, sampling: one value for all rows, or one for each.
    """
    B = len(prompts)
    tokens, lengths = pad_prompts(prompts, capacity)
    each = lambda value: jnp.asarray(np.broadcast_to(value, B), jnp.int32)
    requests = Requests(
        tokens=jnp.asarray(tokens),
        lengths=jnp.asarray(lengths),
        sampling=sampling_params(B, **sampling),
        keys=random_keys(np.asarray(seeds), B),
        limit=each(lengths + NEW if limit is None else limit),
        stop_ids=each(stops)[:, None],
    )
    return prefill(target, draft, requests, drafter=drafter, chunk=chunk, dtype="float32")


def finish(target, draft, drafter: Drafter, state: DecodeState, until: int = 10**6) -> DecodeState:
    """The state when all rows are done, or after round ``until``."""
    return run(target, draft, state, jnp.int32(until), drafter=drafter, rule=resolve("auto", drafter.drawn))


def decode_all(target, draft, drafter: Drafter, prompts, **options) -> tuple[DecodeState, list[list[int]]]:
    """The state when all rows are done, and the new tokens of each. ``options``: see ``start``."""
    state = finish(target, draft, drafter, start(target, draft, drafter, prompts, **options))
    assert np.all(state.done) and not np.any(state.failed)
    return state, new_tokens(state, prompts)


@partial(jax.jit, static_argnames=("drafter", "rule"))
def play_round(target, draft, state: DecodeState, drafter: Drafter, rule) -> tuple[Tree, DecodeState]:
    """The tree of a round, and the state after it."""
    round = judge_round(target, draft, state, drafter, rule)
    return round.tree, decode.commit(target, draft, state, round, drafter=drafter)


def judge_round(target, draft, state: DecodeState, drafter: Drafter, rule) -> decode.Round:
    """A round before its results are written."""
    propose_key, accept_keys = decode.round_keys(state, drafter.depth + 1)
    tree, drafted = decode.propose(target, draft, state, propose_key, drafter=drafter)
    scored = decode.score(target, tree, state, drafter.taps, drafted)
    return decode.Round(tree, drafted, scored, *decode.accept(target, tree, scored, state, accept_keys, rule=rule))


def rounds(target, draft, drafter: Drafter, count: int, prompts, **options) -> Iterator[tuple[DecodeState, Tree]]:
    """For each of ``count`` rounds the state before it and its tree, in numpy. ``options``: see ``start``."""
    state = start(target, draft, drafter, prompts, **options)
    for _ in range(count):
        tree, after = play_round(target, draft, state, drafter, resolve("auto", drafter.drawn))
        yield state, jax.device_get(tree)
        state = after


def texts(state: DecodeState) -> list[list[int]]:
    """The tokens of each row, prompt and root included."""
    tokens, lengths = jax.device_get((state.tokens, state.cache.length))
    return [row[: length + 1].tolist() for row, length in zip(tokens, lengths)]


def new_tokens(state: DecodeState, prompts) -> list[list[int]]:
    """The tokens of each row after its prompt."""
    return [text[len(prompt) :] for text, prompt in zip(texts(state), prompts)]


def spell_paths(tree: Tree, b: int) -> list[tuple[int, ...]]:
    """For each node of row b that may be accepted, the tokens from below the root down to the node."""
    paths, valid = [()], [True]
    for token, parent, ok in zip(*(np.asarray(x[b]).tolist()[1:] for x in (tree.tokens, tree.parent, tree.valid))):
        paths.append((*paths[parent], token))
        valid.append(ok and valid[parent])
    return [path for path, ok in zip(paths, valid) if ok]
