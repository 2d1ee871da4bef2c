"""The tree search against an enumeration of all trees; expected tokens against the sum over nodes and against random walks."""

import itertools
from functools import cache

import numpy as np
import pytest

from specjax.core.tree import expansion, from_paths
from specjax.tools.tune.cost import Cost, Curve
from specjax.tools.tune.tree_search import best_tree, evaluate, expected_tokens, programme, search

P = np.array([0.6, 0.45, 0.3])  # each after the rejection of the earlier siblings
CHANCE = P * np.cumprod([1, *(1 - P[:-1])])


@cache
def trees(nodes: int, depth: int, ranks: int) -> list[tuple]:
    """All trees with ``nodes`` nodes and at most ``depth`` levels, whose children have the ranks 0, 1, ...

    A tree is the tuple of its root's subtrees.
    """
    if nodes == 1:
        return [()]
    return [root for count in range(1, ranks + 1) for root in forests(nodes - 1, depth - 1, ranks, count)]


def forests(nodes: int, depth: int, ranks: int, count: int) -> list[tuple]:
    """All tuples of ``count`` trees with ``nodes`` nodes together."""
    if count == 0 or depth < 0:
        return [()] if nodes == 0 and count == 0 else []
    return [
        (first, *rest)
        for size in range(1, nodes - count + 2)
        for first in trees(size, depth, ranks)
        for rest in forests(nodes - size, depth, ranks, count - 1)
    ]


def value(tree: tuple, chance) -> float:
    """Expected nodes on the accepted path, the root counted."""
    return 1 + sum(chance[rank] * value(child, chance) for rank, child in enumerate(tree))


def paths(tree: tuple, above: tuple = ()):
    for rank, child in enumerate(tree):
        yield (*above, rank)
        yield from paths(child, (*above, rank))


def height(tree: tuple) -> int:
    return 1 + max(map(height, tree)) if tree else 0


def flat(seconds_of_nodes, level=None) -> Cost:
    """A cost without noise: seconds by nodes 1, 2, ... and of a draft level of any width."""
    sizes = tuple(range(1, len(seconds_of_nodes) + 1))
    return Cost(
        Curve(sizes, np.array(seconds_of_nodes)[:, None]), None if level is None else Curve((1,), np.array([[level]]))
    )


def test_there_are_as_many_trees_as_catalan_says():
    assert [len(trees(n, 9, 9)) for n in range(1, 8)] == [1, 1, 2, 5, 14, 42, 132]


@pytest.mark.parametrize("chance", [CHANCE, [0.5, 0.5], [0.3, 0.4, 0.05], [0.9, 0.0], [1.0]], ids=str)
def test_no_tree_of_its_size_is_better(chance):
    T, split = programme(np.array(chance), 8, 4)
    for m, d in itertools.product(range(1, 9), range(5)):
        values = [value(tree, chance) for tree in trees(m, d, len(chance)) if height(tree) <= d]
        assert T[d, m].max() == pytest.approx(max(values, default=-np.inf)), (m, d)
        if m > 1:
            found = best_tree(T, split, m, d)
            assert (found is None) == (not values)
            if found:
                assert (len(found.parent), max(found.depths) <= d) == (m, True)
                assert expected_tokens(found, chance) == pytest.approx(max(values))
        by_branches = [
            max((value(t, chance) for t in trees(m, d, len(chance)) if len(t) == b), default=-np.inf)
            for b in range(len(chance) + 1)
        ]
        assert T[d, m] == pytest.approx(np.array(by_branches))


def test_the_search_finds_the_fastest_of_all_trees():
    """Under a cost with jumps, as on a device, and a cost that grows with depth."""
    for cost in (flat([1.0, 1.1, 1.1, 1.1, 1.8, 1.9, 2.5, 2.5], 0.2), flat([1.0] * 8, 0.5), flat(np.linspace(1, 3, 8))):
        found = search(CHANCE, cost, 8, 4)
        assert [c.nodes for c in found] == list(range(2, 9))
        for c in found:
            every = [evaluate(from_paths(paths(tree)), CHANCE, cost) for tree in trees(c.nodes, 4, 3)]
            assert c.speedup == pytest.approx(max(e.speedup for e in every))
            assert c.speedup == pytest.approx(c.tokens / c.seconds) and c.seconds == cost.of_round(c.tree)


def test_expected_tokens_are_those_of_walks():
    """Walks down from the root test the children one after another and accept each with its probability in ``P``."""
    T, split = programme(CHANCE, 14, 4)
    tree, rng, walks = best_tree(T, split, 14, 4), np.random.default_rng(0), 40_000
    nodes, total = set(tree.paths), 0
    for luck in rng.random((walks, 5, 3)):
        at = ()
        while at is not None:
            total += 1
            tried = ((*at, rank) for rank in range(3) if luck[len(at), rank] < P[rank])
            below = next((child for child in tried), None)  # the first accepted child, in the tree or not
            at = below if below in nodes else None
    assert total / walks == pytest.approx(expected_tokens(tree, CHANCE), abs=0.03)


def test_chances_may_differ_by_depth():
    tree = from_paths([(0,), (1,), (0, 0), (1, 0), (0, 0, 1)])
    by_depth = np.array([[0.5, 0.2], [0.4, 0.1], [0.3, 0.05]])
    assert expected_tokens(tree, by_depth) == pytest.approx(1 + 0.5 + 0.2 + 0.5 * 0.4 + 0.2 * 0.4 + 0.5 * 0.4 * 0.05)
    assert expected_tokens(tree, np.tile(CHANCE, (3, 1))) == pytest.approx(expected_tokens(tree, CHANCE))


def test_a_certain_draft_is_a_chain_and_a_hopeless_one_no_gain():
    certain = search(np.array([1.0, 0.0]), flat([1.0] * 8, 0.1), 8, 7)
    assert all(c.is_chain and c.tokens == pytest.approx(c.nodes) for c in certain)
    assert max(c.speedup for c in search(np.array([0.0, 0.0]), flat([1.0] * 8), 8, 7)) == pytest.approx(1.0)
    assert expansion((1, 1)) == from_paths([(0,), (0, 0)])


def test_costs_between_sizes_lie_on_a_line():
    cost = Cost(Curve((1, 5), np.array([[1.0, 9.0, 1.0], [3.0, 3.0, 0.0]])), Curve((1, 3), np.array([[0.1], [0.3]])))
    assert [cost.verify(n) for n in (1, 2, 3, 5)] == [1.0, 1.5, 2.0, 3.0]
    assert cost.of_round(expansion((2, 1))) == pytest.approx(3.0 + 2 * 0.2)  # five nodes, two levels, two wide
