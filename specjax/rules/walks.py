"""Rules that read p and not q: the greedy walk, and the walk along the target's samples."""

import jax

from ..core.selection import argmax, draw
from ..core.tree import Tree, ancestors
from ..core.verdict import Verdict, deepest, verdict_at
from .rule import Drawn, Rule


def argmax_walk(p: jax.Array, tree: Tree, key: jax.Array | None = None) -> Verdict:
    """Follows the children that are the target's likeliest tokens (SpecInfer, VerifyGreedy)."""
    return _walk(argmax(p), tree)


def sample_and_walk(p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """Samples the target after every node, then follows the children that match the samples.

    The rule is lossless for any tree whose nodes were chosen deterministically: the emitted tokens
    *are* the target's samples. Some child of a node is accepted with the sum of the children's p.
    The sample at a place of the text depends on the key of that place alone. A seed therefore gives
    the text of plain decoding with any proposals, and equal siblings get the same sample.
    """
    lineage = ancestors(tree)
    # All nodes of a depth share their key, because the walk reaches only one of them.
    return _walk(jax.vmap(draw)(key[lineage.sum(-1) - 1], p), tree)


def _walk(next_token: jax.Array, tree: Tree) -> Verdict:
    """The verdict on the deepest path of tokens equal to the parent's ``next_token`` int32 [N]."""
    last, lineage = deepest(tree.tokens == next_token[tree.parent], tree)
    return verdict_at(last, next_token[last], tree, lineage)


RULES = (
    Rule("argmax_walk", argmax_walk, plain_if_seeded=True),
    Rule("sample_and_walk", sample_and_walk, default_for=(Drawn.CHOSEN,), plain_if_seeded=True),
)
