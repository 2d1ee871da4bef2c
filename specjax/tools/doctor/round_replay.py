"""Replays rounds on a text whose acceptance is known at every place, without running the loop."""

from collections.abc import Sequence

import numpy as np

from ...core.tree import Topology


def chain_chances(accepted: np.ndarray, depth: int) -> np.ndarray:
    """The chances of a chain's tokens, float64 [n, depth], from those of a text's places, [n].

    Entry [i, d] belongs to the round whose root stands at place i. A draft beyond the text has the
    chance 0.
    """
    padded = np.pad(np.asarray(accepted, np.float64), (0, depth))
    return np.stack([padded[d : d + len(accepted)] for d in range(depth)], 1)


def tree_chances(ranks: np.ndarray, tree: Topology) -> np.ndarray:
    """The chances of a tree of chosen tokens, float64 [n, depth]: 1 where a text's token is a node.

    ``ranks``: int [n, depth or more], the ranks of the text's tokens after each root, see
    ``head_trees.ranks_of``.
    """
    paths = set(tree.paths)
    depth = max(tree.depths)
    rows = (tuple(row[:depth]) for row in np.asarray(ranks).tolist())
    return np.array([[row[: d + 1] in paths for d in range(depth)] for row in rows], np.float64).reshape(-1, depth)


def count_rounds(chances: np.ndarray, rng: np.random.Generator) -> int:
    """The rounds that a text of n tokens takes; one sample if the chances are not 0 or 1.

    A round accepts the drafts up to the first rejected one, and emits one token more.

    Args:
      chances: float64 [n, depth], the chance of each draft of the round at each root, given that
        the drafts before it were accepted and that the text goes on as it does.
    """
    place = rounds = 0
    while place < len(chances):
        accepted = rng.random(chances.shape[1]) < chances[place]
        place += 1 + int(accepted.argmin() if not accepted.all() else accepted.size)
        rounds += 1
    return rounds


def sample_rounds(texts: Sequence[np.ndarray], samples: int) -> np.ndarray:
    """Rounds int [texts, samples] of texts with these chances. Greedy texts need one sample."""
    rng = np.random.default_rng(0)
    return np.array([[count_rounds(chances, rng) for _ in range(samples)] for chances in texts])
