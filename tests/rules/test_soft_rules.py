"""Soft rules against plain Python over paths, and texts of the loop against forwards without a cache."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from support.models import disturbed, language_model, random_prompts, tiny_model
from support.reference import logits_after, softmax

from specjax import Generator, RequestError
from specjax.core.tree import Tree
from specjax.rules import RULES
from specjax.rules.acceptance import Drawn, accept, is_lossy, resolve
from specjax.rules.soft import Loosening, NearMatch, SoftMatch

WORDS, PARENT = 5, [0, 0, 0, 1, 1, 2, 3]
DEPTH = 3
TARGET = language_model(tiny_model(0, 8.0, num_layers=1), "target")
DRAFT = language_model(disturbed(TARGET.model, 0.2), "draft")


def best_path(p, tokens, margin: float) -> list[int]:
    """The longest path whose tokens are within the margin, of equals the most probable."""
    paths, chances = {0: [0]}, {0: 0.0}
    for i in range(1, len(PARENT)):
        after, token = p[PARENT[i]], tokens[i]
        if PARENT[i] in paths and after[token] > 0 and after[token] >= after.max() - margin:
            paths[i], chances[i] = [*paths[PARENT[i]], i], chances[PARENT[i]] + np.log(after[token])
    return max(paths.values(), key=lambda path: (len(path), chances[path[-1]]))


def verdicts(rule, p, tokens, facts):
    trees = lambda tokens: Tree(tokens, jnp.array(PARENT), jnp.ones(len(PARENT), bool), max_depth=DEPTH)
    keys = random.split(random.key(0), (len(p), DEPTH + 1))
    apply = lambda p, tokens, key, facts: rule(p, trees(tokens), key, **facts)
    return jax.device_get(jax.jit(jax.vmap(apply))(jnp.float32(p), jnp.int32(tokens), keys, facts))


@pytest.mark.parametrize(
    ("rule", "reads", "margin"),
    [
        (SoftMatch(0.3), RULES["soft_match"].reads, lambda rate: 0.3),
        (SoftMatch(1.0), RULES["soft_match"].reads, lambda rate: 1.0),
        (Loosening(0.6, 0.5), RULES["loosening"].reads, lambda rate: 0.6 * max(0, 1 - rate / 0.5)),
    ],
)
def test_the_longest_path_within_the_margin_is_kept(rule, reads, margin):
    rng, rows = np.random.default_rng(0), 400
    p = rng.dirichlet(np.full(WORDS, 0.6), (rows, len(PARENT))) * (rng.random((rows, len(PARENT), WORDS)) < 0.8)
    p = np.where(p.sum(-1, keepdims=True) > 0, p, 1)
    p = np.float32(p / p.sum(-1, keepdims=True))
    tokens, greedy = rng.integers(0, WORDS, (rows, len(PARENT))), rng.random(rows) < 0.5
    tokens[:, [1, 2]] = [rng.permutation(WORDS)[:2] for _ in range(rows)]  # siblings differ
    tokens[:, 4] = (tokens[:, 3] + 1) % WORDS
    rate = np.float32(rng.choice([0, 0.1, 0.4, 0.5, 0.9], rows))
    facts = {"greedy": greedy, "rate": rate}
    found = verdicts(rule, p, tokens, {name: facts[name] for name in reads})
    wanted = [best_path(p[b], tokens[b], margin(rate[b])) for b in range(rows)]
    assert [found.path[b][: found.length[b]].tolist() for b in range(rows)] == wanted
    assert {1, 2, 3, 4} == set(map(len, wanted))
    after = p[np.arange(rows), [path[-1] for path in wanted]]
    assert np.all(found.bonus[greedy] == after[greedy].argmax(-1)) and np.all(after[np.arange(rows), found.bonus] > 0)
    assert np.any(found.bonus[~greedy] != after[~greedy].argmax(-1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "margin"),
    [("soft_match=0.3", 0.3), ("soft_match=0", 0.0), ("loosening=0.3", 0.3)],
)
def test_greedy_texts_hold_near_best_drafts_and_the_targets_own_tokens(rule, margin):
    """A draft in the text is within the margin, and any other token is the target's choice."""
    generator = Generator(TARGET, "draft_model", DRAFT, rule=rule, num_speculative_tokens=3, capacity=64)
    others = 0
    for result in generator(random_prompts(4, 8, seed=3), max_new_tokens=20, ignore_eos=True):
        assert result.stats.lossy
        for i, (token, drafted) in enumerate(zip(result.token_ids, result.from_draft)):
            p = softmax(logits_after(TARGET.model, result.prompt_token_ids + result.token_ids[:i]))
            assert p[token] >= p.max() - (margin if drafted else 0) - 1e-5
            others += p[token] < p.max() - 1e-5
    assert (others > 0) == (margin > 0)


