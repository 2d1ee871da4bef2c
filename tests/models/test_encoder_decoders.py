"""Encoder-decoders: their logits, trees and greedy texts, and the checkpoints of transformers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.decoding import decode_all, start
from support.golden import ENCODER_DECODERS, golden_model, read_file
from support.models import disturbed, random_prompts
from support.parts import compile_parts

from specjax.core.cache import KVCache, commit
from specjax.core.tree import Tree, ancestors
from specjax.drafters import Adaptive, DraftModel, DraftTree, DynamicTree, Ngram, Suffix, Switch, TokenRecycling
from specjax.loop.prefill import read_source
from specjax.models import attention, past_attention
from specjax.models.decoder import Decoder
from specjax.models.relative_positions import Relative

NAMES = ["t5", "t5_1.1", "bart"]
TOLERANCE = 1e-4
PARENT = np.array([0, 0, 0, 1, 1, 2, 3, 6, 6, 5])


@pytest.fixture(scope="module", autouse=True)
def small_programs():
    """Short blocks of the past, so that there are several; see also ``support.parts``."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (attention, past_attention):
            patch.setattr(module, "PAST_CHUNK", 8)
        compile_parts(patch)
        yield


@pytest.fixture(scope="module")
def models() -> dict[str, Decoder]:
    return {name: golden_model(name) for name in NAMES}


def prompts_of(model: Decoder, sources) -> list[list[int]]:
    """Each source, followed by the first tokens of the decoder."""
    return [[*map(int, source), *model.config.decoder_prompt] for source in sources]


read = jax.jit(read_source, static_argnames="dtype")


def encoded(model: Decoder, source: np.ndarray, lengths: np.ndarray) -> KVCache:
    """The cache after the encoder has read the sources int32 [B, S], and the decoder nothing."""
    tokens = np.zeros((len(source), 24), np.int32)
    tokens[:, : source.shape[1]] = source
    return read(model, jnp.asarray(tokens), jnp.asarray(lengths, jnp.int32), dtype="float32")


@jax.jit
def chain(model: Decoder, cache: KVCache, tokens: np.ndarray) -> tuple[jax.Array, tuple]:
    """Logits [B, N, V] of tokens int32 [B, N] that follow the cache one after another, and their rows."""
    N = tokens.shape[1]
    out = model(jnp.asarray(tokens), cache.length[:, None] + jnp.arange(N), jnp.tri(N, dtype=bool), cache)
    return model.logits(out.hidden), out.rows


def test_every_model_is_recorded():
    assert {path.stem for path in ENCODER_DECODERS} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name: str, models):
    tensors, model = read_file(name)[0], models[name]
    golden, tokens = tensors["logits"], tensors["tokens"]
    cache = encoded(model, tensors["source"], tensors["lengths"])
    found, rows = chain(model, cache, tokens)
    assert np.abs(found - golden).max() / np.abs(golden).max() < TOLERANCE
    # Committed tokens are read from the cache, in rows of different lengths.
    kept = jnp.array([11, 6])
    cache = commit(cache, rows, None, cache.length + kept, valid=jnp.ones(2, bool))
    at = kept[:, None] + jnp.arange(8)
    found, _ = chain(model, cache, jnp.take_along_axis(jnp.asarray(tokens), at, 1))
    expected = np.take_along_axis(golden, np.asarray(at)[..., None], 1)
    assert np.abs(found - expected).max() / np.abs(golden).max() < TOLERANCE


