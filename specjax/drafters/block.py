"""One pass of a head drafts a block: DFlash (2602.06036), its causal variant JetSpec (2606.18394), DSpark (2607.05147); trees from one pass (DDTree, 2604.12989)."""

import dataclasses
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from .. import cache as kv
from ..cache import KVCache
from ..checks import per_row, whole
from ..errors import RequestError
from ..tree import Tree, chain
from .parts import chains
from .parts.best_first import best_first, check_best_first


@dataclasses.dataclass(frozen=True)
class Block:
    """Reads the root and masks after it in one forward, beside a cache of what the target computed of all tokens before.

    Without a Markov correction each place's tokens are chosen: a chain of the likeliest ones, or with ``tree_nodes`` a tree of the
    likeliest sequences. With one a token depends on the token before, and a chain is drawn from left to right under the same sampling
    options as the target; q is what each was drawn from.

    A chain may end before a token whose confidence is below ``draft_confidence``, and the output stays exact (DSpark, Algorithm 1). The
    confidence of a place reads its hidden state, which knows the context and the root alone, and the token before, which is drafted and
    judged whatever follows; never the token whose place it is. Given its past every token is thus either drawn from its q or not drawn,
    and the rules' proofs take a chain's end as they find it. A threshold that looked at the token drawn would drop the less likely ones
    and leave a law that is not q.

    Attributes:
      num_speculative_tokens: places of the block that are used; by default all.
      tree_nodes: drafted nodes of a tree, the root not counted; more than a chain has. 0 for a chain.
      tree_top_k: for a tree, tokens looked at of each place.
      draft_confidence: where a chain ends; 0 for nowhere. Needs a head with confidence.
      head: the head's configuration.
    """

    num_speculative_tokens: int | None = None
    tree_nodes: int = 0
    tree_top_k: int = 4
    draft_confidence: float = 0.0
    head: Any = None
    heads: ClassVar[tuple[str, ...]] = ("block",)
    needs_draft: ClassVar[bool] = True

    def __post_init__(self):
        if self.num_speculative_tokens is not None:
            whole("num_speculative_tokens", self.num_speculative_tokens)
        whole("tree_nodes", self.tree_nodes, 0)
        whole("tree_top_k", self.tree_top_k)
        per_row("draft_confidence", self.draft_confidence, 1, float, most=1)
        if self.head is not None:
            self._check_head()

    @property
    def depth(self) -> int:
        """Before there is a head 0, unless ``num_speculative_tokens`` says it."""
        if self.num_speculative_tokens is None:
            return 0 if self.head is None else self.head.drafts
        return self.num_speculative_tokens

    @property
    def sampled(self) -> str:
        """Before there is a head, what refuses no rule."""
        return "chain" if self.head is None or self.head.markov_rank else ""

    @property
    def taps(self) -> tuple[int, ...]:
        return () if self.head is None else self.head.taps

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype) -> KVCache:
        """The context: keys and values of all tokens before the root."""
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        return KVCache(draft.context(taps, positions, dtype), lengths - 1)

    def draft(self, target, draft, state, key):
        hidden, root = self._read(target, draft, state), state.root
        scores = draft.logits(target, hidden)
        if self.head.markov_rank:
            return self._drawn(draft, hidden, scores, state, key), state.drafter
        if self.tree_nodes:
            grow = partial(best_first, nodes=self.tree_nodes, width=self.tree_top_k)
            return jax.vmap(grow)(root, jax.nn.log_softmax(scores)), state.drafter
        tokens = jnp.concatenate([root[:, None], jnp.argmax(scores, -1).astype(jnp.int32)], 1)
        valid = jnp.ones(tokens.shape, bool)
        if self.draft_confidence:
            going = jnp.cumprod(draft.sure(hidden, tokens[:, :-1]) >= self.draft_confidence, 1)
            valid = valid.at[:, 1:].set(going > 0)
        return jax.vmap(lambda tokens, valid: chain(tokens, valid=valid))(tokens, valid), state.drafter

    def commit(self, target, draft, state, tree, out, verdict) -> KVCache:
        """The context with the nodes that were kept. Their taps, of tokens that the block drafted, depend on what was read of the cache,
        without which XLA:CPU would copy it."""
        n, context = state.cache.length, state.drafter
        on_path = lambda tap: jnp.take_along_axis(tap, verdict.path[..., None], 1)
        taps = out.taps if tree.is_chain else tuple(map(on_path, out.taps))
        rows = draft.context(taps, n[:, None] + jnp.arange(verdict.path.shape[1]), context.layers[0][0].dtype)
        return kv.commit(context, rows, None, n, n + verdict.length)

    def _read(self, target, draft, state) -> jax.Array:
        """Hidden states float32 [B, D, E] of the places that say the D drafted tokens: the root's and those after it, or only the latter.

        All of a block is read, since its places see each other, unless each sees but those before it.
        """
        first = 0 if self.head.from_root else 1
        N = first + self.depth if self.head.causal else self.head.block_size
        tokens = jnp.full((state.root.size, N), self.head.mask_token, jnp.int32).at[:, 0].set(state.root)
        positions = state.cache.length[:, None] + jnp.arange(N)
        return draft(target, tokens, positions, state.drafter).hidden[:, first : first + self.depth]

    def _drawn(self, draft, hidden, scores, state, key) -> Tree:
        """A chain drawn token by token; ``scores`` [B, D, V] lack the correction."""

        def turn(i, carry):
            drawn, memory = carry
            at = lambda leaf: lax.dynamic_index_in_dim(leaf, i, 1, keepdims=False)
            here, before = at(hidden), at(drawn.tokens)
            if self.draft_confidence:
                drawn = drawn.replace(going=drawn.going & (draft.sure(here, before) >= self.draft_confidence))
            memory, code = draft.markov.step(memory, here, before)
            return chains.draw(drawn, (at(scores) + draft.markov(code))[:, None], i, state, key), memory

        begun = chains.begin(state, self.depth, scores.shape[2]), jnp.zeros((state.root.size, self.head.markov_rank))
        return lax.fori_loop(0, self.depth, turn, begun)[0].tree

    def _check_head(self) -> None:
        D, drafts = self.depth, self.head.drafts
        if D > drafts:
            raise RequestError(f"num_speculative_tokens is {D} and the head drafts {drafts} at once; lower it")
        if self.draft_confidence and not self.head.confidence:
            raise RequestError("draft_confidence needs a head that was trained with a confidence; leave it out")
        if not self.tree_nodes:
            return
        if self.head.markov_rank or self.draft_confidence:
            which = "a head whose tokens depend on each other" if self.head.markov_rank else "draft_confidence"
            raise RequestError(f"tree_nodes makes a tree and {which} makes chains; leave tree_nodes out")
        check_best_first(self.tree_nodes, self.tree_top_k, D, self.head.vocab_size)
