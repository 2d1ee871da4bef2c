"""Finds the best tree of a fixed shape by dynamic programming (Sequoia, Chen et al. 2024).

As in section 4.1 of the paper, the probability of accepting a child is assumed to depend only on
its rank. A round then reaches a node with the product of the probabilities on its path. The
expected number of tokens of a target call is 1 + the sum of these products over all nodes but the
root. Numbers of nodes include the root.
"""

import dataclasses

import numpy as np

from ...core.tree import Topology, from_paths
from .cost import Cost


@dataclasses.dataclass(frozen=True)
class Choice:
    """A tree and its expected speed.

    Attributes:
      tree: the shape.
      tokens: the expected tokens of a target call, the bonus token included.
      seconds: the expected seconds of a round, by the measured cost.
      speedup: the tokens per second, relative to plain decoding.
    """

    tree: Topology
    tokens: float
    seconds: float
    speedup: float

    @property
    def nodes(self) -> int:
        """The number of nodes that the target scores, the root included."""
        return len(self.tree.parent)

    @property
    def depth(self) -> int:
        return max(self.tree.depths)

    @property
    def is_chain(self) -> bool:
        return self.depth + 1 == self.nodes


def expected_tokens(tree: Topology, chance: np.ndarray) -> float:
    """Tokens of a target call: 1 + the sum over nodes of the product of chances on their paths.

    Args:
      tree: the shape.
      chance: [K], see ``Acceptance.chance``; or [D, K] by depth, see ``Acceptance.chance_at``.
    """
    levels = np.broadcast_to(chance, (max(tree.depths), np.shape(chance)[-1])) if np.ndim(chance) == 1 else chance
    return 1.0 + sum(float(np.prod([levels[d][rank] for d, rank in enumerate(path)])) for path in tree.paths[1:])


def programme(chance: np.ndarray, max_nodes: int, max_depth: int) -> tuple[np.ndarray, np.ndarray]:
    """The table T of the dynamic programme, and the best split y of each entry.

    ``T[d, m, b]`` is the largest number of expected tokens of a tree with m nodes, at most d
    levels, and b branches at its root. It is minus infinity where there is no such tree. The last
    branch takes m - y of the nodes. The other y nodes form the best tree with b - 1 branches:

        T[d, 1, 0] = 1
        T[d, m, b] = max over y of (T[d, y, b - 1]
                                    + chance[b - 1] * max over b' of T[d - 1, m - y, b'])

    Returns T float64 and y int64, both [max_depth + 1, max_nodes + 1, K + 1].
    """
    K = len(chance)
    T = np.full((max_depth + 1, max_nodes + 1, K + 1), -np.inf)
    split = np.zeros(T.shape, int)
    T[:, 1, 0] = 1
    for d in range(1, max_depth + 1):
        below = T[d - 1].max(-1)
        for b in range(1, K + 1):
            # An impossible branch stays impossible where its chance is zero: 0 * -inf would be NaN.
            branch = np.where(below > -np.inf, chance[b - 1] * np.maximum(below, 0), -np.inf)
            for m in range(b + 1, max_nodes + 1):
                y = np.arange(1, m)
                total = T[d, y, b - 1] + branch[m - y]
                split[d, m, b] = y[total.argmax()]
                T[d, m, b] = total.max()
    return T, split


def best_tree(T: np.ndarray, split: np.ndarray, nodes: int, depth: int) -> Topology | None:
    """The tree of ``T[depth, nodes].max()``; None where no tree has that many nodes."""

    def paths(d: int, m: int):
        for b in range(int(T[d, m].argmax()), 0, -1):
            y = split[d, m, b]
            yield (b - 1,)
            yield from ((b - 1, *path) for path in paths(d - 1, m - y))
            m = y

    return from_paths(paths(depth, nodes)) if T[depth, nodes].max() > -np.inf else None


def search(chance: np.ndarray, cost: Cost, max_nodes: int, max_depth: int) -> list[Choice]:
    """The tree with the highest expected speed for every number of nodes from 2 on.

    Sizes that ``max_depth`` levels of K branches cannot hold are left out.

    Args:
      chance: [K], see ``Acceptance.chance``.
      max_nodes: the number of nodes of the largest tree, the root included.
      max_depth: the number of levels of the deepest tree.
    """
    T, split = programme(chance, max_nodes, max_depth)
    best = []
    for m in range(2, max_nodes + 1):
        trees = (best_tree(T, split, m, d) for d in range(1, max_depth + 1))
        choices = [evaluate(tree, chance, cost) for tree in trees if tree]
        if choices:
            best.append(max(choices, key=lambda c: c.speedup))
    return best


def evaluate(tree: Topology, chance: np.ndarray, cost: Cost) -> Choice:
    """The expected speed of a tree."""
    tokens = expected_tokens(tree, chance)
    seconds = cost.of_round(tree)
    return Choice(tree, tokens, seconds, tokens / seconds * cost.verify(1))
