"""Medusa and Hydra against plain Python: heads in float64, trees of tokens read text by text, typical acceptance path by path."""

import dataclasses
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import language_model, p_value, random_head, random_prompts, tiny_model
from test_feature_heads import ordinary
from test_tree_drafts import rounds, spelled, texts

from specjax import Generator, Hydra, Medusa, RequestError
from specjax.heads import KINDS, Head, HydraConfig, MedusaConfig, MedusaHeads
from specjax.tree import Tree, from_paths, topology
from specjax.verify import LOSSY, RULES, resolve

V = 23
TARGET = tiny_model(0, 8.0, vocab_size=V, num_layers=1)
E, L = TARGET.config.hidden_size, TARGET.config.num_layers
PROMPTS = [[7], *random_prompts(7, 30, V, seed=4)]
PUBLISHED = topology(str(Path(__file__).parents[2] / "docs/trees/mc_sim_7b_63.toml"))
CONFIGS = {
    "medusa": MedusaConfig(E, L, V, num_heads=4, num_layers=2),
    "hydra": HydraConfig(E, L, V, num_heads=4, num_layers=3, head_bias=True, own_embedding=True),
}
PREFIX = TARGET.config.replace(num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16, intermediate_size=40, norm_eps=1e-3)
CONFIGS["hydra++"] = dataclasses.replace(CONFIGS["hydra"], num_layers=2, layers=PREFIX)
HEADS = {name: random_head(KINDS[config.kind].module, config, seed=2) for name, config in CONFIGS.items()}
DRAFTERS = {name: (Medusa if name == "medusa" else Hydra)(PUBLISHED, config) for name, config in CONFIGS.items()}


def array(param) -> np.ndarray:
    return np.asarray(param[...], np.float64)


def plain_logits(heads: MedusaHeads, k: int, hidden: np.ndarray, tokens: list[int]) -> np.ndarray:
    """What head k says after a hidden state [E], and for Hydra the k + 1 tokens since."""
    head, x = heads.heads[k], hidden
    if heads.config.reads_tokens:
        x = np.concatenate([hidden, *array(heads.embed)[np.array(tokens)]])
    for j, block in enumerate(head.blocks):
        z = array(block.linear) @ x + array(block.linear_bias)
        kept = array(block.residual) @ x + array(block.residual_bias) if heads.config.reads_tokens and j == 0 else x
        x = kept + z / (1 + np.exp(-z))
    return array(head.head) @ x + (array(head.head_bias) if heads.config.reads_tokens else 0)


@partial(jax.jit, static_argnames="taps")
def read(model, tokens, taps: tuple[int, ...]):
    """Taps and logits of texts [B, S], without a cache."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    out = model(tokens, positions, jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool)), taps=taps)
    return out.taps, model.logits(out.hidden)


def seen(model, rows: list[list[int]], taps: tuple[int, ...]) -> tuple[list[np.ndarray], np.ndarray]:
    """For each row the taps [len(taps), n, E] of its tokens; and int [B, S], the target's own choice after each."""
    tokens = np.zeros((len(rows), 96), np.int32)
    for row, text in zip(tokens, rows):
        row[: len(text)] = text
    found, logits = read(model, jnp.asarray(tokens), taps)
    found = np.stack([np.asarray(tap, np.float64) for tap in found], 1)
    return [tap[:, : len(text)] for tap, text in zip(found, rows)], np.asarray(logits.argmax(-1))


def assert_greedy(prompts, rows: list[list[int]], choices: np.ndarray):
    """Every token after a prompt is the target's own choice after those before it."""
    for prompt, text, wanted in zip(prompts, rows, choices):
        assert text[len(prompt) :] == wanted[len(prompt) - 1 : len(text) - 1].tolist()


