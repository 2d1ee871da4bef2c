"""Drafts of the target with a part of its cache, against numpy that reads every text from its beginning."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from support.decoding import decode_all, rounds, texts
from support.models import TINY, disturbed, language_model, random_prompts, tiny_model, warped
from support.partial_target import TARGET, logits_without
from support.program import MOVES, Program
from support.reference import is_greedy

from specjax import Generator, RequestError
from specjax.drafters import PartialCache, PartialCascade
from specjax.drafters.parts import partial_reader
from specjax.tools.plan import hlo

DRAFTS = 3
PROMPTS = [[7], *random_prompts(7, 40, seed=4)]
SMALL = disturbed(TARGET)
WINDOW = dict(attention_sinks=2, draft_window=6, num_speculative_tokens=DRAFTS)
CHUNKS = WINDOW | dict(cache_chunks=3, chunk_size=5)
SETTINGS = {
    "window": (PartialCache(**WINDOW), None),
    "chunks": (PartialCache(**CHUNKS), None),
    "n-grams, chunks": (PartialCascade(**CHUNKS, prompt_lookup_max=2), ()),
    "a draft, chunks": (PartialCascade(**CHUNKS, inner_speculative_tokens=2), (SMALL,)),
}
FIRST_TIER = "chunks"
EACH = [pytest.param(name, marks=() if name == FIRST_TIER else pytest.mark.slow) for name in SETTINGS]


def see(drafter, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Bool [K, n], the tokens that each key head sees: sinks, the window, and the chunks of the highest scores."""
    n, K, _ = keys.shape
    first, last, size = drafter.attention_sinks, drafter.draft_window, drafter.chunk_size
    if n <= first + last + drafter.cache_chunks * size:
        return np.ones((K, n), bool)
    seen = np.zeros((K, n), bool)
    seen[:, :first] = seen[:, n - last :] = True
    chunks = [slice(at, at + size) for at in range(first, n - last - size + 1, size)]
    for k in range(K):
        score = lambda chunk, k=k: sum(query @ keys[chunk, k].mean(0) for query in queries[k])
        for chunk in sorted(chunks, key=score)[len(chunks) - drafter.cache_chunks :]:
            seen[k, chunk] = True
    return seen


@pytest.mark.parametrize("setting", EACH)
def test_q_equals_the_targets_distribution_over_the_chosen_tokens(setting):
    """Over several rounds of a ragged batch, in which rows grow past the size of the part."""
    drafter, draft = SETTINGS[setting]
    temperature = np.array([1.3, 0.0] * 4)
    options = dict(temperature=temperature, bias=np.zeros((8, 61), np.float32))
    parts = set()
    for i, (state, tree) in enumerate(rounds(TARGET, draft, drafter, 4, PROMPTS, **options)):
        if i == 1:
            continue
        for b, text in enumerate(texts(state)):
            n, chain = len(text) - 1, tree.tokens[b, 1:].tolist()
            parts.add(n > drafter.most)
            for node in range(DRAFTS):
                logits = logits_without(text + chain[:node], {}, n, partial(see, drafter))
                wanted = warped(logits, temperature[b])
                np.testing.assert_allclose(tree.q[b, node], wanted, rtol=1e-3, atol=1e-6)
                assert wanted[chain[node]] > 0
        assert tree.valid.all()
    assert parts == {False, True}


@pytest.mark.slow
@pytest.mark.parametrize("setting", list(SETTINGS)[1:])
def test_the_text_is_greedy(setting):
    drafter, draft = SETTINGS[setting]
    state, _ = decode_all(TARGET, draft, drafter, PROMPTS)
    assert all(is_greedy(TARGET, state, PROMPTS))
    drafted, accepted = (np.asarray(x).sum() for x in (state.counters.drafted, state.counters.accepted_at))
    assert 0.2 < accepted / drafted < 0.9
    if isinstance(drafter, PartialCascade):
        calls = np.asarray(state.drafter.calls)
        assert np.all(calls <= DRAFTS * np.asarray(state.counters.calls)) and calls.sum() < drafted
    else:  # chunks beside the window raise the acceptance
        window, _ = SETTINGS["window"]
        alone, _ = decode_all(TARGET, None, window, PROMPTS)
        assert all(is_greedy(TARGET, alone, PROMPTS))
        assert accepted / drafted > alone.counters.accepted_at.sum() / alone.counters.drafted.sum()


