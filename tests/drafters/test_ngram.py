"""The lookup on the device against one over lists of tokens."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import Ngram, RequestError

CAPACITY, ROWS = 40, 800


def lookup(text: list[int], tokens: int, longest: int, shortest: int) -> list[int] | None:
    """What follows the most recent earlier occurrence of the longest end of ``text`` that has one, repeated if it is too short."""
    for size in range(min(longest, len(text) - 1), shortest - 1, -1):
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == text[-size:]:
                following = text[end:]
                return [following[i % len(following)] for i in range(tokens)]
    return None


def propose(drafter: Ngram, tokens, last):
    state = SimpleNamespace(tokens=tokens, cache=SimpleNamespace(length=last))
    return drafter.draft(None, None, state, None)[0]


@pytest.mark.parametrize("options", [(5, 4, 1), (3, 3, 2), (2, 1, 1), (4, 6, 3), (1, 2, 2)])
def test_lookup_equals_that_over_lists(options):
    rng = np.random.default_rng(sum(options))
    alphabet = rng.choice([2, 3, 5, 30], (ROWS, 1))
    tokens = (rng.random((ROWS, CAPACITY)) * alphabet).astype(np.int32)
    last = rng.integers(0, CAPACITY, ROWS).astype(np.int32)  # what lies after it is void, and full of matches
    tree = jax.jit(lambda tokens, last: propose(Ngram(*options), tokens, last))(tokens, last)
    assert tree.q is None and tree.max_depth == options[0]
    found = 0
    for b in range(ROWS):
        text = tokens[b, : last[b] + 1].tolist()
        expected = lookup(text, *options)
        found += expected is not None
        assert tree.tokens[b, 0] == text[-1] and tree.valid[b, 0]
        assert tree.valid[b, 1:].tolist() == [expected is not None] * options[0]
        assert expected is None or tree.tokens[b, 1:].tolist() == expected
    assert ROWS / 10 < found < ROWS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ([7], None),
        ([7, 8], None),
        ([7, 7], [7, 7, 7, 7]),  # the run goes on
        ([1, 2, 3, 1, 2], [3, 1, 2, 3]),  # and so does a longer period
        ([1, 2, 9, 2, 8, 1, 2], [9, 2, 8, 1]),  # the longest match, not the most recent
        ([1, 2, 9, 1, 2, 8, 1, 2], [8, 1, 2, 8]),  # the most recent of equals
    ],
)
def test_lookup_by_example(text, expected):
    tokens = jnp.pad(jnp.array(text), (0, 12 - len(text)), constant_values=text[-1])[None]
    tree = propose(Ngram(4, 3, 1), tokens, jnp.array([len(text) - 1]))
    assert tree.valid[0].tolist() == [True] + [expected is not None] * 4
    assert expected is None or tree.tokens[0, 1:].tolist() == expected


@pytest.mark.parametrize("options", [(0, 4, 1), (5, 0, 1), (5, 4, 0), (5, 2, 3), (2.5, 4, 1)])
def test_options_that_do_not_fit(options):
    with pytest.raises(RequestError):
        Ngram(*options)
