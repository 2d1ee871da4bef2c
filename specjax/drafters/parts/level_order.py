"""The order in which the nodes of a tree of fixed shape are read."""

from collections import defaultdict
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ...core.tree import Topology


class LevelOrder(NamedTuple):
    """The order in which the N nodes of a topology are read, level by level.

    The *frontier* of a level are its nodes that have children.

    Attributes:
      slots, ranks: int32 [depth, F], for each frontier the slot of each node's parent in the
        frontier above, and the node's rank.
      parent, rank, depth: int32 [N], as in ``Topology``.
      inner: bool [N], the nodes that have children.
      slot_of: int32 [N], the slot of an inner node in the frontier of its level.
      row_of: int32 [N], see ``ReaderState``.
      dense: bool, whether the children of every node have the ranks 0, 1, ...
    """

    slots: np.ndarray
    ranks: np.ndarray
    parent: np.ndarray
    rank: np.ndarray
    depth: np.ndarray
    inner: np.ndarray
    slot_of: np.ndarray
    row_of: np.ndarray
    dense: bool


@lru_cache(64)
def level_order(tree: Topology) -> LevelOrder:
    """The order in which the nodes of a topology are read."""
    parent, rank, depth = (np.array(x, np.int32) for x in (tree.parent, tree.rank, tree.depths))
    children = defaultdict(list)
    for node in range(1, parent.size):
        children[tree.parent[node]].append(tree.rank[node])
    inner = np.isin(np.arange(parent.size), list(children))
    frontiers = [[node for node in children if depth[node] == d] for d in range(depth.max())]
    width = max(map(len, frontiers))
    slot_of = np.zeros_like(parent)
    (slots, ranks) = np.zeros((2, depth.max(), width), np.int32)
    for d, frontier in enumerate(frontiers):
        for slot, node in enumerate(frontier):
            slot_of[node], slots[d, slot], ranks[d, slot] = slot, slot_of[parent[node]], rank[node]
    row_of = np.where(inner, np.where(depth == 0, 0, 1 + (depth - 1) * width + slot_of), 0).astype(np.int32)
    dense = all(sorted(ranks) == list(range(len(ranks))) for ranks in children.values())
    return LevelOrder(slots, ranks, parent, rank, depth, inner, slot_of, row_of, dense)