@pytest.mark.slow
@pytest.mark.parametrize(
    "drafter", [PartialCache(), PartialCascade(num_speculative_tokens=3)], ids=["alone", "cascade"]
)
def test_a_window_over_the_whole_text_accepts_every_draft(drafter):
    """With 8 more tokens to write than a round accepts, no round ends early."""
    state, _ = decode_all(
        TARGET, (), drafter, PROMPTS, limit=[len(prompt) + 4 * (drafter.depth + 1) for prompt in PROMPTS]
    )
    np.testing.assert_array_equal(state.counters.calls, 4)
    np.testing.assert_array_equal(state.counters.accepted_at, 4)


@pytest.mark.slow
def test_the_loop_copies_neither_caches_nor_the_part():
    """``support.loops`` has the cascade."""
    drafter = PartialCache(**CHUNKS)
    program = Program(drafter, 4, options={"xla_backend_optimization_level": 0})
    part = {leaf.size // leaf.shape[2] * (drafter.most + DRAFTS) for leaf in program.cache_leaves}
    assert hlo.moved(program.text, program.caches | program.weights | part, MOVES) == []
    assert hlo.host_calls(program.text) == []


@pytest.mark.parametrize("take", [partial_reader._take_at_once, partial_reader._take_run_by_run])
@pytest.mark.parametrize("heads", [1, 2])
def test_runs_are_slices(take, heads: int):
    """Both ways of reading runs, one of which TPUs take, against slices of numpy."""
    rng = np.random.default_rng(0)
    leaf, starts, size = rng.normal(size=(3, 2, 20, 4)).astype(np.float32), rng.integers(0, 16, (3, heads, 5)), 4
    wanted = [[[leaf[b, k, at : at + size] for at in starts[b, k % heads]] for k in range(2)] for b in range(3)]
    found = take(jnp.asarray(leaf), jnp.asarray(starts, jnp.int32), size=size)
    np.testing.assert_array_equal(found, np.reshape(wanted, (3, 2, 5 * size, 4)))


def test_means_are_kept_only_where_chunks_are_chosen():
    """A cache with fewer positions than the part needs none."""
    capacity = 64
    for options, kept in ((WINDOW, False), (CHUNKS, True), (CHUNKS | dict(cache_chunks=12), False)):
        means = PartialCache(**options).blank_means(TINY, 2, capacity, "float32")
        assert (means is not None) == kept
        if means is not None:
            assert means.capacity == (capacity - 2) // 5


@pytest.mark.parametrize("method", ["partial_cache", "partial_cascade"])
@pytest.mark.parametrize(
    "options",
    [
        dict(attention_sinks=-1),
        dict(draft_window=0),
        dict(cache_chunks=1.5),
        dict(chunk_size=0),
        dict(num_speculative_tokens=0),
    ],
    ids=str,
)
def test_impossible_parts_are_refused_in_one_line(method, options):
    with pytest.raises(RequestError) as error:
        Generator(language_model(TARGET), method, **options)
    assert next(iter(options)) in str(error.value) and "\n" not in str(error.value)


def test_targets_with_windows_are_refused_in_one_line():
    windowed = tiny_model(config=TINY.replace(windows=(None, 8)))
    with pytest.raises(RequestError, match="attention windows") as error:
        Generator(language_model(windowed), "partial_cache")
    assert "\n" not in str(error.value)
