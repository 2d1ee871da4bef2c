"""Token Recycling against the paper's procedure over dictionaries, round by round."""

import jax.numpy as jnp
import numpy as np
import pytest
from support.decoding import rounds
from support.models import random_prompts, tiny_model
from support.reference import list_successors, logits_after, rank_tokens

from specjax import RequestError
from specjax.core.tree import from_paths
from specjax.drafters import TokenRecycling

TARGET = tiny_model(0, 8.0)
PROMPTS = [[7], [5, 6, 5, 7, 5, 6, 8, 5], *random_prompts(2, 30, vocab_size=12, seed=4)]
PATHS = [(0,), (1,), (2,), (0, 0), (0, 2), (1, 0), (0, 0, 0), (0, 2, 1)]
K = 3


def read(table: dict, root: int) -> dict[tuple[int, ...], tuple[int, ...]]:
    """For each path of ranks the tokens on the way, as far as the table has them."""
    found = {(): (root,)}
    for path in PATHS:
        if path[:-1] in found:
            successors = table.get(found[path[:-1]][-1], [])
            if path[-1] < len(successors):
                found[path] = (*found[path[:-1]], successors[path[-1]])
    return found


def test_trees_of_every_round_equal_the_papers_procedure():
    drafter = TokenRecycling(from_paths(PATHS), K)
    tables = [list_successors(prompt, K) for prompt in PROMPTS]
    order = {path: i for i, path in enumerate(drafter.tree.paths)}
    for state, tree in rounds(TARGET, None, drafter, 6, PROMPTS):
        for b, table in enumerate(tables):
            text = state.tokens[b, : state.cache.length[b] + 1].tolist()
            found = read(table, text[-1])
            valid = np.asarray(tree.valid[b])
            assert {path for path, node in order.items() if valid[node]} == set(found)
            for path in sorted(found, key=order.get):
                assert tree.tokens[b, order[path]] == found[path][-1]
                logits = logits_after(TARGET, text + list(found[path][1:]))
                table[found[path][-1]] = rank_tokens(logits, K)
    assert np.asarray(state.counters.accepted_at).sum() > 0


def test_the_last_valid_node_of_a_token_overwrites_its_successors():
    from specjax.drafters.token_recycling import _overwrite

    table, best = jnp.full((5, 2), -1), jnp.arange(8).reshape(4, 2)
    found = _overwrite(table, jnp.array([1, 3, 1, 2]), jnp.array([True, True, True, False]), best)
    assert found.tolist() == [[-1, -1], [4, 5], [-1, -1], [2, 3], [-1, -1]]


def test_a_tree_with_a_rank_beyond_the_candidates_is_refused():
    with pytest.raises(RequestError, match="rank 4 and candidates is 3"):
        TokenRecycling(from_paths([(4,)]), 3)
