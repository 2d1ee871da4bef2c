"""Token Recycling against the paper's procedure over dictionaries and lists, round by round on the target's own logits."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import random_prompts, tiny_model
from test_decode import start
from test_tree_drafts import logits_after

from specjax import RequestError, TokenRecycling, decode
from specjax.tree import from_paths
from specjax.verify import argmax_walk

TARGET = tiny_model(0, 8.0)
PROMPTS = [[7], [5, 6, 5, 7, 5, 6, 8, 5], *random_prompts(2, 30, vocab_size=12, seed=4)]
PATHS = [(0,), (1,), (2,), (0, 0), (0, 2), (1, 0), (0, 0, 0), (0, 2, 1)]
K = 3


def from_prompt(text: list[int]) -> dict[int, list[int]]:
    """For each token its successors in the text, the most recent first."""
    table = {}
    for token, successor in zip(text, text[1:]):
        row = [successor, *(s for s in table.get(token, []) if s != successor)]
        table[token] = row[:K]
    return table


def read(table: dict, root: int) -> dict[tuple[int, ...], tuple[int, ...]]:
    """For each path of ranks the tokens on the way, where the table has them."""
    found = {(): (root,)}
    for path in PATHS:
        if path[:-1] in found:
            successors = table.get(found[path[:-1]][-1], [])
            if path[-1] < len(successors):
                found[path] = (*found[path[:-1]], successors[path[-1]])
    return found


def test_rounds_are_those_of_the_paper():
    drafter = TokenRecycling(from_paths(PATHS), K)
    state = start(TARGET, None, drafter, PROMPTS)
    draw = jax.jit(partial(drafter.draft, TARGET, None))
    step = jax.jit(partial(decode.step, drafter=drafter, rule=argmax_walk))
    tables = [from_prompt(prompt) for prompt in PROMPTS]
    order = {path: i for i, path in enumerate(drafter.tree.paths)}
    for _ in range(6):
        tree, _ = draw(state, state.key)
        for b, table in enumerate(tables):
            text = state.tokens[b, : state.cache.length[b] + 1].tolist()
            found = read(table, text[-1])
            valid = np.asarray(tree.valid[b])
            assert {path for path, node in order.items() if valid[node]} == set(found)
            for path in sorted(found, key=order.get):
                assert tree.tokens[b, order[path]] == found[path][-1]
                logits = logits_after(TARGET, text + list(found[path][1:]))
                table[found[path][-1]] = np.argsort(-logits, kind="stable")[:K].tolist()
        state = step(TARGET, None, state)
    assert np.asarray(state.counters.accepted_at).sum() > 0


def test_equal_tokens_are_overwritten_by_the_last_node_and_void_ones_by_none():
    from specjax.drafters.token_recycling import _overwritten

    table, best = jnp.full((5, 2), -1), jnp.arange(8).reshape(4, 2)
    found = _overwritten(table, jnp.array([1, 3, 1, 2]), jnp.array([True, True, True, False]), best)
    assert found.tolist() == [[-1, -1], [4, 5], [-1, -1], [2, 3], [-1, -1]]


def test_a_rank_that_is_not_kept_is_refused():
    with pytest.raises(RequestError, match="rank 4 and candidates is 3"):
        TokenRecycling(from_paths([(4,)]), 3)