def normed(x: np.ndarray, weight, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * array(weight)


def likeliest(logits: np.ndarray, rank: int) -> int:
    return int(np.argsort(-logits, kind="stable")[rank])


@pytest.mark.parametrize("name", CONFIGS)
def test_heads_say_what_plain_python_says(name):
    heads, rng = HEADS[name], np.random.default_rng(0)
    hidden, tokens = rng.normal(size=(3, 1, E)), rng.integers(0, V, (3, 2, 4))

    @jax.jit
    def say(heads, hidden, tokens):
        return [heads.logits(TARGET, k, hidden, tokens[..., : k + 1]) for k in range(4)]

    for k, logits in enumerate(say(heads, jnp.asarray(hidden, jnp.float32), jnp.asarray(tokens, jnp.int32))):
        for b in range(3):
            for a in range(logits.shape[1]):
                wanted = plain_logits(heads, k, hidden[b, 0], tokens[b, a, : k + 1])
                np.testing.assert_allclose(logits[b, a], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_rounds_are_those_of_plain_python(name):
    """Trees of a ragged batch, read from texts without a cache, over several rounds; and the texts, which are the target's own."""
    heads, drafter, kept, before = HEADS[name], DRAFTERS[name], set(), PROMPTS
    for state, tree in rounds(TARGET, heads, drafter, 5, PROMPTS):
        now = texts(state)
        taps, choices = seen(TARGET, now, drafter.taps)
        assert_greedy(PROMPTS, now, choices)
        kept |= {len(text) - len(old) - 1 for text, old in zip(now, before)}
        states = [read_by(heads, tap[0]) for tap in taps]
        for b, text in enumerate(now):
            drafted = {}
            for path in PUBLISHED.paths:
                above = drafted[path[:-1]] if path else ()
                drafted[path] = (*above, likeliest(of_heads(heads, states[b], text, above), path[-1])) if path else ()
            assert spelled(tree, b) == list(drafted.values())
        before = now
    assert {0, 1, 2} <= kept


def read_by(heads, tap: np.ndarray) -> np.ndarray:
    """What heads read of a text whose last layer's output is ``tap`` [n, E]: for Hydra++ its prefix layer reads the whole text at once."""
    states = normed(tap, TARGET.norm, TARGET.config.norm_eps)
    if heads.config.layers is None:
        return states
    return normed(ordinary(heads.layers[0], heads.config.layers, states), heads.norm, heads.config.layers.norm_eps)


def of_heads(heads, states: np.ndarray, text: list[int], above: tuple[int, ...]) -> np.ndarray:
    """What the heads say below a node: they read the last token that the target has read, the one before the root. After a prompt of
    one token there is none, and a prefix layer makes nothing of nothing."""
    hidden = states[len(text) - 2] if len(text) > 1 else np.zeros(E)
    return plain_logits(heads, len(above), hidden, [text[-1], *above])


@pytest.mark.parametrize("name", CONFIGS)
def test_one_prompt_says_what_plain_decoding_says(name):
    generator = Generator(language_model(TARGET), CONFIGS[name].kind, Head(HEADS[name], CONFIGS[name], "head"), tree=PUBLISHED)
    for prompt in PROMPTS[:2]:
        result = generator(prompt, max_new_tokens=24, ignore_eos=True)
        rows = [prompt + result.token_ids] * len(PROMPTS)
        assert_greedy([prompt], rows, seen(TARGET, rows, (L,))[1])
        assert len(result.token_ids) == 24 and result.stats.accepted > 0


def test_the_published_tree():
    depths = np.bincount(PUBLISHED.depths)
    assert depths.tolist() == [1, 10, 28, 23, 2] and max(PUBLISHED.rank) == 9


def test_the_default_tree_is_as_deep_as_there_are_heads():
    deep = Medusa(head=MedusaConfig(E, L, V, num_heads=5))
    assert deep.depth == 5 and Medusa(head=MedusaConfig(E, L, V, num_heads=2)).depth == 2
    assert Medusa(head=MedusaConfig(E, L, V, num_heads=9)).depth == 5


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Medusa(from_paths([(0,), (0, 0)]), MedusaConfig(E, L, V, num_heads=1)), "2 deep and there are 1 heads"),
        (lambda: Medusa(from_paths([(V,)]), CONFIGS["medusa"]), f"rank {V}"),
        (lambda: Generator(language_model(TARGET), "medusa", Head(HEADS["hydra"], CONFIGS["hydra"], "h")), "kind medusa"),
        (lambda: Generator(language_model(TARGET), "hydra", language_model(TARGET)), "kind hydra"),
        (lambda: Generator(language_model(TARGET), "medusa", Head(HEADS["medusa"], CONFIGS["medusa"], "h"), rule="block"), "rule 'block'"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(make, named):
    with pytest.raises(RequestError) as error:
        make()
    assert named in str(error.value) and "\n" not in str(error.value)


PARENT = (0, 0, 0, 0, 1, 1, 2, 4, 4, 6)


def typically(p: np.ndarray, tokens: list[int], ties: bool = True, epsilon: float = 0.09, delta: float = 0.3) -> list[int]:
    """Medusa, section 2.3.1: of each candidate, a path to a leaf, the typical beginning; the longest wins, then the likeliest."""
    best = (0, 0, [0])
    for leaf in set(range(len(PARENT))) - set(PARENT):
        path = [leaf]
        while path[0]:
            path = [PARENT[path[0]], *path]
        kept, likely = [0], 0.0
        for parent, node in zip(path, path[1:]):
            law = p[parent]
            entropy = -sum(x * np.log(x) for x in law if x > 0)
            if not law[tokens[node]] > min(epsilon, delta * np.exp(-entropy)):
                break
            kept, likely = [*kept, node], likely + np.log(law[tokens[node]])
        best = max(best, (len(kept), likely if ties else -leaf, kept))
    return best[-1]


def trees(tokens) -> Tree:
    n, size = tokens.shape
    return Tree(jnp.asarray(tokens, jnp.int32), jnp.tile(jnp.array(PARENT), (n, 1)), jnp.ones((n, size), bool), max_depth=3)


@partial(jax.jit, static_argnames="rule")
def judge(rule: str, p, tree: Tree, key):
    keys = jax.vmap(lambda key: jax.random.split(key, 4))(jax.random.split(key, len(p)))
    return jax.vmap(RULES[rule])(p, tree, keys)


def judged(rule: str, p, tokens):
    return judge(rule, jnp.asarray(p, jnp.float32), trees(tokens), jax.random.key(0))


def test_typical_acceptance_is_that_of_the_paper():
    rng, n = np.random.default_rng(1), 300
    p = rng.dirichlet(np.full(8, 0.4), (n, len(PARENT)))
    tokens = rng.integers(0, 8, (n, len(PARENT)))
    tokens[:, 1:4] = [rng.permutation(8)[:3] for _ in range(n)]  # siblings differ
    tokens[:, 5] = (tokens[:, 4] + 1 + rng.integers(0, 7, n)) % 8
    tokens[:, 8] = (tokens[:, 7] + 1 + rng.integers(0, 7, n)) % 8
    found = judged("typical", p, tokens)
    paths = [typically(p[i], tokens[i].tolist()) for i in range(n)]
    assert [path[: len(wanted)].tolist() for path, wanted in zip(found.path, paths)] == paths
    assert np.asarray(found.length).tolist() == list(map(len, paths)) and set(map(len, paths)) == {1, 2, 3, 4}
    assert paths != [typically(p[i], tokens[i].tolist(), ties=False) for i in range(n)]
    greedy = np.eye(8)[p.argmax(-1)]
    for name in ("path", "length", "bonus"):  # at temperature 0 the walk
        np.testing.assert_array_equal(*(getattr(judged(rule, greedy, tokens), name) for rule in ("typical", "argmax_walk")))


def test_typical_acceptance_is_lossy_and_only_by_name():
    law, draws = np.array([0.4, 0.3, 0.2, 0.1, 0, 0, 0, 0]), 4000
    p, tokens = np.tile(law, (draws, len(PARENT), 1)), np.tile([0, 1, 2, 3, 0, 1, 0, 0, 1, 0], (draws, 1))
    said = {}
    for rule in ("sample_and_walk", "typical"):
        found = judged(rule, p, tokens)
        first = np.where(found.length > 1, np.take_along_axis(tokens, np.asarray(found.path[:, 1:2]), 1)[:, 0], found.bonus)
        said[rule] = p_value(np.bincount(first, minlength=8), law)
    assert said["sample_and_walk"] > 1e-3 and said["typical"] < 1e-20
    assert not any(resolve("auto", drawn) is RULES[rule] for rule in LOSSY for drawn in ("", "chain", "without_replacement", "independent"))
    lossy = Generator(language_model(TARGET), "medusa", Head(HEADS["medusa"], CONFIGS["medusa"], "head"), rule="typical")
    assert lossy.rule is RULES["typical"]
