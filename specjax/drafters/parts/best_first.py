"""The most probable tree if one pass predicts all places independently (DDTree, 2604.12989)."""

import jax
import jax.numpy as jnp
from jax import lax

from ...core.selection import likeliest
from ...core.tree import Tree
from ...errors import RequestError


def check_best_first(nodes: int, width: int, depth: int, vocab_size: int) -> None:
    """Raises RequestError if ``best_first`` has no tree of these sizes."""
    if width > vocab_size:
        raise RequestError(f"tree_top_k is {width} and the vocabulary has {vocab_size} tokens; lower it")
    most = sum(width**d for d in range(1, depth + 1))
    if not depth < nodes <= most:
        allowed = f"must be {depth + 1} to {most}" if depth < most else "makes no tree"
        raise RequestError(f"tree_nodes {allowed} for {depth} drafted tokens and tree_top_k {width}, not {nodes}")


def best_first(root: jax.Array, logs: jax.Array, *, nodes: int, width: int) -> Tree:
    """The ``nodes`` likeliest sequences of up to D tokens.

    They form a tree, because a prefix is at least as likely as the whole sequence. The paper takes
    sequences from a heap, one after another. Here every level keeps its best sequences, and then
    the best sequences of all levels are kept. Both give the same set.

    Args:
      root: int32 [].
      logs: float32 [D, V], log-probabilities of each place's token. D is less than ``nodes``.
      width: the number of likeliest tokens that are considered at each place.
    """
    values, choices = likeliest(logs, width)
    reached = jnp.zeros(1)
    above = jnp.full(1, -1)
    levels = []
    size = 0
    for value, choice in zip(values, choices):
        # If values are equal, top_k prefers the first, which is the shallower: no node comes
        # without its parent.
        flat = (reached[:, None] + value).reshape(-1)
        reached, indices = lax.top_k(flat, min(nodes, flat.size))
        levels.append((reached, choice[indices % width], above[indices // width]))
        above = size + jnp.arange(reached.size)
        size = size + reached.size
    score, token, parent = map(jnp.concatenate, zip(*levels))
    indices = jnp.sort(lax.top_k(score, nodes)[1])
    parent = jnp.where(parent[indices] < 0, 0, jnp.searchsorted(indices, parent[indices]) + 1)
    tokens = jnp.concatenate([root[None], token[indices].astype(jnp.int32)])
    parent = jnp.concatenate([jnp.zeros(1, jnp.int32), parent.astype(jnp.int32)])
    return Tree(tokens, parent, jnp.ones(tokens.shape, bool), max_depth=logs.shape[0])
