"""A small model drafts for the target with a part of its cache, which drafts for the whole target.

The method is the hierarchy of TriForce (Sun et al. 2024).
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct

from ..cache import KVCache
from ..checks import whole
from ..drafter import Models
from ..models.base import Output
from ..models.decoder import Decoder
from ..verify import Drawn
from .draft_model import DraftModel
from .ngram import Ngram
from .none import Plain
from .parts.inner_loop import InnerLoop
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
class PartialCascade(PartialReader):
    """Drafts chains as ``PartialCache`` does, but several tokens for each forward.

    Each round runs an inner loop, in which the target with a part of its cache verifies the drafts
    of the inner method; see ``parts.inner_loop``. q is the distribution of the target with the
    part. The first forward reads the root alone, because it chooses the chunks.

    Attributes:
      num_speculative_tokens: tokens that the whole target tests in a round.
      inner_speculative_tokens: tokens that the target with a part of its cache tests in a forward.
        A draft draws them. Without a draft they are looked up in the row.
      prompt_lookup_max, prompt_lookup_min: as in ``Ngram``, without a draft.
    """

    num_speculative_tokens: int = 6
    inner_speculative_tokens: int = 3
    prompt_lookup_max: int = 4
    prompt_lookup_min: int = 1
    needs = Models(least=0, most=1)

    def __post_init__(self):
        whole("num_speculative_tokens", self.num_speculative_tokens)
        whole("inner_speculative_tokens", self.inner_speculative_tokens)
        self.inner(0)
        super().__post_init__()

    @property
    def depth(self) -> int:
        return self.num_speculative_tokens

    @property
    def drawn(self) -> Drawn:
        return Drawn.CHAIN

    def inner(self, drafts: int) -> Ngram | DraftModel:
        """The inner method, with 0 or 1 drafts."""
        if drafts:
            return DraftModel(self.inner_speculative_tokens)
        return Ngram(self.inner_speculative_tokens, self.prompt_lookup_max, self.prompt_lookup_min)

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype) -> PartialCascadeState:
        B, T = tokens.shape
        room = -(-self.inner_speculative_tokens // chunk) * chunk  # the inner loop writes further than the outer
        tokens = jnp.pad(tokens, ((0, 0), (0, room)))
        model, inner = draft[0] if draft else None, self.inner(len(draft))
        state = inner.init(target, model, tokens, lengths, (), chunk=chunk, dtype=dtype)
        return PartialCascadeState(self.blank_means(target.config, B, T, dtype), state, jnp.zeros_like(lengths))

    def propose(self, target: Decoder, draft, state, key):
        state, before, D = self.drafting(state), state.drafter, self.depth
        model, inner = draft[0] if draft else None, self.inner(len(draft))
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
        pending, inner = state.drafter, state.drafter.inner
        if inner:  # n-grams keep nothing
            length = jnp.maximum(state.cache.length + verdict.length - 1, 0)
            inner = inner.replace(cache=inner.cache.replace(length=jnp.minimum(inner.cache.length, length)))
        return pending.replace(inner=inner)


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

    def __call__(self, *given, **options) -> Output:
        return self.output

    def logits(self, hidden):
        return self.model.logits(hidden)
