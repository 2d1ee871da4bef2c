"""Trees of fixed shape in which one head fills each depth: shared by Medusa and Hydra."""

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from ...core.selection import likeliest
from ...core.tree import Topology, Tree, from_paths
from ...errors import RequestError


def fit_default(paths: Iterable[tuple[int, ...]], num_heads: int) -> Topology:
    """The tree of the paths that are no longer than the number of heads."""
    return from_paths(path for path in paths if len(path) <= num_heads)


def check_shape(shape: Topology, head) -> None:
    """Raises RequestError for a tree too deep for the heads, or a rank beyond the vocabulary."""
    depth = max(shape.depths)
    rank = max(shape.rank)
    if depth > head.num_heads:
        raise RequestError(
            f"the tree is {depth} deep and there are {head.num_heads} heads; leave out deeper nodes, or leave out tree"
        )
    if rank >= head.vocab_size:
        raise RequestError(
            f"the tree asks for rank {rank} and the vocabulary has {head.vocab_size} tokens; leave that node out"
        )


def fill_tree(shape: Topology, target, draft, root, hidden) -> Tree:
    """The batched tree below ``root`` int32 [B].

    ``hidden``: float32 [B, E], the hidden state of the token before the root.
    """
    B = root.size
    tokens = root[:, None]
    for k, nodes in enumerate(nodes_by_depth(shape)):
        scores = draft.logits(target, k, hidden[:, None], tokens[:, nodes.above])
        _, best = likeliest(scores, int(max(nodes.rank)) + 1)  # [B, A, ranks]; Medusa's A is 1
        best = jnp.broadcast_to(best, (B, len(nodes.above), best.shape[2]))
        tokens = jnp.concatenate([tokens, best[:, nodes.slot, nodes.rank]], 1)
    parent = jnp.broadcast_to(jnp.array(shape.parent, jnp.int32), tokens.shape)
    return Tree(tokens, parent, jnp.ones(tokens.shape, bool), max_depth=max(shape.depths))


class DepthNodes(NamedTuple):
    """The C nodes at one depth, below A parents.

    Attributes:
      above: int32 [A, depth], for each parent the nodes from the root down to it.
      slot, rank: int32 [C], the place of each node's parent in ``above``, and the node's rank.
    """

    above: np.ndarray
    slot: np.ndarray
    rank: np.ndarray


@lru_cache(64)
def nodes_by_depth(shape: Topology) -> tuple[DepthNodes, ...]:
    """The nodes below the root, depth by depth from the top."""
    number = {path: node for node, path in enumerate(shape.paths)}
    levels = []
    for depth in range(1, max(shape.depths) + 1):
        nodes = [path for path in shape.paths if len(path) == depth]
        parents = list(dict.fromkeys(path[:-1] for path in nodes))
        above = [[number[parent[:d]] for d in range(depth)] for parent in parents]
        slot = [parents.index(path[:-1]) for path in nodes]
        rank = [path[-1] for path in nodes]
        levels.append(DepthNodes(*(np.array(x, np.int32) for x in (above, slot, rank))))
    return tuple(levels)
