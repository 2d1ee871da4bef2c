"""Prompt lookup on the device against prompt lookup over lists."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.reference import look_up

from specjax import RequestError
from specjax.drafters import Ngram

CAPACITY, ROWS = 40, 800


@partial(jax.jit, static_argnums=0)
def propose(drafter: Ngram, tokens, last):
    """The trees of rows [B, T] whose texts end at the indices ``last`` [B]."""
    state = SimpleNamespace(tokens=tokens, cache=SimpleNamespace(length=last))
    return drafter.propose(None, None, state, None)[0]


SLOW = [pytest.param(options, marks=pytest.mark.slow) for options in ((3, 3, 2), (2, 1, 1), (1, 2, 2))]


@pytest.mark.parametrize("options", [(5, 4, 1), (4, 6, 3), *SLOW])
def test_lookup_equals_the_lookup_over_lists(options):
    rng = np.random.default_rng(sum(options))
    alphabet = rng.choice([2, 3, 5, 30], (ROWS, 1))
    tokens = (rng.random((ROWS, CAPACITY)) * alphabet).astype(np.int32)
    last = rng.integers(0, CAPACITY, ROWS).astype(np.int32)  # tokens after it are void
    tree = propose(Ngram(*options), tokens, last)
    assert tree.q is None and tree.max_depth == options[0]
    found = 0
    for b in range(ROWS):
        text = tokens[b, : last[b] + 1].tolist()
        expected = look_up(text, *options)
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
        ([1, 2, 3, 1, 2], [3, 1, 2, 3]),  # a longer period goes on too
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
def test_options_out_of_range_are_refused(options):
    with pytest.raises(RequestError):
        Ngram(*options)
