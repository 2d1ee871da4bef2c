"""Medusa and Hydra against plain Python in float64, and typical acceptance path by path."""

import dataclasses
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.decoding import rounds, spell_paths, texts
from support.models import language_model, p_value, random_head, random_prompts, tiny_model
from support.numpy_layer import ordinary
from support.reference import array, assert_greedy, normed, rank_tokens, read_target

from specjax import Generator, RequestError
from specjax.core.tree import Tree, from_paths, topology
from specjax.drafters import Hydra, Medusa
from specjax.heads import KINDS, Head, HydraConfig, MedusaConfig, MedusaHeads
from specjax.rules import RULES
from specjax.rules.acceptance import Drawn, resolve

V = 23
TARGET = tiny_model(0, 8.0, vocab_size=V, num_layers=1)
E, L = TARGET.config.hidden_size, TARGET.config.num_layers
PROMPTS = [[7], *random_prompts(7, 30, V, seed=4)]
PUBLISHED = topology(str(Path(__file__).parents[2] / "docs/trees/mc_sim_7b_63.toml"))
CONFIGS = {
    "medusa": MedusaConfig(E, L, V, num_heads=4, num_layers=2),
    "hydra": HydraConfig(E, L, V, num_heads=4, num_layers=3, head_bias=True, own_embedding=True),
}
PREFIX = TARGET.config.replace(
    num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16, intermediate_size=40, norm_eps=1e-3
)
CONFIGS["hydra++"] = dataclasses.replace(CONFIGS["hydra"], num_layers=2, layers=PREFIX)
HEADS = {name: random_head(KINDS[config.kind].module, config, seed=2) for name, config in CONFIGS.items()}
DRAFTERS = {name: (Medusa if name == "medusa" else Hydra)(PUBLISHED, head=config) for name, config in CONFIGS.items()}


def plain_logits(heads: MedusaHeads, k: int, hidden: np.ndarray, tokens: list[int]) -> np.ndarray:
    """Logits [V] of head k after a hidden state [E], for Hydra with the k + 1 tokens since."""
    head, x = heads.heads[k], hidden
    if heads.config.reads_tokens:
        x = np.concatenate([hidden, *array(heads.embed)[np.array(tokens)]])
    for j, block in enumerate(head.blocks):
        z = array(block.linear) @ x + array(block.linear_bias)
        kept = array(block.residual) @ x + array(block.residual_bias) if heads.config.reads_tokens and j == 0 else x
        x = kept + z / (1 + np.exp(-z))
    return array(head.head) @ x + (array(head.head_bias) if heads.config.reads_tokens else 0)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_of_heads_equal_plain_python(name):
    heads, rng = HEADS[name], np.random.default_rng(0)
    hidden, tokens = rng.normal(size=(3, 1, E)), rng.integers(0, V, (3, 2, 4))

    @jax.jit
    def compute(heads, hidden, tokens):
        return [heads.logits(TARGET, k, hidden, tokens[..., : k + 1]) for k in range(4)]

    for k, logits in enumerate(compute(heads, jnp.asarray(hidden, jnp.float32), jnp.asarray(tokens, jnp.int32))):
        for b in range(3):
            for a in range(logits.shape[1]):
                wanted = plain_logits(heads, k, hidden[b, 0], tokens[b, a, : k + 1])
                np.testing.assert_allclose(logits[b, a], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["medusa", pytest.param("hydra", marks=pytest.mark.slow), "hydra++"])
def test_trees_of_every_round_equal_plain_python(name):
    """The batch is ragged. The texts are greedy."""
    heads, drafter, kept, before = HEADS[name], DRAFTERS[name], set(), PROMPTS
    for state, tree in rounds(TARGET, heads, drafter, 5, PROMPTS):
        now = texts(state)
        taps, choices = read_target(TARGET, now, drafter.taps)
        assert_greedy(PROMPTS, now, choices)
        kept |= {len(text) - len(old) - 1 for text, old in zip(now, before)}
        states = [read_states(heads, tap[0]) for tap in taps]
        for b, text in enumerate(now):
            drafted = {}
            for path in PUBLISHED.paths:
                above = drafted[path[:-1]] if path else ()
                drafted[path] = (
                    (*above, rank_tokens(logits_below(heads, states[b], text, above), path[-1] + 1)[-1]) if path else ()
                )
            assert spell_paths(tree, b) == list(drafted.values())
        before = now
    assert {0, 1, 2} <= kept


def read_states(heads, tap: np.ndarray) -> np.ndarray:
    """The hidden states [n, E] that heads read, from the last layer's output ``tap`` [n, E].

    Hydra++ puts its prefix layer between.
    """
    states = normed(tap, TARGET.norm, TARGET.config.norm_eps)
    if heads.config.layers is None:
        return states
    return normed(ordinary(heads.layers[0], heads.config.layers, states), heads.norm, heads.config.layers.norm_eps)


def logits_below(heads, states: np.ndarray, text: list[int], above: tuple[int, ...]) -> np.ndarray:
    """Logits below a node.

    Heads read the hidden state of the token before the root; after a prompt of one token it is
    zero.
    """
    hidden = states[len(text) - 2] if len(text) > 1 else np.zeros(E)
    return plain_logits(heads, len(above), hidden, [text[-1], *above])


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_a_prompt_alone_gets_the_greedy_text(name):
    generator = Generator(
        language_model(TARGET), CONFIGS[name].kind, Head(HEADS[name], CONFIGS[name], "head"), tree=PUBLISHED
    )
    for prompt in PROMPTS[:2]:
        result = generator(prompt, max_new_tokens=24, ignore_eos=True)
        rows = [prompt + result.token_ids] * len(PROMPTS)
        assert_greedy([prompt], rows, read_target(TARGET, rows, (L,))[1])
        assert len(result.token_ids) == 24 and result.stats.accepted > 0


