"""How many tokens a chain drafts: until the draft is unsure, by the last round's acceptance, or as
many as pay off.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from ..checks import per_row
from ..drafter import Drafter, Models
from ..errors import RequestError
from ..tree import chain
from ..verify import Drawn
from .draft_model import DraftModel
from .parts.gain import RunningAcceptance, gain

LENGTHS = ("fixed", "confidence", "heuristic", "ema")
"""The values of ``draft_length``; "fixed" is the drafter by itself."""

_PROBE = 16
"""Rounds after which a row that drafts nothing tries again."""


@struct.dataclass
class AdaptiveState:
    """The state between rounds.

    Attributes:
      inner: the drafter's own state.
      wanted: int32 [B], tokens that each row wants in the next round.
      acceptance: how often the row's drafts were accepted.
    """

    inner: Any
    wanted: jax.Array
    acceptance: RunningAcceptance


@dataclasses.dataclass(frozen=True)
class Adaptive(Drafter):
    """Chooses for every row how many tokens its chain drafts, at most the drafter's
    ``num_speculative_tokens`` K.

    "confidence": a row stops after a token whose likeliest alternative had a probability below
    ``draft_confidence``, before temperature and truncation. Drafting ends when every row has
    stopped (transformers, ``assistant_confidence_threshold``). "heuristic": two more after a round
    whose drafts were all accepted, one fewer after any other, from 1 to K, beginning with K
    (transformers, ``num_assistant_tokens_schedule``). "ema": the length with the highest ``gain``
    at the row's running acceptance rate, of a few lengths that include 0. A row at 0 drafts again
    in every 16th round.

    The output is exact, since no decision depends on a token that it drops. Confidence depends on
    the draft's distribution *before* the last drafted token, and that token is kept whatever it is.
    The other two depend on earlier rounds alone. By induction from the last node up, a rule that is
    exact for chains of every length is exact for a chain that ends so.

    The last two compile a round for each of ``lengths`` and run the shortest that suffices for all
    unfinished rows. A row's own chain ends where the row wants, so that its output does not depend
    on its neighbours: the random numbers of a node do not depend on how many nodes follow.

    Attributes:
      drafter: proposes chains; for "confidence", ``DraftModel``.
      draft_length: "fixed", "confidence", "heuristic" or "ema", see above.
      draft_cost: time to draft a token with a model, in plain target calls.
      verify_cost: time that one more token adds to a target call, in plain target calls.
      length: tokens to draft at most in this round, one of ``lengths``; by default all. See
        ``at_length``.
    """

    drafter: Any = DraftModel()
    draft_length: str = "ema"
    draft_confidence: float = 0.4
    draft_cost: float = 0.1
    verify_cost: float = 0.02
    length: int | None = None

    def __post_init__(self):
        if self.draft_length not in LENGTHS[1:]:
            raise RequestError(f"draft_length {self.draft_length!r} is unknown; use one of {', '.join(LENGTHS)}")
        if not self.drafter.can_rest:
            raise RequestError(
                "draft_length is for methods that draft chains, such as draft_model, ngram and suffix; leave it out"
            )
        if self.draft_length == "confidence" and not isinstance(self.drafter, DraftModel):
            raise RequestError(
                "draft_length 'confidence' reads the certainty of a draft model; use method 'draft_model', or "
                "'heuristic' or 'ema'"
            )
        per_row("draft_confidence", self.draft_confidence, 1, float, most=1)
        for name in ("draft_cost", "verify_cost"):
            per_row(name, getattr(self, name), 1, float)

    @property
    def needs(self):
        return self.drafter.needs

    @property
    def depth(self) -> int:
        return self.drafter.depth

    @property
    def drawn(self) -> Drawn:
        return self.drafter.drawn

    @property
    def taps(self) -> tuple[int, ...]:
        return self.drafter.taps

    @property
    def lengths(self) -> tuple[int, ...]:
        """K and its half and quarter; for "ema" also 0, for "confidence" K alone."""
        K = self.depth
        least = {"confidence": K, "heuristic": 1, "ema": 0}[self.draft_length]
        return tuple(sorted(k for k in {0, K // 4, K // 2, K} if k >= least))

    def at_length(self, length: int) -> "Adaptive":
        return dataclasses.replace(self, length=length)

    def check(self, config):
        self.drafter.check(config)

    def parameters(self, draft, vocab_size: int):
        return self.drafter.parameters(draft, vocab_size)

    def remember(self, parameters, texts):
        return self.drafter.remember(parameters, texts)

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype) -> AdaptiveState:
        inner = self.drafter.init(target, draft, tokens, lengths, taps, chunk=chunk, dtype=dtype)
        acceptance = RunningAcceptance.start(lengths.size)
        wanted = jnp.full(lengths.size, self.depth, jnp.int32)
        return AdaptiveState(inner, self._best(acceptance, 0) if self.draft_length == "ema" else wanted, acceptance)

    def choose(self, state) -> jax.Array:
        most = jnp.max(jnp.where(state.done, 0, state.drafter.wanted))
        return jnp.searchsorted(jnp.array(self.lengths), most).astype(jnp.int32)

    def propose(self, target, draft, state, key):
        length, own = self.depth if self.length is None else self.length, state.drafter
        if length == 0:
            has_q = self.drawn is Drawn.CHAIN
            q = jnp.zeros((state.root.size, 1, target.config.vocab_size)) if has_q else None
            return jax.vmap(chain)(state.root[:, None], q), own
        confidence = {"least": jnp.full(state.root.size, self.draft_confidence)}
        until = confidence if self.draft_length == "confidence" else {}
        before = state.replace(drafter=own.inner)
        before = before.replace(drafter=self.drafter.catch_up(draft, before))
        tree, inner = self._at(length).propose(target, draft, before, key, **until)
        cut = lambda leaf: None if leaf is None else leaf[:, : length + 1]
        valid = cut(tree.valid) & (jnp.arange(length + 1) <= own.wanted[:, None])
        return jax.vmap(chain)(cut(tree.tokens), cut(tree.q), valid), own.replace(inner=inner)

    def commit(self, target, draft, state, tree, scored, verdict) -> AdaptiveState:
        own, length = state.drafter, tree.tokens.shape[1] - 1
        inner = own.inner
        if length > 0:
            inner = self._at(length).commit(target, draft, state.replace(drafter=inner), tree, scored, verdict)
        drafted = jnp.cumprod(tree.valid[:, 1:], 1).sum(1)
        accepted = jnp.maximum(verdict.length - 1, 0)
        acceptance = own.acceptance.update(accepted, jnp.minimum(accepted + 1, drafted))
        wanted = own.wanted
        if self.draft_length == "heuristic":
            moved = jnp.where(drafted == 0, 0, jnp.where(accepted == drafted, 2, -1))  # n-grams may propose nothing
            wanted = jnp.clip(wanted + moved, 1, self.depth)
        if self.draft_length == "ema":
            wanted = self._best(acceptance, state.round + 1)
        return AdaptiveState(inner, wanted, acceptance)

    def _at(self, length: int) -> Drafter:
        """The drafter at a length.

        A drafter without a model costs nothing: it drafts all, and its chain is cut.
        """
        if not isinstance(self.needs, Models):
            return self.drafter
        return dataclasses.replace(self.drafter, num_speculative_tokens=length)

    def _best(self, acceptance: RunningAcceptance, round) -> jax.Array:
        """Int32 [B], the length with the highest gain in a round; the shortest of equal lengths."""
        lengths = jnp.array(self.lengths)
        cost = self.verify_cost + self.draft_cost * isinstance(self.needs, Models)
        time = 1 + lengths.astype(jnp.float32) * cost
        best = jnp.argmax(gain(acceptance.alpha[:, None], lengths, time, self.depth), 1)
        return lengths[jnp.where((best == 0) & (round % _PROBE == 0), 1, best)]
