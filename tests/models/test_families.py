"""Each family of models in trees and in speculative decoding.

The models are those of ``test_golden``, so their logits are right. The oracles here are the same model on a
chain, and the likeliest token after each prefix.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.decoding import decode_all
from support.golden import FILES, golden_model, read_file
from support.models import disturbed, random_prompts
from support.pairwise import pairwise_cover
from support.parts import compile_parts
from support.told import Told

from specjax.checkpoints.config import from_hf
from specjax.checkpoints.families import FAMILIES
from specjax.core import cache as kv
from specjax.core.tree import Tree, ancestors
from specjax.drafters import DraftModel, DynamicTree, Ngram

LLAMAS = ("llama", "mistral", "qwen2", "qwen3")
"""The families with Llama's layers, which the tests of methods use as targets."""

MODELS = [path.stem for path in FILES if read_file(path.stem)[1]["model_type"] not in LLAMAS]
MODELS.remove("phi3_longrope_cached")  # the model of "phi3_longrope"
PARENT = np.array([0, 0, 0, 1, 1, 2, 3, 6, 6, 5])
START, NEW, SPACE = 9, 16, 64
DRAFTERS = {
    "ngram": Ngram(num_speculative_tokens=3),
    "draft": DraftModel(num_speculative_tokens=3),
    "dynamic tree": DynamicTree(tree_nodes=7, tree_depth=3, tree_top_k=2),
}
PROMPTS = {"one row": random_prompts(1, 12, 32), "ragged": random_prompts(8, 20, 32, seed=1)}
TREES_IN_FIRST_TIER = ["olmo2", "opt_350m"]
FURTHER_TREES = ["gpt_oss"]


def mechanisms(name: str) -> set[tuple]:
    """The properties of a model's layers and positions that the logits of a tree's nodes depend on."""
    config = from_hf(read_file(name)[1])
    found = {
        ("bias", type(config.relative)), ("table of positions", config.position_offset is not None),
        ("local layers", len(set(config.windows))), ("local rope", config.local_rope is not None),
        ("per layer", config.per_layer_size > 0), ("mixers", len({type(layer.mixer) for layer in config.layers})),
    }  # fmt: skip
    for layer in config.layers:
        rope = getattr(layer.mixer, "rope", None)
        found |= {("mixer", type(layer.mixer)), ("mlp", type(layer.mlp)), ("form", layer.normed, layer.parallel)}
        found |= {("norm", layer.norm.kind), ("rope", rope and rope.rope_type), ("rotated", rope and rope.rotated)}
        flags = (
            "sinks",
            "output_gate",
            "keys_as_values",
            "value_norm",
            "qk_norm",
            "whole_qk_norm",
            "norm_after",
            "plain_qk_norm",
        )
        found |= {(flag, getattr(layer.mixer, flag, False)) for flag in flags}
        scores = getattr(layer.mixer, "scores", None)
        found |= {("chunks", scores is not None and scores.chunk is not None)}
        found |= {("temperature", getattr(layer.mixer, "temperature", None) is not None)}
    return found


def cover_mechanisms(names: list[str]) -> list[str]:
    """Few models that have every mechanism of all, those with most first."""
    seen, chosen = set(), []
    for name in sorted(names, key=lambda name: -len(mechanisms(name))):
        if mechanisms(name) - seen:
            chosen.append(name)
            seen |= mechanisms(name)
    return chosen


TREES = sorted({*cover_mechanisms(MODELS), *TREES_IN_FIRST_TIER, *FURTHER_TREES})
"""Models whose trees are tested node by node. The trees of others decode texts, or are those of one of these."""


def properties(name: str, drafter: str, batch: str) -> dict:
    """The properties whose pairs the tests of greedy texts cover: those of the state that a commit writes."""
    config = from_hf(read_file(name)[1])
    return {
        "drafter": drafter,
        "batch": batch,
        "local layers": len(set(config.windows)),
        "experts": len(set(config.mlps)),
        "mixers": len({type(layer.mixer) for layer in config.layers}),
    }


SETTINGS = pairwise_cover({s: properties(*s) for s in itertools.product(MODELS, DRAFTERS, PROMPTS)})

TOLD = Told()
TOLD_IN_FIRST_TIER = ["gemma2"]
"""Local layers, bounds of scores and norms on both sides. ``test_delta_rule`` covers recurrent states."""
OF_SUMS = {
    "norm", "rope", "form", "mlp", "qk_norm", "value_norm", "whole_qk_norm", "norm_after", "plain_qk_norm",
    "output_gate",
}  # fmt: skip
"""The mechanisms that change the numbers of a layer. They change neither its cache nor the rows that a node sees."""


def one_for_each_cache(names: list[str]) -> list[str]:
    """The first of the models that keep the same kinds of rows and states."""
    caches = {frozenset(one for one in mechanisms(name) if one[0] not in OF_SUMS): name for name in reversed(names)}
    return sorted(caches.values())


