"""Shared beginnings of prompts: the tokens that are read, and texts that stay those of each request alone."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.engine import facts
from support.grid.methods import TARGETS
from support.models import TINY, language_model, tiny_model

from specjax import Engine, Generator
from specjax.core.cache import KVCache
from specjax.core.recurrence import DeltaState
from specjax.core.stored_rows import EightBitRows
from specjax.engine import prefix_blocks
from specjax.engine.prefix_blocks import BLOCK, Block
from specjax.engine.prefix_cache import PrefixCache, Stored, longest_shared_prompt
from specjax.loop.prefill import Filled
from specjax.models.rope import Rope

NONE = {}
"""The recurrent states of a model that has none."""


def stored(size: int = 4, states: dict | None = NONE) -> Stored:
    return Stored(Block((), (np.zeros(size, np.int8),)), states)


def test_a_key_stands_for_all_tokens_up_to_its_block():
    store, prompt = PrefixCache(100), list(range(3 * BLOCK + 1))
    keys = store.keys(prompt)
    assert len(keys) == 3 and len(store.keys(prompt[:-1])) == 2  # the last token is never read
    assert store.keys([*prompt, 5]) == keys
    for place, same in ((BLOCK, 1), (0, 0), (3 * BLOCK - 1, 2)):
        other = prompt.copy()
        other[place] = 99
        assert [a == b for a, b in zip(store.keys(other), keys)] == [True] * same + [False] * (3 - same)
    assert PrefixCache(0).keys(prompt) == [] and PrefixCache(100, longest=48).keys(prompt) == []
    assert PrefixCache(100, longest=49).keys(prompt) == keys


def test_the_least_recently_used_blocks_leave_and_the_ends_of_prompts_first():
    store = PrefixCache(5 * 4)
    one, two = store.keys([1] * 49), store.keys([2] * 49)
    store.add(one, 0, [stored()] * 3)
    store.add(two, 0, [stored()] * 2)
    assert len(store.find(one)) == 3
    store.add(two, 2, [stored()])
    assert (len(store.find(one)), len(store.find(two))) == (2, 3)  # the end of the older prompt is gone
    store.add(store.keys([3] * 17), 0, [stored(12)])
    assert (len(store.find(one)), len(store.find(two))) == (0, 2)
    store.clear()
    assert store.find(two) == []


def test_a_row_continues_only_where_its_states_are_known():
    store = PrefixCache(100)
    keys = store.keys([1] * 100)
    store.add(keys, 0, [stored(states=None), stored(states={0: np.zeros(2)}), stored(states=None)])
    assert len(store.find(keys)) == 2


def test_prompts_whose_rotary_positions_depend_on_their_length_are_not_shared():
    assert longest_shared_prompt(TINY) is None
    assert longest_shared_prompt(TINY.replace(rope=Rope(rope_type="dynamic", factor=2.0))) == 256
    rope = Rope(rope_type="longrope", original_max_position_embeddings=32)
    assert longest_shared_prompt(TINY.replace(rope=rope)) == 32


COMMON = [7, *range(2, 55)] * 2  # 108 tokens


def test_a_common_beginning_is_read_once_and_samples_share_their_prompt(engine, alone):
    options = dict(max_new_tokens=15, temperature=1.0, seed=8)
    prompts = [COMMON + [11, 12, 13], COMMON + [14] * 20, COMMON[:40] + [9], COMMON + [11, 12, 13]]
    handles = [engine.submit(prompt, **options) for prompt in prompts] + [
        engine.submit(prompts[0], sample=1, **options)
    ]
    chunks, read = [], engine.programs.read
    engine.programs.read = lambda *args: chunks.append(args[-1]) or read(*args)
    results = [handle.result() for handle in handles]
    del engine.programs.read
    assert [result.stats.cached_tokens for result in results] == [0, 96, 32, 96, 96]
    assert chunks == [16] * 7 + [16, 16] + [16] + [16] + [16]  # of 110, 127 - 96, 40 - 32, and 110 - 96 tokens
    for result, prompt in zip(results, prompts):
        assert facts(result) == facts(alone(prompt, **options))
    assert results[4].token_ids != results[3].token_ids


def test_blocks_of_every_kind_of_layer_are_put_where_they_were():
    """Keys and values, those of eight bits, a latent cache, a layer without arrays, a recurrent state, and taps."""
    rng, T = np.random.default_rng(0), 64
    of = lambda *shape: jnp.asarray(rng.normal(size=shape).astype(np.float32))
    rows = EightBitRows(jnp.asarray(rng.integers(-9, 9, (1, 2, T, 4)).astype(np.int8)), of(1, 2, T, 1))
    state = DeltaState(of(1, 2, 3, 3), of(1, 1, 2, 5))
    layers = ((of(1, 2, T, 4), of(1, 2, T, 4)), (rows, rows), (of(1, 1, T, 6),), (), state)
    full = Filled(KVCache(layers, jnp.array([50])), (of(1, T, 3),), jnp.array([True]))
    empty = jax.tree.map(np.zeros_like, full)
    one, two = jax.jit(partial(prefix_blocks.take_blocks, count=2))(full, np.int32(16))
    found = jax.jit(prefix_blocks.put_blocks)(empty, (one, two), np.int32(16))
    found = prefix_blocks.put_states(found, prefix_blocks.take_states(full))
    assert prefix_blocks.has_states(full) and not prefix_blocks.has_states(
        full._replace(cache=full.cache.replace(layers=layers[:4]))
    )
    inside = np.isin(np.arange(T), range(16, 48))
    for old, new in zip(jax.tree.leaves(full.cache.layers[:4]), jax.tree.leaves(found.cache.layers[:4])):
        np.testing.assert_array_equal(new, np.where(inside[:, None], old, 0))
    np.testing.assert_array_equal(found.taps[0], np.where(inside[:, None], full.taps[0], 0))
    for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(found.cache.layers[4])):
        np.testing.assert_array_equal(new, old)
        assert new is not old  # the row is donated, and the store keeps its own


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "cached"), [("latent", [0, 48, 96]), ("hybrid", [0, 32, 96])])
def test_texts_of_models_with_other_caches(kind, cached):
    """A hybrid continues only where a chunk has ended, because nobody has seen the states in between."""
    target = language_model(tiny_model(0, config=TARGETS[kind].replace(vocab_size=61, max_position_embeddings=256)))
    setting, options = dict(method="ngram", num_speculative_tokens=2), dict(max_new_tokens=15, ignore_eos=True)
    engine, generator = Engine(target, slots=1, chunk=32, **setting), Generator(target, capacity=256, **setting)
    for prompt, expected in zip([COMMON, COMMON[:60] + [9] * 9, COMMON[:100] + [3] * 9], cached):
        result = engine.submit(prompt, **options).result()
        assert result.stats.cached_tokens == expected
        assert facts(result) == facts(generator(prompt, **options))
