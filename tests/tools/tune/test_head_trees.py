"""Trees of trained heads: ranks against rounds of the real loop, the search against brute force, timed rounds."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from support.models import TINY, language_model, random_head, random_prompts, tiny_model

from specjax import Generator, RequestError
from specjax.core.tree import from_paths
from specjax.heads import (
    Eagle3Config,
    Eagle3Head,
    EagleConfig,
    EagleHead,
    Head,
    HydraConfig,
    HydraHeads,
    MedusaConfig,
    MedusaHeads,
)
from specjax.tools.tune import cost, head_trees
from specjax.tools.tune import tree as tune
from specjax.tools.tune.cost import Cost, Curve

TARGET = language_model(tiny_model(0), "target")
LAYER = TINY.replace(num_layers=1)
HEADS = {
    "medusa": (MedusaHeads, MedusaConfig(32, 2, 61, num_heads=3)),
    "hydra": (HydraHeads, HydraConfig(32, 2, 61, num_heads=3, head_bias=True)),
    "hydra++": (HydraHeads, HydraConfig(32, 2, 61, num_heads=3, head_bias=True, layers=LAYER)),
    "eagle": (EagleHead, EagleConfig(LAYER, 2)),
    "eagle3": (Eagle3Head, Eagle3Config(LAYER, 32, 2, (0, 1, 2), 61)),
}
TREE = from_paths((r,) * d for r in (0, 1) for d in (1, 2, 3)).paths[1:] + ((2,), (0, 1), (1, 0), (3,), (4,), (5,))
NEW = 40
PROMPTS = [prompt for prompt in random_prompts(8, 12, seed=3) if len(prompt) > 1]


def head_of(method: str) -> Head:
    kind, config = HEADS[method]
    return Head(random_head(kind, config), config, method)


def rounds(ranks: np.ndarray, tree: set, new: int) -> list[int]:
    """Drafts accepted in each round of a text of ``new`` tokens, from the ranks at each of its places."""
    emitted, accepted = 0, []
    while emitted < new:
        path = tuple(ranks[emitted])
        longest = max((d for d in range(len(path) + 1) if d == 0 or path[:d] in tree), default=0)
        accepted.append(min(longest, new - emitted))
        emitted += longest + 1
    return accepted


@pytest.fixture(scope="module")
def longer() -> list:
    """Texts of the target, a few tokens longer than the rounds will see."""
    return Generator(TARGET, "none")(PROMPTS, max_new_tokens=NEW + 4, ignore_eos=True)


@pytest.mark.slow
@pytest.mark.parametrize("method", HEADS)
def test_ranks_tell_the_rounds_of_the_real_loop(longer, method):
    """At every place the engine accepts the longest path of the tree that the ranks contain."""
    head, tree = head_of(method), from_paths(TREE)
    siblings = {"siblings": "top_k"} if method.startswith("eagle") else {}
    results = Generator(TARGET, head.config.kind, head, tree=tree, **siblings)(
        PROMPTS, max_new_tokens=NEW, ignore_eos=True
    )
    caught = 0
    for result, text in zip(results, longer):
        assert text.token_ids[:NEW] == result.token_ids
        ranks = head_trees.ranks_of(TARGET, head, [text], depth=3)
        expected = rounds(ranks, set(TREE), NEW)
        assert result.stats.target_calls == len(expected)
        assert result.stats.accepted_at == tuple(sum(n > d for n in expected) for d in range(3))
        caught += sum(expected)
    assert caught > 10, "a head that guesses nothing shows nothing"


def test_ranks_are_counted_place_by_place():
    found = head_trees.count_acceptance(np.array([[0, 1], [2, 0], [1, 5], [0, 0], [5, 0]]), 3)
    np.testing.assert_array_equal(
        found.tried_at, [[5, 3, 2], [4, 2, 1]]
    )  # at the second depth, one place is not reached and one has no rank
    np.testing.assert_array_equal(found.accepted_at, [[2, 1, 1], [2, 1, 0]])
    np.testing.assert_array_equal(found.tried, found.tried_at[0])


@pytest.mark.parametrize("seed", range(4))
def test_no_tree_catches_more(seed):
    """Brute force over all trees of each size, on ranks that depend on each other."""
    rng = np.random.default_rng(seed)
    first = rng.choice(4, 60, p=[0.4, 0.3, 0.2, 0.1])
    ranks = np.stack([first, (first + rng.choice(3, 60)) % 4, rng.choice(4, 60)], 1)
    paths = [path for d in (1, 2, 3) for path in itertools.product(range(3), repeat=d)]
    caught = {path: np.mean([tuple(place[: len(path)]) == path for place in ranks.tolist()]) for path in paths}
    trees, chains = head_trees.search(ranks, Cost(Curve((1, 9), np.ones((2, 1)))), 5, most=3)
    assert [choice.nodes for choice in trees] == [2, 3, 4, 5] and [choice.depth for choice in chains] == [1, 2, 3]
    for choice in trees:
        whole = (set(some) for some in itertools.combinations(paths, choice.nodes - 1))
        best = max(
            1 + sum(caught[p] for p in tree) for tree in whole if all(p[:-1] in tree or len(p) == 1 for p in tree)
        )
        assert choice.tokens == pytest.approx(best) == pytest.approx(1 + sum(caught[p] for p in choice.tree.paths[1:]))
    assert chains[1].tokens == pytest.approx(1 + caught[(0,)] + caught[(0, 0)])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["medusa", "eagle3"])
def test_rounds_with_a_head_are_timed(method):
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        found = cost.measure(
            TARGET, head_of(method), method=method, length=9, nodes=(1, 4), widths=(2,), rounds=2, repeats=2
        )
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
    assert (
        found.verify.samples.shape == (2, 2)
        and found.level.samples.shape == (1, 2)
        and found.of_round(from_paths([(0,), (0, 0)])) > 0
    )


def test_a_head_whose_trees_have_no_shape_is_refused():
    config = dataclasses.replace(HEADS["eagle3"][1], mask_token=1)
    with pytest.raises(RequestError, match="'masked' is a P-EAGLE head, whose trees have no fixed shape"):
        tune.tune_tree(TARGET, Head(random_head(Eagle3Head, config), config, "masked"), ["a"], method="eagle3")
