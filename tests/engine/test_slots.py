"""Rows of a state that are written into slots, for all methods; the oracle is numpy, array by array."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.decoding import start
from support.grid import METHODS
from support.grid.methods import V, draft_of, target_of
from support.program import make_blank_requests

from specjax.core.cache import without_keys
from specjax.drafters import Ngram
from specjax.engine import slots
from specjax.errors import RequestError
from specjax.loop.prefill import fill

STATIC = dict(chunk=16, dtype="float32", logprobs=None)
FIRST_TIER = ("eagle3",)


def find_axes(drafter):
    target = target_of(drafter)
    draft = drafter.parameters(draft_of(drafter, 1), V)
    return slots.find_row_axes(target, draft, make_blank_requests(1, 32), drafter=drafter, **STATIC)


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name in FIRST_TIER else pytest.mark.slow) for name in METHODS]
)
def test_every_array_of_every_method_has_rows(method):
    axes = find_axes(METHODS[method][0])
    assert axes.round == -1
    assert {*jax.tree.leaves(axes.replace(round=None))} == {0}


@dataclasses.dataclass(frozen=True)
class Shared(Ngram):
    """Keeps a count that all rows share."""

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        return {"rows": lengths, "count": jnp.zeros(3)}


def test_a_state_that_rows_share_is_refused_by_name():
    with pytest.raises(RequestError, match=r"rows of Shared share \.drafter\['count'\]; call a Generator$"):
        find_axes(Shared())


def numbers(x) -> np.ndarray:
    return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)


def named(tree) -> dict[str, np.ndarray]:
    return {jax.tree_util.keystr(path): numbers(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def test_a_placed_row_is_whole_and_leaves_the_others_alone():
    drafter = METHODS["token_recycling"][0]
    target, draft = target_of(drafter), draft_of(drafter, 1)
    axes = find_axes(drafter)
    read = partial(start, target, draft, drafter, capacity=32, chunk=16)
    state, row = read([[1, 2], [2, 1, 1], [1]], seeds=[1, 2, 3]), read([[2, 2, 2, 1]], seeds=9, temperature=0.5)
    placed = jax.jit(partial(slots.place, axes=axes))(state, row, jnp.int32(1))
    for new, old, own in zip(*(map(numbers, jax.tree.leaves(t.replace(round=None))) for t in (placed, state, row))):
        np.testing.assert_array_equal(new, np.stack([old[0], own[0], old[2]]))
    full = jax.jit(partial(slots.spread, axes=axes, slots=3))(row)
    for new, own in zip(*(map(numbers, jax.tree.leaves(t.replace(round=None))) for t in (full, row))):
        np.testing.assert_array_equal(new, np.repeat(own, 3, 0))


def test_a_freed_slot_has_ended_and_keeps_its_keys_and_values_alone():
    drafter = METHODS["draft_model"][0]
    target, draft = target_of(drafter), draft_of(drafter, 1)
    read = partial(start, target, draft, drafter, capacity=32, chunk=16)
    state, empty = read([[1, 2], [2, 1, 1], [1]], seeds=[1, 2, 3]), read([[2]], limit=1)
    freed = jax.jit(partial(slots.free, axes=find_axes(drafter)))(state, without_keys(empty), jnp.int32(1))
    assert freed.done.tolist() == [False, True, False]
    new, old, own = map(named, (freed, state, empty))
    assert new.keys() == old.keys() and sum(".layers" in name for name in new) == 4  # target and draft have one layer
    for name in new.keys() - {".round"}:
        kept = old[name][1] if ".layers" in name else own[name][0]
        np.testing.assert_array_equal(new[name], np.stack([old[name][0], kept, old[name][2]]), name)


IN_CHUNKS = (
    "draft_model",
    "eagle3",
    "mtp, two modules",
    "hydra, prefix layer",
    "draft_model, ema",
    "dynamic_tree",
    "auto",
    "auto, head",
)


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name in FIRST_TIER else pytest.mark.slow) for name in IN_CHUNKS]
)
def test_a_draft_that_reads_a_prompt_in_chunks_has_the_state_of_a_prefill(method):
    drafter = METHODS[method][0]
    target, draft = target_of(drafter), drafter.parameters(draft_of(drafter, 1), V)
    prompt = [int(n) * n % V for n in range(42)]
    expected = start(target, draft, drafter, [prompt], capacity=64, chunk=64)
    requests = expected.request.replace(tokens=expected.tokens)
    filled = jax.jit(partial(fill, chunk=64, dtype="float32", taps=drafter.taps, unread=1))(
        target, requests.tokens, requests.lengths
    )
    drafted = slots.begin_reading_draft(target, draft, requests, filled, drafter=drafter, dtype="float32")
    for begin, size in ((0, 16), (16, 32)):
        read = jax.jit(partial(slots.read_draft_chunk, drafter=drafter, chunk=size))
        (drafted,) = read(target, draft, (requests,), (filled.taps,), (drafted,), jnp.int32([begin]))
    found = jax.jit(partial(slots.begin_row, drafter=drafter, **STATIC))(target, draft, requests, filled, drafted)
    for new, old in zip(jax.tree.leaves(found.drafter), jax.tree.leaves(expected.drafter)):
        own, other = (x[:, :, :39] if x.ndim == 4 else x for x in (new, old))  # later places of a cache are void
        np.testing.assert_allclose(own, other, atol=1e-5)
