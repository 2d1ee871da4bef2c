"""A drafter for the draft: n-grams or a smaller model (vertical cascade, Chen et al. 2023)."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from ..cache import KVCache
from ..checks import whole
from ..decode import commit, propose_and_accept
from ..drafter import Models
from ..prefill import fill
from ..stats import Counters
from ..tree import chain
from ..verify import Drawn, resolve
from .draft_model import DraftModel
from .ngram import Ngram
from .parts.drawing import Drawing


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
class Cascade(Drawing):
    """Drafts chains as ``DraftModel`` does, but several tokens for each call of the draft.

    Each round runs an inner loop, which consists of the same rounds as in ``decode``, with the
    draft in the target's place. An exact rule tests the inner proposals, so the inner loop emits
    samples of the draft's own distribution. q is the draft's distribution after each token, as if
    the draft had drawn alone.

    The inner loop runs until each row has D + 1 tokens, where D is ``num_speculative_tokens``.
    Tokens beyond D are dropped. The number of dropped tokens does not depend on the first D tokens,
    so these stay exact. Token D + 1 makes sure that the draft has read the first D tokens, all of
    which the target may accept.

    Attributes:
      num_speculative_tokens: tokens that the target tests in a round.
      inner_speculative_tokens: tokens that the draft tests in a call. With two drafts the second
        one draws them. With one draft they are looked up in the row.
      prompt_lookup_max, prompt_lookup_min: as in ``Ngram``, for one draft.
    """

    num_speculative_tokens: int = 5
    inner_speculative_tokens: int = 3
    prompt_lookup_max: int = 4
    prompt_lookup_min: int = 1
    needs = Models(least=1, most=2)

    def __post_init__(self):
        whole("num_speculative_tokens", self.num_speculative_tokens)
        whole("inner_speculative_tokens", self.inner_speculative_tokens)
        self.inner(1)
        super().__post_init__()

    @property
    def depth(self) -> int:
        return self.num_speculative_tokens

    @property
    def drawn(self) -> Drawn:
        return Drawn.CHAIN

    def inner(self, drafts: int) -> Ngram | DraftModel:
        """The inner method, which drafts for the first of ``drafts`` models."""
        if drafts > 1:
            return DraftModel(self.inner_speculative_tokens)
        return Ngram(self.inner_speculative_tokens, self.prompt_lookup_max, self.prompt_lookup_min)

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype) -> CascadeState:
        room = -(-self.inner_speculative_tokens // chunk) * chunk  # the inner loop writes further than the outer
        tokens, (model, second) = jnp.pad(tokens, ((0, 0), (0, room))), _pair(draft)
        cache, _, _ = fill(model, tokens, lengths - 1, chunk, dtype)
        inner = self.inner(len(draft)).init(model, second, tokens, lengths, (), chunk=chunk, dtype=dtype)
        return CascadeState(cache, inner, jnp.zeros_like(lengths))

    def propose(self, target, draft, state, key):
        state, B, D, n = self.drafting(state), state.root.size, self.depth, state.cache.length
        (model, second), inner = _pair(draft), self.inner(len(draft))
        rule = resolve("auto", inner.drawn)
        no_stops = dict(stop_ids=jnp.full_like(state.request.stop_ids, -1), stops=None)
        own_request = state.request.replace(keys=key, limit=n + D + 2, **no_stops)  # the root and D + 1 more
        # Sampling options that read the limit and the stop ids read those of the request.
        seen_request = own_request.replace(limit=state.request.limit, stop_ids=state.request.stop_ids)

        def inner_round(carry):
            own, q = carry
            found = propose_and_accept(model, second, own.replace(request=seen_request), drafter=inner, rule=rule)
            on_path = jnp.take_along_axis(found.p, found.verdict.path[..., None], 1)
            q = jax.vmap(lax.dynamic_update_slice_in_dim, (0, 0, 0, None))(q, on_path, own.cache.length - n, 0)
            return commit(model, second, own, found, drafter=inner), q

        start = state.replace(
            request=own_request,
            tokens=jnp.pad(state.tokens, ((0, 0), (0, inner.depth))),
            cache=state.drafter.cache,
            drafter=state.drafter.inner,
            logprobs=None,
            round=jnp.int32(0),
            counters=Counters.zeros(B, inner.depth),
        )
        q = jnp.zeros((B, D + 1 + inner.depth, target.config.vocab_size))
        own, q = lax.while_loop(lambda carry: jnp.any(~carry[0].done), inner_round, (start, q))

        place = jnp.arange(D + 1)
        tokens = jnp.take_along_axis(own.tokens, n[:, None] + place, 1)
        valid = place < (own.cache.length - n)[:, None]  # a draft with NaN logits proposes no further tokens
        q = jnp.where((place < D)[:, None], q[:, : D + 1], 0)
        calls = state.drafter.calls + own.counters.calls
        return jax.vmap(chain)(tokens, q, valid.at[:, 0].set(True)), CascadeState(own.cache, own.drafter, calls)

    def commit(self, target, draft, state, tree, scored, verdict) -> CascadeState:
        """Cuts both caches, which hold all tokens of the inner loop, after the accepted tokens."""
        pending, length = state.drafter, state.cache.length + verdict.length
        inner = pending.inner
        if inner:  # n-grams keep nothing
            inner = inner.replace(cache=inner.cache.replace(length=jnp.maximum(length - 1, 0)))
        return pending.replace(cache=pending.cache.replace(length=length), inner=inner)


def _pair(draft) -> tuple:
    """The draft, and the model that drafts for it or None."""
    return draft[0], draft[1] if len(draft) > 1 else None
