"""Drafting of a block in one pass of a head.

The heads are DFlash (2602.06036), its causal variant JetSpec (2606.18394), DSpark (2607.05147),
DFlash 2 and XPress.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from ..core.cache import KVCache, commit
from ..core.checks import per_row
from ..core.selection import argmax
from ..core.tree import Tree, chain, node_count
from ..errors import RequestError
from ..loop.drafter import TrainedHead
from ..rules.acceptance import Drawn
from .parts import chains
from .parts.best_first import best_first, check_best_first
from .parts.draft_sampling import Drawing
from .parts.head_drafter import HeadDrafter


@dataclasses.dataclass(frozen=True)
class BlockDrafter(Drawing, HeadDrafter):
    """Drafts with one forward of a block head, over the root and a mask for each further place.

    The head's cache holds keys and values made from the target's features of all tokens before the
    root.

    A head without a Markov correction chooses its tokens: a chain of the likeliest token at each
    place, or with ``tree_nodes`` a tree of the likeliest sequences (DDTree, 2604.12989). With a
    Markov correction (DSpark, DFlash 2) each token depends on the token before it. A chain is then
    drawn from left to right under the request's sampling options and those of ``Drawing``. q is the
    distribution of each draw. A path selector restricts it to the place's candidates.

    A refiner (XPress) corrects a guess of the whole block several times, each time from the guess
    before (Jacobi iteration). After k passes the first k tokens are those that greedy drawing from
    left to right would choose. The head chooses these tokens at every temperature.

    A chain may end before a token whose confidence is below ``draft_confidence`` (DSpark,
    Algorithm 1). The output stays exact. The confidence of a place reads the place's hidden state,
    which depends on the context and the root alone, and the token before. It never reads the token
    of its own place. Given the tokens before it, each token is thus either drawn from its q or not
    drawn at all. A threshold on the drawn token itself would drop unlikely tokens, and the other
    tokens would not be distributed as q.

    Attributes:
      num_speculative_tokens: places of the block that are used; by default all.
      tree_nodes: drafted nodes of a tree, without the root; more than a chain has. 0 for a chain.
      tree_top_k: for a tree, tokens considered at each place.
      draft_confidence: a chain ends before a token with a lower confidence; 0 never ends it. Needs
        a head with a confidence output.
    """

    num_speculative_tokens: int | None = None
    tree_nodes: int = 0
    tree_top_k: int = 4
    draft_confidence: float = 0.0
    needs = TrainedHead("block")

    def __post_init__(self):
        if self.num_speculative_tokens is not None:
            node_count("num_speculative_tokens", self.num_speculative_tokens)
        node_count("tree_nodes", self.tree_nodes, 0)
        node_count("tree_top_k", self.tree_top_k)
        per_row("draft_confidence", self.draft_confidence, 1, float, most=1)
        self._check_head()
        super().__post_init__()

    @property
    def depth(self) -> int:
        return self.head.drafts if self.num_speculative_tokens is None else self.num_speculative_tokens

    @property
    def drawn(self) -> Drawn:
        return Drawn.CHAIN if self.head.markov_rank else Drawn.CHOSEN

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype) -> KVCache:
        """The context: keys and values of all tokens before the root."""
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        return KVCache(draft.context(taps, positions, dtype), lengths - 1)

    def propose(self, target, draft, state, key):
        if self.head.refiner_rank:
            return self._refine(target, draft, state), state.drafter
        hidden = self._read(target, draft, state)
        root = state.root
        scores = draft.logits(target, hidden)
        if self.head.markov_rank:
            return self._draw(draft, hidden, scores, self.drafting(state), key), state.drafter
        if self.tree_nodes:
            grow = partial(best_first, nodes=self.tree_nodes, width=self.tree_top_k)
            return jax.vmap(grow)(root, jax.nn.log_softmax(scores)), state.drafter
        tokens = jnp.concatenate([root[:, None], argmax(scores)], 1)
        valid = jnp.ones(tokens.shape, bool)
        if self.draft_confidence:
            going = jnp.cumprod(draft.sure(hidden, tokens[:, :-1]) >= self.draft_confidence, 1)
            valid = valid.at[:, 1:].set(going > 0)
        return jax.vmap(lambda tokens, valid: chain(tokens, valid=valid))(tokens, valid), state.drafter

    def commit(self, target, draft, state, tree, scored, verdict) -> KVCache:
        """The context, with the accepted nodes added."""
        n = state.cache.length
        context = state.drafter
        on_path = lambda tap: jnp.take_along_axis(tap, verdict.path[..., None], 1)
        taps = scored.taps if tree.is_chain else tuple(map(on_path, scored.taps))
        rows = draft.context(taps, n[:, None] + jnp.arange(verdict.path.shape[1]), context.dtype)
        return commit(context, rows, None, n + verdict.length, valid=state.done | (verdict.length > 0))

    def _read(self, target, draft, state) -> jax.Array:
        """Hidden states float32 [B, D, E] of the places that predict the D drafted tokens.

        The first of these places is the root's, or the place after it. The places of a block see
        each other, so the head reads all of them. A causal head reads only the places that it uses.
        """
        first = 0 if self.head.from_root else 1
        N = first + self.depth if self.head.causal else self.head.block_size
        return self._block(target, draft, state, N)[:, first : first + self.depth]

    def _block(self, target, draft, state, places: int) -> jax.Array:
        """Hidden states float32 [B, places, E] of the first places of the block."""
        tokens = jnp.full((state.root.size, places), self.head.mask_token, jnp.int32).at[:, 0].set(state.root)
        positions = state.cache.length[:, None] + jnp.arange(places)
        return draft(target, tokens, positions, state.drafter).hidden

    def _refine(self, target, draft, state) -> Tree:
        """A chain of the tokens of the last guess."""
        root = state.root[:, None]
        n = state.cache.length[:, None]
        hidden = self._block(target, draft, state, self.head.block_size)
        scores = draft.logits(target, hidden)
        # Where the first place stands for the root, it reads the token before the root. A text of
        # one token has none, and the root stands for it.
        first = root if self.head.from_root else jnp.take_along_axis(state.tokens, jnp.maximum(n - 1, 0), 1)
        known = lambda tokens: tokens if self.head.from_root else tokens.at[:, :1].set(root)

        def correct(_, tokens):
            code = draft.refiner.codes(hidden, jnp.concatenate([first, tokens[:, :-1]], 1))
            return known(argmax(scores + draft.correction(code)))

        tokens = lax.fori_loop(0, self.head.refiner_passes, correct, known(argmax(scores)))
        start = self.head.block_size - self.head.drafts
        return jax.vmap(chain)(jnp.concatenate([root, tokens[:, start : start + self.depth]], 1))

    def _draw(self, draft, hidden, scores, state, key) -> Tree:
        """A chain drawn token by token. ``scores`` [B, D, V] are logits before the correction."""

        def extend(i, carry):
            drawn, memory = carry
            at = lambda leaf: lax.dynamic_index_in_dim(leaf, i, 1, keepdims=False)
            here = at(hidden)
            before = at(drawn.tokens)
            if self.draft_confidence:
                drawn = drawn.replace(going=drawn.going & (draft.sure(here, before) >= self.draft_confidence))
            memory, code = draft.markov.step(memory, here, before)
            return chains.draw(drawn, draft.corrected(at(scores), code)[:, None], i, state, key), memory

        memory = jnp.zeros((state.root.size, self.head.markov_rank))
        return lax.fori_loop(0, self.depth, extend, (chains.begin(state, self.depth, scores.shape[2]), memory))[0].tree

    def _check_head(self) -> None:
        D = self.depth
        drafts = self.head.drafts
        if D > drafts:
            raise RequestError(f"num_speculative_tokens is {D} and the head drafts {drafts} at once; lower it")
        if self.draft_confidence and not self.head.confidence:
            raise RequestError("draft_confidence needs a head with a confidence output; leave it out")
        if not self.tree_nodes:
            return
        dependent = self.head.markov_rank or self.head.refiner_rank
        if dependent or self.draft_confidence:
            cause = "a head whose tokens depend on each other" if dependent else "draft_confidence"
            raise RequestError(f"tree_nodes makes a tree and {cause} makes chains; leave tree_nodes out")
        check_best_first(self.tree_nodes, self.tree_top_k, D, self.head.vocab_size)
