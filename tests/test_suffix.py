"""Suffix decoding on the device against a suffix tree of nested dictionaries."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from specjax import RequestError, Suffix

CAPACITY, ROWS, V = 48, 300, 9


def suffix_tree(text: list[int], depth: int) -> dict:
    """Every run of the text, up to a length: {token: [count, newest place, children]}."""
    root = {}
    for start in range(len(text)):
        children = root
        for place in range(start, min(start + depth, len(text))):
            node = children.setdefault(text[place], [0, 0, {}])
            node[0], node[1], children = node[0] + 1, place, node[2]
    return root


def speculated(text: list[int], most: int, longest: int, least: float) -> list[int]:
    """The paper's procedure: of every match length the most frequent continuation, of these the one with the highest score."""
    tree, best, best_score = suffix_tree(text, longest + most + 1), [], 0.0
    for size in range(1, min(longest, len(text)) + 1):
        children, node = tree, None
        for token in text[-size:]:
            node = children[token]
            children = node[2]
        p, score, drafted = 1.0, 0.0, []
        while node[2] and len(drafted) < min(size, most):
            token, child = max(node[2].items(), key=lambda item: (item[1][0], item[1][1]))
            p *= child[0] / node[0]
            if p < least:
                break
            drafted.append(token)
            score, node = score + p, child
        if drafted and score >= best_score - 1e-6:
            best, best_score = drafted, max(score, best_score)
    return best


@pytest.mark.parametrize("options", [(4, 5, 0.1), (6, 3, 0.3), (3, 8, 0.0), (1, 1, 0.5)])
def test_continuations_are_those_of_a_suffix_tree(options):
    rng = np.random.default_rng(options[0])
    alphabet = rng.choice([2, 3, V], (ROWS, 1))
    tokens = (rng.random((ROWS, CAPACITY)) * alphabet).astype(np.int32)
    last = rng.integers(0, CAPACITY, ROWS).astype(np.int32)
    state = SimpleNamespace(tokens=tokens, cache=SimpleNamespace(length=last))
    target = SimpleNamespace(config=SimpleNamespace(vocab_size=V))
    tree = jax.jit(lambda: Suffix(*options).draft(target, None, state, None)[0])()
    found = 0
    for b in range(ROWS):
        wanted = speculated(tokens[b, : last[b] + 1].tolist(), *options)
        valid = np.asarray(tree.valid[b, 1:])
        assert np.asarray(tree.tokens[b, 1:])[valid].tolist() == wanted
        assert valid.tolist() == [True] * len(wanted) + [False] * (options[0] - len(wanted))
        found += bool(wanted)
    assert ROWS / 4 < found < ROWS


def test_numbers_out_of_range_are_named():
    for options in (dict(max_match=0), dict(min_token_prob=1.5), dict(num_speculative_tokens=0)):
        with pytest.raises(RequestError, match=next(iter(options))):
            Suffix(**options)
