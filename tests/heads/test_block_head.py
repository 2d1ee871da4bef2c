"""Block heads with a draft vocabulary, and with layers that differ in what they see.

scripts/golden/check_speculators.py compares both with the package that trains such heads;
tests/drafters/test_block.py has the rest of the maths in plain numpy.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.models import TINY, random_head, tiny_model

from specjax.core.cache import KVCache
from specjax.errors import ConfigError
from specjax.heads import BlockConfig, BlockHead
from specjax.heads.convolution import Convolution
from specjax.models.draft_vocabulary import LACKING

V, N, PAST = TINY.vocab_size, 5, 4
LAYERS = TINY.replace(num_layers=2)
TARGET = tiny_model(0, 8.0)
CONFIG = BlockConfig(LAYERS, 32, 2, (0, 2), V - 1, block_size=N)
KNOWN = np.sort(np.random.default_rng(3).choice(V, 20, replace=False))
FEW = dataclasses.replace(
    CONFIG, own_head=True, draft_vocab_size=KNOWN.size, markov_rank=3, confidence=True, confidence_markov=True
)


def head_of(config) -> BlockHead:
    head = random_head(BlockHead, config)
    if head.draft_to_target is not None:
        head.draft_to_target[...] = jnp.asarray(KNOWN - np.arange(KNOWN.size), jnp.int32)
    return head


def test_a_draft_vocabulary():
    """Logits are those of the head's own matrix at its tokens plus the correction, and lacking
    elsewhere."""
    head, rng = head_of(FEW), np.random.default_rng(0)
    hidden = jnp.asarray(rng.standard_normal((2, N, 32)), jnp.float32)
    before = jnp.asarray(rng.integers(0, V, (2, N)), jnp.int32)
    code = head.markov.codes(hidden, before)
    plain = np.asarray(hidden) @ np.asarray(head.head[...]).T
    correction = np.asarray(head.markov.first[...])[before] @ np.asarray(head.markov.second[...]).T
    for found, wanted in (
        (head.logits(TARGET, hidden), plain),
        (head.logits(TARGET, hidden, code), plain + correction),
        (head.logits(TARGET, hidden) + head.correction(code), plain + correction),
    ):
        assert found.shape == (2, N, V)
        np.testing.assert_allclose(np.asarray(found)[..., KNOWN], wanted, rtol=1e-4, atol=1e-4)
        assert np.all(np.delete(np.asarray(found), KNOWN, -1) <= np.float32(LACKING) / 2)
    assert not np.any(np.delete(np.asarray(head.correction(code)), KNOWN, -1))  # added to LACKING, it stays LACKING


@jax.jit
def hidden_of(head, tokens, taps):
    positions = PAST + jnp.arange(N)[None]
    context = KVCache(head.context(taps, jnp.arange(PAST)[None], jnp.float32), jnp.array([PAST]))
    return head(TARGET, tokens, positions, context).hidden[0]


def places_that_change(config, place: int) -> list[int]:
    """The places of a block whose hidden state depends on the token at ``place``."""
    rng = np.random.default_rng(1)
    taps = tuple(jnp.asarray(rng.standard_normal((1, PAST, 32)), jnp.float32) for _ in config.taps)
    tokens = jnp.arange(N, dtype=jnp.int32)[None]
    one, other = (hidden_of(head_of(config), t, taps) for t in (tokens, tokens.at[0, place].set(V - 2)))
    return np.flatnonzero(np.abs(np.asarray(one - other)).max(-1) > 1e-6).tolist()


def windows(*sizes) -> BlockConfig:
    return dataclasses.replace(CONFIG, layers=LAYERS.replace(windows=sizes), causal_windows=True)


def test_layers_with_a_window_are_causal_where_the_head_says_so():
    """With one full layer every place sees every other; with windows alone a place sees the places
    before it."""
    assert places_that_change(windows(64, 64), 3) == [3, 4]
    assert places_that_change(windows(None, None), 3) == [0, 1, 2, 3, 4]
    assert places_that_change(windows(64, None), 3) == places_that_change(windows(None, 64), 3) == [0, 1, 2, 3, 4]
    assert places_that_change(dataclasses.replace(windows(64, 64), causal_windows=False), 3) == [0, 1, 2, 3, 4]
    mixed, full, causal = (
        head_of(dataclasses.replace(CONFIG, layers=LAYERS.replace(windows=(64, None)), **options))
        for options in (dict(causal_windows=True), {}, dict(causal=True))
    )
    rng = np.random.default_rng(2)
    taps = tuple(jnp.asarray(rng.standard_normal((1, PAST, 32)), jnp.float32) for _ in CONFIG.taps)
    first, second, third = (hidden_of(head, jnp.arange(N)[None], taps) for head in (mixed, full, causal))
    assert np.abs(first - second).max() > 1e-3 and np.abs(first - third).max() > 1e-3


@pytest.mark.parametrize(
    "changes, named",
    [
        (dict(draft_vocab_size=20), "knows 20 of 61 tokens; it needs an output matrix"),
        (dict(draft_vocab_size=62, own_head=True), "draft_vocab_size is 62; it must be from 1 to 61"),
        (dict(block_size=1), "block_size 1 leaves no place to draft at"),
        (dict(markov="fir"), "'fir' is not supported; use one of vanilla, gated, rnn"),
        (dict(confidence_markov=True), "markov_rank is 0"),
        (dict(target_size=64), "32 wide and its target 64"),
    ],
)
def test_a_configuration_that_no_head_can_have(changes, named):
    with pytest.raises(ConfigError, match=named):
        dataclasses.replace(CONFIG, **changes)


def test_a_convolution_does_not_cross_blocks():
    """Two blocks one after another pass through it like each of them alone; the first place reads itself."""
    conv = random_head(lambda *given: Convolution(8, 2, 4, 3, jax.random.key(0), jnp.float32), None)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 6, 8)), jnp.float32)
    of = lambda x: conv(x, conv.deltas(x), 1)
    np.testing.assert_allclose(of(x), jnp.concatenate([of(x[:, :3]), of(x[:, 3:])], 1), rtol=1e-5, atol=1e-6)
    first = (conv.base[1, 0] + jnp.repeat(conv.deltas(x)[:, 3, 1, 0], 4, -1)) * x[:, 3]
    np.testing.assert_allclose(of(x)[:, 3], first, rtol=1e-5, atol=1e-6)
