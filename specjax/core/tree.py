"""Token trees: drafters propose them, the target scores them, acceptance rules choose a path.

The nodes of a tree are in topological order, parents before children. Node 0 is the root: the
newest token of the row, emitted and not yet in the cache. Plain decoding is a tree of one node; a
chain is a tree without branches.

Functions here take one row, without a batch axis. Callers ``jax.vmap`` them.
"""

import dataclasses
import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import struct

from ..errors import RequestError
from .checks import LARGEST, shorten, whole
from .read_files import read_toml

MOST_TREE_NODES = 4096
"""The most nodes of a tree that a user gives, without the root."""


def node_count(name: str, value, least: int = 1) -> int:
    """``value`` as a number with which the nodes or the memory of a round grow.

    Raises RequestError unless it is a whole number from ``least`` to ``MOST_TREE_NODES``.
    """
    return whole(name, value, least, MOST_TREE_NODES)


class Tree(struct.PyTreeNode):
    """The candidate tokens of one row.

        node     0    1    2    3    4          0 (root)
        parent   0    0    0    1    1         / \\
        depth    0    1    1    2    2        1   2
                                             / \\
                                            3   4

    Attributes:
      tokens: int32 [N]. ``tokens[0]`` is the root.
      parent: int32 [N], ``parent[i] < i`` except ``parent[0] == 0``.
      valid: bool [N], the nodes that may be accepted; the root is always valid. A node below an
        invalid node is never accepted.
      q: float32 [N, V] or None. ``q[i]`` is the distribution from which the children of node i were
        *drawn*; zero if node i has no children. None if nodes were chosen by other means (top-k,
        n-gram, argmax): rules that divide by q are then not exact. With M drafts [M, N, V].
      source: int32 [N] or None, the draft from which node i was drawn.
      mask: bool [N, N] or None, the nodes that each node attends to. None stands for the node and
        its ancestors. A mask must show valid nodes exactly these. A tree needs a mask if some
        nodes, which are never accepted, lie deeper than ``max_depth``.
      max_depth: the longest path from the root to a node that may be accepted, in edges. Static.
    """

    tokens: jax.Array
    parent: jax.Array
    valid: jax.Array
    q: jax.Array | None = None
    source: jax.Array | None = None
    mask: jax.Array | None = None
    max_depth: int = struct.field(pytree_node=False, default=1)

    @property
    def is_chain(self) -> bool:
        """Whether the tree has no branches: its depth is the number of nodes below the root."""
        return self.max_depth + 1 == self.tokens.shape[-1]


