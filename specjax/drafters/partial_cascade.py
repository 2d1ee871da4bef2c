"""A small model drafts for the target with a part of its cache, which drafts for the whole target.

The method is the hierarchy of TriForce (Sun et al. 2024).
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct

from ..core.cache import KVCache
from ..loop.drafter import Models
from ..models.base import Output
from ..models.decoder import Decoder
from .none import Plain
from .parts.inner_loop import InnerLoop, InnerMethod
from .parts.partial_reader import PartialReader


class PartialCascadeState(struct.PyTreeNode):
    """The state between rounds.

    Attributes:
      means: see ``PartialReader.blank_means``.
      inner: the inner method's state.
      calls: int32 [B], the number of forwards with a part of the cache so far.
    """

    means: KVCache | None
    inner: object
    calls: jax.Array


@dataclasses.dataclass(frozen=True)
class PartialCascade(PartialReader, InnerMethod):
    """Drafts chains as ``PartialCache`` does, but several tokens for each forward.

    Each round runs an inner loop, in which the target with a part of its cache verifies the drafts
    of the inner method; see ``parts.inner_loop``. q is the distribution of the target with the
    part. The first forward reads the root alone, because it chooses the chunks.
    """

    num_speculative_tokens: int = 6
    needs = Models(least=0, most=1)
    reads_target = True

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype) -> PartialCascadeState:
        B, T = tokens.shape
        room = -(-self.inner_speculative_tokens // chunk) * chunk  # the inner loop writes further than the outer
        tokens = jnp.pad(tokens, ((0, 0), (0, room)))
        model = draft[0] if draft else None
        inner = self.inner(model)
        state = inner.init(target, model, tokens, lengths, (), chunk=chunk, dtype=dtype)
        return PartialCascadeState(self.blank_means(target.config, B, T, dtype), state, jnp.zeros_like(lengths))

    def propose(self, target: Decoder, draft, state, key):
        state = self.drafting(state)
        before = state.drafter
        D = self.depth
        model = draft[0] if draft else None
        inner = self.inner(model)
        means = self.average(before.means, state.cache)
        root, part = self.read_root(target, state, means, D + inner.depth)
        loop = InnerLoop.start(state, key, part, (), D, inner, target)
        loop = loop.step(Read(target, root), None, Plain())
        # The inner method passed over the first token.
        own = loop.own.replace(drafter=before.inner)
        own = own.replace(drafter=inner.catch_up(model, own))
        loop = loop.replace(own=own).run(target, model, inner)
        calls = before.calls + loop.own.counters.calls
        return loop.tree(D, read=False), PartialCascadeState(means, loop.own.drafter, calls)

    def commit(self, target, draft, state, tree, scored, verdict) -> PartialCascadeState:
        """Cuts the draft's cache after the accepted tokens."""
        pending = state.drafter
        inner = state.drafter.inner
        if inner:  # n-grams keep nothing
            length = jnp.maximum(state.cache.length + verdict.length - 1, 0)
            inner = inner.replace(cache=inner.cache.cut(jnp.minimum(inner.cache.length, length)))
        return pending.replace(inner=inner)

    def rest(self, target, draft, state, tree, scored, verdict) -> PartialCascadeState:
        own = state.drafter
        model = draft[0] if draft else None
        before = state.replace(drafter=own.inner)
        return own.replace(inner=self.inner(model).rest(target, model, before, tree, scored, verdict))


class Read(struct.PyTreeNode):
    """A model that has read its next node already.

    Attributes:
      model: the model.
      output: the output for the node.
    """

    model: Decoder
    output: Output

    @property
    def config(self):
        return self.model.config

    def __call__(self, *arguments, **options) -> Output:
        return self.output

    def logits(self, hidden):
        return self.model.logits(hidden)
