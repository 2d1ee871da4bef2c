"""A drafter for the drafter: n-grams, or a still smaller model, draft for the draft model (vertical cascade, Chen et al. 2023)."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from .. import decode
from ..cache import KVCache
from ..checks import whole
from ..decode import fill
from ..stats import Counters
from ..tree import chain
from ..verify import resolve
from .draft_model import DraftModel
from .ngram import Ngram


@struct.dataclass
class State:
    """The draft's cache, which holds all tokens but the root, what the inner drafter keeps, and how often the draft was called, int32 [B]."""

    cache: KVCache
    inner: object
    calls: jax.Array


@dataclasses.dataclass(frozen=True)
class Cascade:
    """Draws the same chain as ``DraftModel``, but several tokens in a call of the draft: the loop of ``decode``, in which the draft
    is the target, runs within every round of the outer one.

    An exact rule judges the inner proposals, so what the inner loop emits is a sample of the draft's own law, whatever was proposed,
    and q is the draft's distribution after each token, as if it had drawn alone. The loop goes on until each row has D + 1 tokens,
    D = ``num_speculative_tokens``, and all beyond D are dropped. A *count* says nothing about the tokens kept: the first D of an exact
    stream are exact. The last is asked for so that the draft has read all D, should the target keep them.

    Attributes:
      num_speculative_tokens: tokens that the target judges in a round.
      inner_speculative_tokens: tokens that the draft judges in a call. With one draft they are looked up in the row, with
        ``prompt_lookup_max`` and ``prompt_lookup_min`` as in ``Ngram``; with two the second draws them.
    """

    num_speculative_tokens: int = 5
    inner_speculative_tokens: int = 3
    prompt_lookup_max: int = 4
    prompt_lookup_min: int = 1
    sampled: ClassVar[str] = "chain"
    taps: ClassVar[tuple[int, ...]] = ()
    needs_draft: ClassVar[int] = 1
    several: ClassVar[bool] = True

    def __post_init__(self):
        whole("num_speculative_tokens", self.num_speculative_tokens)
        whole("inner_speculative_tokens", self.inner_speculative_tokens)
        self.inner(1)

    @property
    def depth(self) -> int:
        return self.num_speculative_tokens

    def inner(self, drafts: int) -> Ngram | DraftModel:
        """What drafts for the first of so many drafts."""
        if drafts > 1:
            return DraftModel(self.inner_speculative_tokens)
        return Ngram(self.inner_speculative_tokens, self.prompt_lookup_max, self.prompt_lookup_min)

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        room = -(-self.inner_speculative_tokens // chunk) * chunk  # the inner loop writes as far beyond the outer
        tokens, (model, second) = jnp.pad(tokens, ((0, 0), (0, room))), _pair(draft)
        cache, _, _ = fill(model, tokens, lengths - 1, chunk, dtype)
        inner = self.inner(len(draft)).init(model, second, tokens, lengths, (), chunk=chunk, dtype=dtype)
        return State(cache, inner, jnp.zeros_like(lengths))

    def draft(self, target, draft, state, key):
        B, D, n = state.root.size, self.depth, state.cache.length
        (model, second), inner = _pair(draft), self.inner(len(draft))
        rule = resolve("auto", inner.sampled)

        def turn(carry):
            own, q = carry
            as_outer = own.replace(limit=state.limit, stop_ids=state.stop_ids)  # so that options see the request's own
            found = decode.judge(model, second, as_outer, drafter=inner, rule=rule)
            on_path = jnp.take_along_axis(found.p, found.verdict.path[..., None], 1)
            q = jax.vmap(lax.dynamic_update_slice_in_dim, (0, 0, 0, None))(q, on_path, own.cache.length - n, 0)
            return decode.settle(model, second, own, found, drafter=inner), q

        start = state.replace(
            tokens=jnp.pad(state.tokens, ((0, 0), (0, inner.depth))),
            cache=state.drafter.cache,
            drafter=state.drafter.inner,
            stops=None,
            logprobs=None,
            key=key,
            limit=n + D + 2,  # the root and D + 1 more
            stop_ids=jnp.full_like(state.stop_ids, -1),
            step=jnp.int32(0),
            counters=Counters.zeros(B, inner.depth),
        )
        q = jnp.zeros((B, D + 1 + inner.depth, target.config.vocab_size))
        own, q = lax.while_loop(lambda carry: jnp.any(~carry[0].done), turn, (start, q))

        place = jnp.arange(D + 1)
        tokens = jnp.take_along_axis(own.tokens, n[:, None] + place, 1)
        valid = place < (own.cache.length - n)[:, None]  # a draft whose logits are NaN proposes no more
        q = jnp.where((place < D)[:, None], q[:, : D + 1], 0)
        calls = state.drafter.calls + own.counters.calls
        return jax.vmap(chain)(tokens, q, valid.at[:, 0].set(True)), State(own.cache, own.drafter, calls)

    def commit(self, target, draft, state, tree, out, verdict):
        """Both caches hold the inner loop's tokens already: they are cut where the target's verdict ends."""
        pending, length = state.drafter, state.cache.length + verdict.length
        inner = pending.inner
        if inner:  # a model's state, not the nothing that n-grams keep
            inner = inner.replace(cache=inner.cache.replace(length=jnp.maximum(length - 1, 0)))
        return pending.replace(cache=pending.cache.replace(length=length), inner=inner)


def _pair(draft: tuple) -> tuple:
    return draft[0], draft[1] if len(draft) > 1 else None
