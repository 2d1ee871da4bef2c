"""A drafter that knows the text: its trees of random shape hold the truth on some paths, and noise on the others."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import random

from specjax.core.tree import Tree
from specjax.loop.drafter import Drafter


@dataclasses.dataclass(frozen=True)
class Told(Drafter):
    """Its ``draft`` is int32 [B, T], the text of each row. A node is true with a probability of 0.8.

    A model that decodes with it needs one program for the target, and none for a draft.
    """

    nodes: int = 8
    depth: int = 4

    def propose(self, target, draft, state, key):
        propose_row = lambda *row: self._propose_row(target.config.vocab_size, *row)
        return jax.vmap(propose_row)(state.root, state.cache.length, draft, key), ()

    def _propose_row(self, V: int, root, last, text, key) -> Tree:
        to_shape, to_tokens, to_truth = random.split(key, 3)
        parent, depth = [jnp.int32(0)], [jnp.int32(0)]
        for node in range(1, self.nodes):
            chosen = random.randint(random.fold_in(to_shape, node), (), 0, node)
            chosen = jnp.where(jnp.stack(depth)[chosen] < self.depth, chosen, 0)
            parent.append(chosen)
            depth.append(jnp.stack(depth)[chosen] + 1)
        noise = random.randint(to_tokens, (self.nodes,), 0, V)
        tokens = jnp.where(random.bernoulli(to_truth, 0.8, (self.nodes,)), text[last + jnp.stack(depth)], noise)
        every = jnp.ones(self.nodes, bool)
        return Tree(tokens.at[0].set(root), jnp.stack(parent), every, max_depth=self.depth)
