"""A feature head that says all places in one pass: it reads masks where others read what they drafted (P-EAGLE, 2602.01469)."""

import dataclasses
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp

from ...tree import chain
from .best_first import best_first
from .readers import FeatureReader


@dataclasses.dataclass(frozen=True)
class OnePass:
    """A chain of the likeliest token of each place, or with ``nodes`` a tree of the likeliest sequences, as in ``Block``.

    After the pairs of features and tokens that a round begins with come masks, one for each place but the first. A mask sees the pairs and
    the masks before it.

    Attributes:
      depth: places.
      nodes, width: see ``best_first``; 0 nodes for a chain.
      temperature: of the scores by which nodes are chosen.
    """

    depth: int
    nodes: int = 0
    width: int = 1
    temperature: float = 1.0
    sampled: ClassVar[str] = ""
    reader: ClassVar = FeatureReader()

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        return self.reader.init(target, draft, tokens, lengths, taps, self.depth, chunk=chunk, dtype=dtype)

    def draft(self, target, draft, state, key):
        begun = self.reader.pairs(state)
        (B, R), M, (token, feature) = begun.seen.shape, self.depth - 1, draft.mask(target)
        after = lambda known, masks: jnp.concatenate([known, jnp.broadcast_to(masks, (B, M, *known.shape[2:]))], 1)
        mask = jnp.tril(jnp.ones((R + M, R + M), bool)) & after(begun.seen, True)[:, None]
        positions = after(begun.positions, begun.root[:, None] + 1 + jnp.arange(M))
        out = draft(target, after(begun.tokens, token), after(begun.states, feature), positions, mask, begun.cache)
        root = jnp.take_along_axis(out.hidden, begun.seen.sum(-1)[:, None, None] - 1, 1)
        scores = draft.logits(target, jnp.concatenate([root, out.hidden[:, R:]], 1))
        return self._tree(state.root, scores), state.drafter.replace(rows=out.rows)

    def commit(self, target, draft, state, tree, out, verdict):
        return self.reader.commit(target, draft, state, verdict.path, out, verdict)

    def _tree(self, root, scores):
        if self.nodes:
            return jax.vmap(partial(best_first, nodes=self.nodes, width=self.width))(root, jax.nn.log_softmax(scores / self.temperature))
        tokens = jnp.concatenate([root[:, None], jnp.argmax(scores, -1).astype(jnp.int32)], 1)
        return jax.vmap(chain)(tokens)
