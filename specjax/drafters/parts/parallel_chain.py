"""Drafts from a feature head that predicts all places in one pass (P-EAGLE, 2602.01469).

The head reads masks in place of drafted tokens.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from ...core.selection import argmax
from ...core.tree import chain
from .best_first import best_first
from .feature_reader import FeatureReader
from .readers import Reading


@dataclasses.dataclass(frozen=True)
class OnePass(Reading):
    """Proposes the likeliest token of each place, or with ``nodes`` the likeliest sequences.

    The pass reads the first rows of the round, which are pairs of features and tokens, and then a
    mask for each place but the first. A mask sees the pairs and the masks before it.

    Attributes:
      places: the number of tokens that one pass predicts.
      nodes, width: see ``best_first``; 0 nodes make a chain.
      temperature: the temperature of the scores by which nodes are chosen.
    """

    places: int
    nodes: int = 0
    width: int = 1
    temperature: float = 1.0
    reader = FeatureReader()

    @property
    def depth(self) -> int:
        return self.places

    def propose(self, target, draft, state, key):
        first = self.reader.pairs(state)
        (B, R) = first.seen.shape
        M = self.depth - 1
        (token, feature) = draft.mask(target)
        after = lambda known, masks: jnp.concatenate([known, jnp.broadcast_to(masks, (B, M, *known.shape[2:]))], 1)
        mask = jnp.tril(jnp.ones((R + M, R + M), bool)) & after(first.seen, True)[:, None]
        positions = after(first.positions, first.root[:, None] + 1 + jnp.arange(M))
        out = draft(target, after(first.tokens, token), after(first.states, feature), positions, mask, first.cache)
        root = jnp.take_along_axis(out.hidden, first.seen.sum(-1)[:, None, None] - 1, 1)
        scores = draft.logits(target, jnp.concatenate([root, out.hidden[:, R:]], 1))
        return self._tree(state.root, scores), state.drafter.replace(rows=first.rows.replace(layers=out.rows))

    def commit(self, target, draft, state, tree, scored, verdict):
        return self.reader.commit(target, draft, state, verdict.path, scored, verdict)

    def _tree(self, root, scores):
        if self.nodes:
            grow = partial(best_first, nodes=self.nodes, width=self.width)
            return jax.vmap(grow)(root, jax.nn.log_softmax(scores / self.temperature))
        tokens = jnp.concatenate([root[:, None], argmax(scores)], 1)
        return jax.vmap(chain)(tokens)