@pytest.mark.slow
def test_near_match_keeps_drafts_whose_embeddings_are_near_the_targets_choice():
    """Drafts in the text against cosines by numpy."""
    generator = Generator(TARGET, "draft_model", DRAFT, rule="near_match=0.9", num_speculative_tokens=3, capacity=64)
    table = np.asarray(TARGET.model.embed[...], np.float64)
    table /= np.linalg.norm(table, axis=-1, keepdims=True)
    others = 0
    for result in generator(random_prompts(6, 8, seed=3), max_new_tokens=20, ignore_eos=True):
        assert result.stats.lossy
        for i, (token, drafted) in enumerate(zip(result.token_ids, result.from_draft)):
            choice = logits_after(TARGET.model, result.prompt_token_ids + result.token_ids[:i]).argmax()
            assert token == choice or drafted and table[token] @ table[choice] >= 0.1 - 1e-5
            others += token != choice
    assert others > 3


def test_near_match_by_hand():
    """A chain 0, 3, 1: of the embeddings below, 3 is near the likely 2, and 1 is at a right angle to it."""
    embeddings = jnp.array([[1.0, 0], [0, -5], [1, 0.1], [2, 0.4], [0, 0]])
    tree = Tree(jnp.array([[0, 3, 1]]), jnp.array([[0, 0, 1]]), jnp.ones((1, 3), bool), max_depth=2)
    p = jnp.array([[[0.0, 0.1, 0.6, 0.3, 0], [0.1, 0.2, 0.6, 0.1, 0], [0.0, 0, 0, 0.9, 0.1]]])
    keys, target = (
        random.split(random.key(0), (1, 3)),
        SimpleNamespace(token_embeddings=lambda tokens: embeddings[tokens]),
    )
    cosine = lambda a, b: float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    far = 1 - cosine(embeddings[2], embeddings[3])

    @jax.jit
    def judge(margin, p):
        rule = dataclasses.replace(RULES["near_match"], apply=RULES["near_match"].with_margin(margin))
        return accept(rule, p, tree, keys, jnp.zeros(1), target=target).length[0]

    length = lambda margin, p=p: int(judge(margin, p))
    assert [length(margin) for margin in (0.9, far + 1e-4, far - 1e-4, 0.0, 1.0)] == [2, 2, 1, 1, 2]
    assert length(0.9, p.at[0, 0, 3].set(0)) == 1  # a forbidden token
    assert length(0.0, p.at[0, 0, 3].set(0.7)) == 2  # the target's own choice
    with pytest.raises(RequestError, match="the target has no token_embeddings; use another rule"):
        accept(RULES["near_match"], p, tree, keys, jnp.zeros(1))


def test_soft_rules_are_lossy_and_never_chosen_by_auto():
    assert not any(resolve("auto", drawn).lossy for drawn in Drawn)
    assert resolve("soft_match=0.05", Drawn.CHOSEN).apply == SoftMatch(0.05)
    assert resolve("loosening=0.4", Drawn.CHAIN).apply == Loosening(0.4)
    assert resolve("near_match=0.4", Drawn.CHAIN).apply == NearMatch(0.4)
    assert resolve("soft_match=0.2", Drawn.CHAIN) == RULES["soft_match"] != resolve("soft_match=0.1", Drawn.CHAIN)
    names = ("soft_match", "soft_match=0.1", "loosening", "near_match", "typical", "block")
    assert [is_lossy(name, sampled=False) for name in names] == [True, True, True, True, False, False]
    assert [is_lossy(name, sampled=True) for name in names] == [True, True, True, True, True, False]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("soft_match=2", "margin of rule 'soft_match' must be a number from 0 to 1, not '2'"),
        ("loosening=nan", "not 'nan'"),
        ("soft_match=", "not ''"),
        ("near_match=-1", "margin of rule 'near_match' must be a number from 0 to 1, not '-1'"),
        ("typical=0.1", "rule 'typical=0.1' is unknown"),
        ("soft", "rule 'soft' is unknown"),
    ],
)
def test_bad_margins_are_named(name, words):
    with pytest.raises(RequestError, match=words):
        resolve(name, Drawn.CHAIN)
