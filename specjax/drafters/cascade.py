"""A drafter for the draft: n-grams or a smaller model (vertical cascade, Chen et al. 2023)."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from ..core.cache import KVCache
from ..loop.drafter import Models
from ..loop.prefill import catch_up, fill
from .parts.inner_loop import InnerLoop, InnerMethod


class CascadeState(struct.PyTreeNode):
    """The state between rounds.

    Attributes:
      cache: the draft's cache, which holds all tokens but the root.
      inner: the inner method's state.
      calls: int32 [B], the number of calls of the draft so far.
    """

    cache: KVCache
    inner: object
    calls: jax.Array


@dataclasses.dataclass(frozen=True)
class Cascade(InnerMethod):
    """Drafts chains as ``DraftModel`` does, but several tokens for each call of the draft.

    Each round runs an inner loop, which consists of the same rounds as in ``decode``, with the
    draft in the target's place; see ``parts.inner_loop``. q is the draft's distribution after each
    token, as if the draft had drawn alone.

    The inner loop runs until each row has D + 1 tokens, where D is ``num_speculative_tokens``.
    Token D + 1 makes sure that the draft has read the first D tokens, all of which the target may
    accept. With two drafts the second one is the inner draft.
    """

    needs = Models(least=1, most=2)

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype) -> CascadeState:
        room = -(-self.inner_speculative_tokens // chunk) * chunk  # the inner loop writes further than the outer
        tokens = jnp.pad(tokens, ((0, 0), (0, room)))
        (model, second) = _pair(draft)
        cache, _, _ = fill(model, tokens, lengths, chunk, dtype, unread=1)
        inner = self.inner(second).init(model, second, tokens, lengths, (), chunk=chunk, dtype=dtype)
        return CascadeState(cache, inner, jnp.zeros_like(lengths))

    def propose(self, target, draft, state, key):
        state = self.drafting(state)
        before = state.drafter
        model, second = _pair(draft)
        inner = self.inner(second)
        loop = InnerLoop.start(state, key, before.cache, before.inner, self.depth + 1, inner, model)
        loop = loop.run(model, second, inner)
        own = loop.own
        calls = before.calls + own.counters.calls
        return loop.tree(self.depth, read=True), CascadeState(own.cache, own.drafter, calls)

    def commit(self, target, draft, state, tree, scored, verdict) -> CascadeState:
        """Cuts both caches, which hold all tokens of the inner loop, after the accepted tokens."""
        pending = state.drafter
        length = state.cache.length + verdict.length
        inner = pending.inner
        if inner:  # n-grams keep nothing
            inner = inner.replace(cache=inner.cache.cut(jnp.maximum(length - 1, 0)))
        return pending.replace(cache=pending.cache.cut(length), inner=inner)

    def rest(self, target, draft, state, tree, scored, verdict) -> CascadeState:
        """Both drafts read the tokens of the round."""
        own = state.drafter
        n = state.cache.length
        text = jax.vmap(lax.dynamic_update_slice)(state.tokens, tree.tokens, n[:, None])
        model, second = _pair(draft)
        cache = catch_up(model, own.cache, text, n + verdict.length)
        before = state.replace(drafter=own.inner)
        inner = self.inner(second).rest(model, second, before, tree, scored, verdict)
        return own.replace(cache=cache, inner=inner)


def _pair(draft) -> tuple:
    """The draft, and the model that drafts for it or None."""
    return draft[0], draft[1] if len(draft) > 1 else None
