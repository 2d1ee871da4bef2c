"""A token tree merged from the chains of several draft models (SpecInfer, Miao et al. 2024, section 3)."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from ..checks import whole
from ..tree import Tree
from .base import caught_up
from .draft_model import DraftModel


@dataclasses.dataclass(frozen=True)
class Merged:
    """Draws a chain of ``num_speculative_tokens`` from each draft, independently, and verifies their union; see ``merge``."""

    num_speculative_tokens: int = 5
    sampled: ClassVar[str] = "from_several"
    taps: ClassVar[tuple[int, ...]] = ()
    needs_draft: ClassVar[int] = 2
    several: ClassVar[bool] = True

    def __post_init__(self):
        whole("num_speculative_tokens", self.num_speculative_tokens)

    @property
    def depth(self) -> int:
        return self.num_speculative_tokens

    @property
    def member(self) -> DraftModel:
        """How each draft draws its chain."""
        return DraftModel(self.num_speculative_tokens)

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        return tuple(self.member.init(target, model, tokens, lengths, taps, chunk=chunk, dtype=dtype) for model in draft)

    def draft(self, target, draft, state, key):
        chains, pending = [], []
        for m, (model, own) in enumerate(zip(draft, state.drafter)):
            keys = jax.vmap(jax.random.fold_in, (0, None))(key, m)
            before = caught_up(self.member, model, state.replace(drafter=own))
            tree, drawing = self.member.draft(target, model, before, keys)
            chains.append((tree.tokens[:, 1:], tree.q[:, :-1]))
            pending.append(drawing)
        tokens, q = (jnp.stack(leaves, 1) for leaves in zip(*chains))
        return jax.vmap(merge)(state.root, tokens, q), tuple(pending)

    def commit(self, target, draft, state, tree, out, verdict):
        # What was accepted may be another's chain: of its rows each keeps the root's at most, and catches up on the rest.
        verdict = verdict.replace(length=jnp.minimum(verdict.length, 2))
        each = zip(draft, state.drafter)
        return tuple(self.member.commit(target, model, state.replace(drafter=own), tree, out, verdict) for model, own in each)


def merge(root: jax.Array, tokens: jax.Array, q: jax.Array) -> Tree:
    """The union of M chains of D tokens below one root: a tree of 1 + M D nodes, chain after chain.

    A token hangs below the *first* node with the tokens before it, whichever chain that is in, so the inner nodes are those of
    a trie. Where a chain proposes a token that is there already, its own node stays, as a leaf: every proposal must be tested
    against its own draft's q, and in the order of the drafts. Such a leaf is never accepted, since a refusal of the first of equal
    tokens leaves the target nothing of it. Sizes are static, so leaving it out would spare no row of the forward.

    Args:
      root: int32 [].
      tokens: int32 [M, D].
      q: float32 [M, D, V], what each token was drawn from. The tree has it at the node below which the token hangs; a draft that
        proposes nothing there has zeros.
    """
    M, D = tokens.shape
    same = jnp.cumprod(jnp.int32(tokens[:, None] == tokens), -1)  # [M, M, D]: whether two chains agree down to each token
    first = jnp.argmax(same, 1)  # [M, D]: the first chain with the same tokens so far
    node = 1 + first * D + jnp.arange(D)
    parent = jnp.concatenate([jnp.zeros((M, 1), node.dtype), node[:, :-1]], 1)
    nodes = 1 + M * D
    laid_out = lambda value, leaf: jnp.concatenate([jnp.asarray(value, leaf.dtype)[None], leaf.reshape(-1)])
    return Tree(
        tokens=laid_out(root, tokens),
        parent=laid_out(0, parent.astype(jnp.int32)),
        valid=jnp.ones(nodes, bool),
        q=jnp.zeros((M, nodes, q.shape[-1])).at[jnp.arange(M)[:, None], parent].set(q),
        source=laid_out(0, jnp.repeat(jnp.arange(M), D)),
        max_depth=D,
    )