TOLD_MODELS = one_for_each_cache([*TOLD_IN_FIRST_TIER, *MODELS])

commit = jax.jit(kv.commit)


@pytest.fixture
def small_programs():
    """See ``support.parts``."""
    with pytest.MonkeyPatch.context() as patch:
        compile_parts(patch)
        yield


def test_every_decoder_of_other_layers_is_met():
    families = {read_file(name)[1]["model_type"] for name in MODELS}
    assert families == FAMILIES.keys() - {*LLAMAS, "t5", "bart"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in TREES_IN_FIRST_TIER else pytest.mark.slow) for name in TREES]
)
def test_each_path_of_a_tree_equals_the_same_tokens_as_a_chain(name: str, small_programs):
    model = golden_model(name)
    N, rng = len(PARENT), np.random.default_rng(0)
    prefix = jnp.asarray(rng.integers(0, 32, START), jnp.int32)
    tokens = jnp.asarray(rng.integers(0, 32, N), jnp.int32)
    tree = Tree(tokens, jnp.asarray(PARENT), jnp.ones(N, bool), max_depth=5)
    seen = ancestors(tree)
    positions = (START + seen.sum(-1) - 1)[None]
    past = score(model, prefix[None], jnp.arange(START)[None])
    cache = kv.empty(model.config, 1, 24, jnp.float32)
    cache = commit(cache, past.rows, None, jnp.array([START]), valid=jnp.ones(1, bool))
    found = model.logits(model(tokens[None], positions, seen, cache).hidden)[0]

    paths = [np.flatnonzero(row) for row in np.asarray(seen)]  # ancestors come before descendants
    texts = np.zeros((N, START + 5), np.int32)
    texts[:, :START] = prefix
    for text, path in zip(texts, paths):
        text[START : START + len(path)] = tokens[path]
    places = jnp.broadcast_to(jnp.arange(START + 5), texts.shape)
    expected = model.logits(score(model, jnp.asarray(texts), places).hidden)
    for node, path in enumerate(paths):
        np.testing.assert_allclose(found[node], expected[node, START + len(path) - 1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in TOLD_IN_FIRST_TIER else pytest.mark.slow) for name in TOLD_MODELS]
)
def test_trees_around_the_text_leave_it_greedy(name: str, small_programs):
    """The first time the drafter is told nothing. The second time it is told the text, in the same program."""
    target, prompts = golden_model(name), PROMPTS["ragged"]
    text = np.zeros((len(prompts), SPACE + TOLD.depth), np.int32)
    state, found = decode_greedily(target, text, TOLD, prompts)
    assert_likeliest(target, prompts, found)
    text[:, :SPACE] = state.tokens
    told, again = decode_greedily(target, text, TOLD, prompts)
    assert again == found
    assert 2 * told.counters.calls.sum() < NEW * len(prompts)


@pytest.mark.slow
@pytest.mark.parametrize("name, drafter, batch", [pytest.param(*s, id="-".join(s)) for s in SETTINGS])
def test_greedy_speculative_decoding_emits_the_likeliest_tokens(name: str, drafter: str, batch: str, small_programs):
    target, drafting, prompts = golden_model(name), DRAFTERS[drafter], PROMPTS[batch]
    draft = drafting.parameters((), 32) if drafter == "ngram" else disturbed(target, 0.2)
    assert_likeliest(target, prompts, decode_greedily(target, draft, drafting, prompts)[1])


def decode_greedily(target, draft, drafter, prompts) -> tuple:
    """See ``decode_all``."""
    limit = [len(prompt) + NEW for prompt in prompts]
    return decode_all(target, draft, drafter, prompts, limit=limit, capacity=SPACE, chunk=32, temperature=0.0)


def assert_likeliest(target, prompts, found) -> None:
    """Each new token is the argmax of a forward without a cache."""
    longest = max(len(prompt) for prompt in prompts) + NEW
    texts = np.array([[*prompt, *new, *[0] * longest][:longest] for prompt, new in zip(prompts, found)], np.int32)
    lengths = jnp.array([len(prompt) for prompt in prompts])[:, None]  # longrope depends on the prompt's length
    places = jnp.broadcast_to(jnp.arange(longest), texts.shape)
    mask = jnp.tri(longest, dtype=bool)
    out = target(jnp.asarray(texts), places, mask, rope_lengths=jnp.maximum(places + 1, lengths))
    best = np.asarray(target.logits(out.hidden).argmax(-1))
    for prompt, new, row in zip(prompts, found, best):
        assert len(new) == NEW and new == row[len(prompt) - 1 : len(prompt) + NEW - 1].tolist()


def score(model, tokens, positions):
    """The output for tokens [B, N] without a cache."""
    return model(tokens, positions, jnp.tri(tokens.shape[1], dtype=bool))