def test_the_published_tree_has_63_nodes_in_four_levels():
    depths = np.bincount(PUBLISHED.depths)
    assert depths.tolist() == [1, 10, 28, 23, 2] and max(PUBLISHED.rank) == 9


def test_the_default_tree_is_no_deeper_than_the_number_of_heads():
    deep = Medusa(head=MedusaConfig(E, L, V, num_heads=5))
    assert deep.depth == 5 and Medusa(head=MedusaConfig(E, L, V, num_heads=2)).depth == 2
    assert Medusa(head=MedusaConfig(E, L, V, num_heads=9)).depth == 5


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (
            lambda: Medusa(from_paths([(0,), (0, 0)]), head=MedusaConfig(E, L, V, num_heads=1)),
            "2 deep and there are 1 heads",
        ),
        (lambda: Medusa(from_paths([(V,)]), head=CONFIGS["medusa"]), f"rank {V}"),
        (
            lambda: Generator(language_model(TARGET), "medusa", Head(HEADS["hydra"], CONFIGS["hydra"], "h")),
            "kind medusa",
        ),
        (lambda: Generator(language_model(TARGET), "hydra", language_model(TARGET)), "kind hydra"),
        (
            lambda: Generator(
                language_model(TARGET), "medusa", Head(HEADS["medusa"], CONFIGS["medusa"], "h"), rule="block"
            ),
            "rule 'block'",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_line(make, named):
    with pytest.raises(RequestError) as error:
        make()
    assert named in str(error.value) and "\n" not in str(error.value)


PARENT = (0, 0, 0, 0, 1, 1, 2, 4, 4, 6)


def accept_typically(
    p: np.ndarray, tokens: list[int], ties: bool = True, epsilon: float = 0.09, delta: float = 0.3
) -> list[int]:
    """Medusa, section 2.3.1: the typical beginning of each path to a leaf; the longest wins, then
    the likeliest.
    """
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


def make_trees(tokens) -> Tree:
    n, size = tokens.shape
    return Tree(
        jnp.asarray(tokens, jnp.int32), jnp.tile(jnp.array(PARENT), (n, 1)), jnp.ones((n, size), bool), max_depth=3
    )


@partial(jax.jit, static_argnames="rule")
def _apply_rule(rule: str, p, tree: Tree, key):
    keys = jax.vmap(lambda key: jax.random.split(key, 4))(jax.random.split(key, len(p)))
    return jax.vmap(RULES[rule])(p, tree, keys)


def apply_rule(rule: str, p, tokens):
    return _apply_rule(rule, jnp.asarray(p, jnp.float32), make_trees(tokens), jax.random.key(0))


def test_typical_acceptance_equals_the_papers_formula():
    rng, n = np.random.default_rng(1), 300
    p = rng.dirichlet(np.full(8, 0.4), (n, len(PARENT)))
    tokens = rng.integers(0, 8, (n, len(PARENT)))
    tokens[:, 1:4] = [rng.permutation(8)[:3] for _ in range(n)]  # siblings differ
    tokens[:, 5] = (tokens[:, 4] + 1 + rng.integers(0, 7, n)) % 8
    tokens[:, 8] = (tokens[:, 7] + 1 + rng.integers(0, 7, n)) % 8
    found = apply_rule("typical", p, tokens)
    paths = [accept_typically(p[i], tokens[i].tolist()) for i in range(n)]
    assert [path[: len(wanted)].tolist() for path, wanted in zip(found.path, paths)] == paths
    assert np.asarray(found.length).tolist() == list(map(len, paths)) and set(map(len, paths)) == {1, 2, 3, 4}
    assert paths != [accept_typically(p[i], tokens[i].tolist(), ties=False) for i in range(n)]
    greedy = np.eye(8)[p.argmax(-1)]
    for name in ("path", "length", "bonus"):  # at temperature 0 the walk
        np.testing.assert_array_equal(
            *(getattr(apply_rule(rule, greedy, tokens), name) for rule in ("typical", "argmax_walk"))
        )


def test_typical_acceptance_is_lossy_and_never_chosen_by_auto():
    law, draws = np.array([0.4, 0.3, 0.2, 0.1, 0, 0, 0, 0]), 4000
    p, tokens = np.tile(law, (draws, len(PARENT), 1)), np.tile([0, 1, 2, 3, 0, 1, 0, 0, 1, 0], (draws, 1))
    said = {}
    for rule in ("sample_and_walk", "typical"):
        found = apply_rule(rule, p, tokens)
        first = np.where(
            found.length > 1, np.take_along_axis(tokens, np.asarray(found.path[:, 1:2]), 1)[:, 0], found.bonus
        )
        said[rule] = p_value(np.bincount(first, minlength=8), law)
    assert said["sample_and_walk"] > 1e-3 and said["typical"] < 1e-20
    assert not any(resolve("auto", drawn).lossy for drawn in Drawn)
    lossy = Generator(
        language_model(TARGET), "medusa", Head(HEADS["medusa"], CONFIGS["medusa"], "head"), rule="typical"
    )
    assert lossy.session.rule is RULES["typical"]
