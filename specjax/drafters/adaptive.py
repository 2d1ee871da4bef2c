"""How many tokens a chain drafts: as many as the draft is sure of, as the last round went, or as pay off."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from ..checks import per_row
from ..errors import RequestError
from ..tree import chain
from .base import can_rest, caught_up, checked, parameters, remembered
from .draft_model import DraftModel
from .parts.gain import Acceptance, gain

LENGTHS = ("fixed", "confidence", "heuristic", "ema")
"""What ``draft_length`` may be; "fixed" is the drafter by itself."""

_PROBE = 16
"""Rounds after which a row that drafts nothing tries again."""


@struct.dataclass
class State:
    """The drafter's own state, the tokens that each row wants in the next round, int32 [B], and how its drafts fared so far."""

    inner: Any
    wanted: jax.Array
    acceptance: Acceptance


@dataclasses.dataclass(frozen=True)
class Adaptive:
    """Lets every row of a chain ``drafter`` draft as many tokens as it should, at most the drafter's ``num_speculative_tokens`` K.

    "confidence": a row stops after the first token before which the draft's likeliest token had a probability below
    ``draft_confidence``, without temperature or truncation; drafting ends when every row has stopped (transformers,
    ``assistant_confidence_threshold``). "heuristic": two more after a round in which all drafts were kept, one fewer after any other,
    from 1 to K, beginning with K (transformers, ``num_assistant_tokens_schedule``). "ema": of a few lengths, 0 among them, the one with the
    highest ``gain`` at the row's moving acceptance rate; a row at 0 drafts again every 16th round, to see whether that has changed.

    Lossless, since nothing that a decision drops has been looked at: confidence depends on the draft's distribution *before* the
    token that is drafted last, and that token is kept whatever it is; the others depend on earlier rounds alone. By induction from
    the last node up, any rule that is exact for chains of all lengths is exact for a chain that ends by such a rule.

    The last two compile a round for each of ``lengths`` and run the shortest that holds what the unfinished rows want. A row's own
    chain ends where it wants, so its output is that of the row alone: random numbers of a node do not depend on how many follow it.

    Attributes:
      drafter: proposes chains; for "confidence", ``DraftModel``.
      draft_cost: time to draft a token with a model, in plain target calls.
      verify_cost: time that one more token adds to a target call, in plain target calls.
    """

    drafter: Any = DraftModel()
    draft_length: str = "ema"
    draft_confidence: float = 0.4
    draft_cost: float = 0.1
    verify_cost: float = 0.02

    def __post_init__(self):
        if self.draft_length not in LENGTHS[1:]:
            raise RequestError(f"draft_length {self.draft_length!r} is unknown; use one of {', '.join(LENGTHS)}")
        if not can_rest(self.drafter):
            raise RequestError("draft_length is for methods that draft chains, such as draft_model, ngram and suffix; leave it out")
        if self.draft_length == "confidence" and not isinstance(self.drafter, DraftModel):
            raise RequestError(
                "draft_length 'confidence' asks a draft model how sure it is; use method 'draft_model', or 'heuristic' or 'ema'"
            )
        per_row("draft_confidence", self.draft_confidence, 1, float, most=1)
        for name in ("draft_cost", "verify_cost"):
            per_row(name, getattr(self, name), 1, float)

    depth = property(lambda self: self.drafter.depth)
    sampled = property(lambda self: self.drafter.sampled)
    taps = property(lambda self: self.drafter.taps)
    needs_draft = property(lambda self: self.drafter.needs_draft)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths that are compiled: K and its half and quarter; for "ema" also 0, for "confidence" K alone."""
        K = self.depth
        least = {"confidence": K, "heuristic": 1, "ema": 0}[self.draft_length]
        return tuple(sorted(k for k in {0, K // 4, K // 2, K} if k >= least))

    def check(self, config):
        checked(self.drafter, config)

    def parameters(self, draft, vocab_size: int):
        return parameters(self.drafter, draft, vocab_size)

    def remember(self, given, texts):
        return remembered(self.drafter, given, texts)

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        inner = self.drafter.init(target, draft, tokens, lengths, taps, chunk=chunk, dtype=dtype)
        acceptance = Acceptance.begun(lengths.size)
        wanted = jnp.full(lengths.size, self.depth, jnp.int32)
        return State(inner, self._best(acceptance, 0) if self.draft_length == "ema" else wanted, acceptance)

    def choose(self, state) -> jax.Array:
        """Int32, which of ``lengths`` the next round needs."""
        most = jnp.max(jnp.where(state.done, 0, state.drafter.wanted))
        return jnp.searchsorted(jnp.array(self.lengths), most).astype(jnp.int32)

    def draft(self, target, draft, state, key, length: int | None = None):
        """See ``Drafter``. ``length``: tokens to draft at most, one of ``lengths``; by default all."""
        length, own = self.depth if length is None else length, state.drafter
        if length == 0:
            q = jnp.zeros((state.root.size, 1, target.config.vocab_size)) if self.sampled else None
            return jax.vmap(chain)(state.root[:, None], q), own
        until = {"least": jnp.full(state.root.size, self.draft_confidence)} if self.draft_length == "confidence" else {}
        before = caught_up(self.drafter, draft, state.replace(drafter=own.inner))
        tree, inner = self._at(length).draft(target, draft, before, key, **until)
        cut = lambda leaf: None if leaf is None else leaf[:, : length + 1]
        valid = cut(tree.valid) & (jnp.arange(length + 1) <= own.wanted[:, None])
        return jax.vmap(chain)(cut(tree.tokens), cut(tree.q), valid), own.replace(inner=inner)

    def commit(self, target, draft, state, tree, out, verdict):
        own, length = state.drafter, tree.tokens.shape[1] - 1
        inner = own.inner
        if length > 0:
            inner = self._at(length).commit(target, draft, state.replace(drafter=inner), tree, out, verdict)
        drafted = jnp.cumprod(tree.valid[:, 1:], 1).sum(1)
        kept = jnp.maximum(verdict.length - 1, 0)
        acceptance = own.acceptance.after(kept, jnp.minimum(kept + 1, drafted))
        wanted = own.wanted
        if self.draft_length == "heuristic":
            moved = jnp.where(drafted == 0, 0, jnp.where(kept == drafted, 2, -1))  # n-grams may have had nothing to propose
            wanted = jnp.clip(wanted + moved, 1, self.depth)
        if self.draft_length == "ema":
            wanted = self._best(acceptance, state.step + 1)
        return State(inner, wanted, acceptance)

    def _at(self, length: int):
        """The drafter at a length. One without a model costs nothing: it drafts all, and its chain is cut."""
        return dataclasses.replace(self.drafter, num_speculative_tokens=length) if self.needs_draft else self.drafter

    def _best(self, acceptance: Acceptance, step) -> jax.Array:
        """Int32 [B], the length with the highest gain in the round ``step``; the shortest of equals."""
        lengths = jnp.array(self.lengths)
        time = 1 + lengths.astype(jnp.float32) * (self.verify_cost + self.draft_cost * self.needs_draft)
        best = jnp.argmax(gain(acceptance.alpha[:, None], lengths, time, self.depth), 1)
        return lengths[jnp.where((best == 0) & (step % _PROBE == 0), 1, best)]
