"""A token tree merged from the chains of several draft models.

The method is the merge-based tree of SpecInfer (Miao et al. 2024, section 3).
"""

import dataclasses

import jax
import jax.numpy as jnp

from ..core.tree import Tree
from ..loop.drafter import Models
from ..rules.acceptance import Drawn
from .draft_model import DraftModel
from .parts.draft_sampling import DrawnChain


@dataclasses.dataclass(frozen=True)
class Merged(DrawnChain):
    """Draws a chain from each draft independently, and proposes their union, see ``merge``.

    Attributes:
      num_speculative_tokens: as in ``DraftModel``.
    """

    num_speculative_tokens: int = 5
    needs = Models(least=2, most=None)

    @property
    def drawn(self) -> Drawn:
        return Drawn.FROM_SEVERAL

    @property
    def member(self) -> DraftModel:
        """The method by which each draft draws its chain."""
        return DraftModel(self.num_speculative_tokens, **self.draft_options)

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        return tuple(
            self.member.init(target, model, tokens, lengths, taps, chunk=chunk, dtype=dtype) for model in draft
        )

    def propose(self, target, draft, state, key):
        chains = []
        pending = []
        for m, (model, own) in enumerate(zip(draft, state.drafter)):
            keys = jax.vmap(jax.random.fold_in, (0, None))(key, m)
            before = state.replace(drafter=own)
            before = before.replace(drafter=self.member.catch_up(model, before))
            tree, drawing = self.member.propose(target, model, before, keys)
            assert tree.q is not None  # a draft model draws its chain
            chains.append((tree.tokens[:, 1:], tree.q[:, :-1]))
            pending.append(drawing)
        tokens, q = (jnp.stack(leaves, 1) for leaves in zip(*chains))
        return jax.vmap(merge)(state.root, tokens, q), tuple(pending)

    def commit(self, target, draft, state, tree, scored, verdict):
        # The accepted path may be another draft's chain. Each draft therefore keeps at most the
        # root's row, and reads the other tokens when the next round begins.
        verdict = verdict.replace(length=jnp.minimum(verdict.length, 2))
        each = zip(draft, state.drafter)
        return tuple(
            self.member.commit(target, model, state.replace(drafter=own), tree, scored, verdict) for model, own in each
        )

    def rest(self, target, draft, state, tree, scored, verdict):
        each = zip(draft, state.drafter)
        return tuple(
            self.member.rest(target, model, state.replace(drafter=own), tree, scored, verdict) for model, own in each
        )


def merge(root: jax.Array, tokens: jax.Array, q: jax.Array) -> Tree:
    """The union of M chains of D tokens below one root: a tree of 1 + M D nodes, chain after chain.

    A token hangs below the *first* node whose path has the same tokens, in its own chain or an
    earlier one. The inner nodes therefore form a trie. If a chain proposes a token that an earlier
    chain has proposed at the same place, its node stays in the tree as a leaf, because each
    proposal must be tested against its own draft's q, in the order of the drafts. Such a leaf is
    never accepted: after the first of two equal tokens is rejected, the second has probability 0.
    Sizes are static, so the tree without the leaf would not make the forward smaller.

    Args:
      root: int32 [].
      tokens: int32 [M, D].
      q: float32 [M, D, V], the distribution of each token. The tree stores it at the token's
        parent. For drafts that propose nothing below a node, the tree stores zeros there.
    """
    M, D = tokens.shape
    # same [M, M, D]: whether two chains agree down to each token.
    same = jnp.cumprod(jnp.int32(tokens[:, None] == tokens), -1)
    first = jnp.argmax(same, 1)  # [M, D]: the first chain with the same tokens so far
    node = 1 + first * D + jnp.arange(D)
    parent = jnp.concatenate([jnp.zeros((M, 1), node.dtype), node[:, :-1]], 1)
    nodes = 1 + M * D
    lay_out = lambda value, leaf: jnp.concatenate([jnp.asarray(value, leaf.dtype)[None], leaf.reshape(-1)])
    return Tree(
        tokens=lay_out(root, tokens),
        parent=lay_out(0, parent.astype(jnp.int32)),
        valid=jnp.ones(nodes, bool),
        q=jnp.zeros((M, nodes, q.shape[-1])).at[jnp.arange(M)[:, None], parent].set(q),
        source=lay_out(0, jnp.repeat(jnp.arange(M), D)),
        max_depth=D,
    )