def test_a_source_does_not_depend_on_the_tokens_behind_it(models):
    model = models["bart"]
    source = np.random.default_rng(0).integers(0, 32, (1, 9))
    short, long = encoded(model, source[:, :5], np.array([5])), encoded(model, source, np.array([5]))
    for one, other in zip(jax.tree.leaves(short.source), jax.tree.leaves(long.source)):
        np.testing.assert_allclose(one[:, :, :5], other[:, :, :5], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_path_of_a_tree_equals_the_same_tokens_as_a_chain(name: str, models):
    model, rng = models[name], np.random.default_rng(0)
    N, begin = len(PARENT), 9
    source, prefix = rng.integers(0, 32, (1, 13)), rng.integers(0, 32, begin)
    tokens = jnp.asarray(rng.integers(0, 32, N), jnp.int32)
    tree = Tree(tokens, jnp.asarray(PARENT), jnp.ones(N, bool), max_depth=5)
    seen = ancestors(tree)
    empty = encoded(model, source, np.array([13]))
    cache = commit(empty, chain(model, empty, prefix[None])[1], None, empty.length + begin, valid=jnp.ones(1, bool))
    positions = (13 + begin + seen.sum(-1) - 1)[None]
    found = model.logits(model(tokens[None], positions, seen, cache).hidden)[0]

    paths = [np.flatnonzero(row) for row in np.asarray(seen)]  # ancestors come before descendants
    texts = np.zeros((N, begin + 5), np.int32)
    texts[:, :begin] = prefix
    for text, path in zip(texts, paths):
        text[begin : begin + len(path)] = tokens[path]
    expected, _ = chain(model, jax.tree.map(lambda leaf: jnp.repeat(leaf, N, 0), empty), texts)
    for node, path in enumerate(paths):
        np.testing.assert_allclose(found[node], expected[node, begin + len(path) - 1], rtol=1e-4, atol=1e-4)


SOURCES = {"one row": random_prompts(1, 12, 32), "ragged": random_prompts(8, 20, 32, seed=1)}
DRAFTERS = {
    "ngram": Ngram(num_speculative_tokens=3),
    "suffix": Suffix(num_speculative_tokens=3),
    "token recycling": TokenRecycling(),
    "draft": DraftModel(num_speculative_tokens=3),
    "tree": DraftTree(),
    "dynamic tree": DynamicTree(tree_nodes=7, tree_depth=3, tree_top_k=2),
    "switch": Switch((Ngram(num_speculative_tokens=3), DraftModel(num_speculative_tokens=3))),
    "adaptive": Adaptive(Ngram(num_speculative_tokens=2)),
}
FIRST_TIER = [("t5", "dynamic tree", "ragged")]
SETTINGS = [
    *FIRST_TIER,
    ("t5", "ngram", "ragged"),
    ("bart", "dynamic tree", "one row"),
    ("t5", "switch", "ragged"),
    ("t5_1.1", "draft", "ragged"),
    ("t5_1.1", "suffix", "one row"),
    ("t5", "tree", "one row"),
    ("t5", "adaptive", "one row"),
    ("t5", "token recycling", "one row"),
]


@pytest.mark.parametrize(
    "name, drafter, batch",
    [pytest.param(*s, marks=() if s in FIRST_TIER else pytest.mark.slow, id="-".join(s)) for s in SETTINGS],
)
def test_greedy_speculative_decoding_emits_the_likeliest_tokens(name: str, drafter: str, batch: str, models):
    target, drafting, sources = models[name], DRAFTERS[drafter], SOURCES[batch]
    draft = disturbed(target, 0.2) if drafter in ("draft", "tree", "dynamic tree", "switch") else ()
    prompts = prompts_of(target, sources)
    options = dict(limit=[len(prompt) + 16 for prompt in prompts], capacity=64, chunk=32, temperature=0.0)
    state, found = decode_all(target, drafting.parameters(draft, 32), drafting, prompts, **options)
    lengths = np.array([len(source) for source in sources])
    padded = np.array([[*source, *[0] * 20][:20] for source in sources])
    begin = target.config.decoder_prompt
    logits, _ = chain(target, encoded(target, padded, lengths), np.array([[*begin, *new] for new in found]))
    best = np.asarray(logits.argmax(-1))[:, len(begin) - 1 : -1]
    assert [row.tolist() for row in best] == found
    assert all(len(new) == 16 for new in found)
    if drafter in ("draft", "dynamic tree", "tree"):
        assert state.counters.accepted_at.sum() > 0


def test_ngrams_copy_from_the_source(models):
    """A row whose root occurs in its source gets the tokens that follow there."""
    target, drafter = models["t5"], Ngram(num_speculative_tokens=2)
    prompt = prompts_of(target, [[5, 0, 7, 9, 11]])  # the decoder begins with token 0
    state = start(target, None, drafter, prompt, capacity=32, chunk=32)
    tree, _ = drafter.propose(target, None, state, state.request.keys)
    assert tree.tokens[0].tolist() == [0, 7, 9] and tree.valid.all()


@pytest.mark.parametrize(("buckets", "most"), [(8, 12), (32, 128)])
@pytest.mark.parametrize("both", [False, True])
def test_buckets_of_distances_are_those_of_the_paper(buckets: int, most: int, both: bool):
    """Section 2.1 of Raffel et al.: single distances first, then logarithmic ranges, and one for all farther away."""
    found = Relative(buckets, most).numbers(both)
    back = found[: most + 1][::-1]  # of distances 0, 1, ... to earlier tokens
    count = buckets // 2 if both else buckets
    single = count // 2
    assert back[:single].tolist() == list(range(single))
    assert np.all(np.diff(back) >= 0) and back[-1] == count - 1
    ahead = found[most:]
    assert ahead[1:].tolist() == (back[1:] + count).tolist() if both else not ahead.any()