@dataclasses.dataclass(frozen=True)
class Topology:
    """The shape of a tree, without tokens. Hashable, static under ``jit``.

    Nodes are numbered level by level.

    Attributes:
      parent: the parent of each node, as in ``Tree``.
      rank: the rank of each node among the choices after its parent, from 0; 0 for the root.
    """

    parent: tuple[int, ...]
    rank: tuple[int, ...]

    @property
    def depths(self) -> tuple[int, ...]:
        """The number of edges between the root and each node."""
        depths = [0]
        for parent in self.parent[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """The ranks from the root down to each node, as in ``from_paths``; () for the root."""
        paths: list[tuple[int, ...]] = [()]
        for parent, rank in zip(self.parent[1:], self.rank[1:]):
            paths.append((*paths[parent], rank))
        return tuple(paths)


def from_paths(paths: Iterable[Sequence[int]]) -> Topology:
    """The topology in a list of paths, the form in which Medusa's choices are published.

    A path names a node by the ranks from the root down to it. The root is not listed. Raises
    RequestError for an empty list, a node named twice, a node without its parent, or more than
    ``MOST_TREE_NODES`` nodes.
    """
    listed = [tuple(path) for path in itertools.islice(paths, MOST_TREE_NODES + 1)]
    if len(listed) > MOST_TREE_NODES:
        raise RequestError(f"the tree is above the limit of {MOST_TREE_NODES:,} nodes (MOST_TREE_NODES); use fewer")
    if not listed or not all(listed):
        raise RequestError(
            "the tree has no node below its root; list the ranks on the way to each node, such as (0,), (0, 0), (1,)"
        )
    if not all(type(rank) is int and 0 <= rank <= LARGEST for path in listed for rank in path):
        raise RequestError("the tree has a rank that is no whole number from 0; ranks count the choices after a node")
    listed.sort(key=lambda path: (len(path), path))
    number: dict[tuple[int, ...], int] = {(): 0}
    for path in listed:
        if path in number:
            raise RequestError(f"the tree names node {path} twice; leave one out")
        if path[:-1] not in number:
            raise RequestError(f"the tree has a gap: node {path} is listed, its parent {path[:-1]} is not; list it too")
        number[path] = len(number)
    return Topology((0, *(number[path[:-1]] for path in listed)), (0, *(path[-1] for path in listed)))


def expansion(widths: Sequence[int]) -> Topology:
    """The topology in which every node at depth i - 1 has ``widths[i - 1]`` children.

    It is SpecInfer's ``<k1, k2, ..., km>`` (section 3).
    """
    if not widths or not all(isinstance(k, int) and k >= 1 for k in widths):
        text = shorten(tuple(widths))
        raise RequestError(f"tree widths must be whole numbers from 1, one for each level, not {text}")
    levels = [range(min(k, MOST_TREE_NODES + 1)) for k in widths]
    return from_paths(path for m in range(1, len(levels) + 1) for path in itertools.product(*levels[:m]))


def as_topology(tree) -> Topology:
    """The topology that a user gives in any of its forms.

    Args:
      tree: a Topology; widths such as "1,1,3,1" or (1, 1, 3, 1), see ``expansion``; the name of a
        TOML file with ``paths``; or a list of paths, see ``from_paths``.

    Raises RequestError for anything else.
    """
    if isinstance(tree, Topology):
        return tree
    if isinstance(tree, str | Path):
        return topology(str(tree))
    try:
        parts = [part if isinstance(part, int) else tuple(map(operator.index, part)) for part in tree]
    except TypeError:
        raise RequestError(
            f"tree must be widths such as 1,1,3,1, a TOML file or a list of paths, not {shorten(tree)}"
        ) from None
    widths = [part for part in parts if isinstance(part, int)]
    paths = [part for part in parts if not isinstance(part, int)]
    if widths and paths:
        raise RequestError(f"tree mixes widths and paths: {shorten(tree)}; give widths alone or paths alone")
    return from_paths(paths) if paths else expansion(widths)


def topology(text: str) -> Topology:
    """The topology in a text: widths such as "1,1,3,1", or the name of a TOML file."""
    if all(width.strip().isdecimal() and len(width) < 20 for width in text.split(",")):
        return expansion([int(width) for width in text.split(",")])
    name = f"tree {shorten(text, 150)}"
    paths = read_toml(text, name, mend="give widths such as 1,1,3,1 or a TOML file").get("paths")
    if not isinstance(paths, list) or not all(isinstance(path, list) for path in paths):
        raise RequestError(f"{name}: no tree; write paths = [[0], [0, 0], [1]], the ranks on the way to each node")
    return from_paths(paths)


def chain(tokens: jax.Array, q: jax.Array | None = None, valid: jax.Array | None = None) -> Tree:
    """The chain of ``tokens`` int32 [N]: node i follows node i - 1."""
    n = tokens.shape[0]
    valid = jnp.ones(n, bool) if valid is None else valid
    return Tree(tokens, jnp.maximum(jnp.arange(n) - 1, 0), valid, q, max_depth=n - 1)


def ancestors(tree: Tree) -> jax.Array:
    """Bool [N, N], true at [i, j] if node j is node i or an ancestor of node i.

    This is the attention mask among the nodes. Its row sums are depth + 1, from which positions
    follow. Pointer doubling builds it: after k iterations each node knows its 2^k nearest
    ancestors. If the tree has a mask of its own, that mask is returned.
    """
    if tree.mask is not None:
        return tree.mask
    mask = jnp.eye(tree.parent.shape[0], dtype=bool)
    jump = tree.parent
    for _ in range(math.ceil(math.log2(tree.max_depth + 1))):
        mask = mask | mask[jump]
        jump = jump[jump]
    return mask
