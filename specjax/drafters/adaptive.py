"""Chains of variable length: each row chooses how many tokens to draft in each round."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from ..core.checks import check_known, per_row
from ..core.tree import chain
from ..errors import RequestError
from ..loop.chooser import Chooser
from ..loop.drafter import Models
from ..loop.wrapper import Wrapper
from ..rules.acceptance import Drawn
from .draft_model import DraftModel
from .parts.member import Member
from .parts.running_acceptance import RunningAcceptance, gain

LENGTHS = ("fixed", "confidence", "heuristic", "ema")
"""The values of ``draft_length``; "fixed" is the drafter by itself."""

_PROBE = 16
"""A row that drafts nothing tries again in every ``_PROBE``-th round."""


class AdaptiveState(struct.PyTreeNode):
    """The state between rounds.

    Attributes:
      inner: the inner drafter's state.
      wanted: int32 [B], the number of tokens that each row wants to draft in the next round.
      acceptance: the running acceptance rate of each row.
    """

    inner: Any
    wanted: jax.Array
    acceptance: RunningAcceptance


@dataclasses.dataclass(frozen=True)
class Adaptive(Wrapper, Chooser):
    """Chooses for each row the number of tokens that its chain drafts, from 0 to K.

    K is the inner drafter's ``num_speculative_tokens``. ``draft_length`` says how to choose:

    - "confidence": a row stops after a token if the likeliest token at its place had a probability
      below ``draft_confidence``, before temperature and truncation. Drafting ends when all rows
      have stopped (transformers, ``assistant_confidence_threshold``).
    - "heuristic": a row starts with K tokens. It drafts two more after a round that accepted all
      its drafts, and one fewer after any other round, from 1 to K (transformers,
      ``num_assistant_tokens_schedule``).
    - "ema": a row takes the length with the highest ``gain`` at its running acceptance rate, among
      a few lengths that include 0. A row at 0 drafts again in every 16th round.

    The output is exact, because no decision to stop depends on a token that it drops. Confidence
    depends on the distribution from which the last kept token was drawn, not on that token. The
    other two choices depend on earlier rounds alone. By induction from the last node up, a rule
    that is exact for chains of every length is exact for chains that end in this way.

    "heuristic" and "ema" compile a round for each of ``shapes``, and run the shortest round that
    suffices for all unfinished rows. The chain of each row still ends at the row's own length. The
    random numbers of a node do not depend on the number of nodes after it. A row's output therefore
    does not depend on its neighbours.

    Attributes:
      drafter: the inner drafter, which proposes chains; ``DraftModel`` for "confidence".
      draft_length: how a row chooses its number of drafts: "fixed", "confidence", "heuristic" or
        "ema".
      draft_confidence: for "confidence", the probability below which a row stops.
      draft_cost: time to draft a token with a model, in plain target calls.
      verify_cost: time that one more token adds to a target call, in plain target calls.
      length: the most tokens to draft in this round, one of ``shapes``; by default K. See
        ``at_shape``.
    """

    drafter: Any = DraftModel()
    draft_length: str = dataclasses.field(default="ema", metadata={"default": LENGTHS[0]})  # that of a user
    draft_confidence: float = 0.4
    draft_cost: float = 0.1
    verify_cost: float = 0.02
    length: int | None = None

    def __post_init__(self):
        check_known("draft_length", self.draft_length, LENGTHS[1:])
        if not isinstance(self.drafter, Member):
            raise RequestError(
                "draft_length is for methods that draft chains, such as draft_model, ngram and suffix; leave it out"
            )
        if self.draft_length == "confidence" and not isinstance(self.drafter, DraftModel):
            raise RequestError(
                "draft_length 'confidence' reads the certainty of a draft model; use method 'draft_model', or "
                "'heuristic' or 'ema'"
            )
        per_row("draft_confidence", self.draft_confidence, 1, float, most=1)
        if isinstance(self.drafter, DraftModel) and self.drafter.draft_ahead:
            raise RequestError("draft_ahead drafts chains of fixed length; leave out draft_ahead or draft_length")
        for name in ("draft_cost", "verify_cost"):
            per_row(name, getattr(self, name), 1, float)

    @property
    def needs(self):
        return self.drafter.needs

    @property
    def with_encoder(self) -> bool:
        return self.drafter.with_encoder

    @property
    def draft_options(self) -> dict[str, Any]:
        """The sampling options of the inner drafter's own, see ``Drawing``."""
        return self.drafter.draft_options

    @property
    def shapes(self) -> tuple[int, ...]:
        return self._lengths if self.length is None else ()

    def at_shape(self, shape: int) -> "Adaptive":
        return dataclasses.replace(self, length=shape)

    def init(self, target, draft, tokens, lengths, taps, **reading) -> AdaptiveState:
        inner = self.drafter.init(target, draft, tokens, lengths, taps, **reading)
        acceptance = RunningAcceptance.start(lengths.size)
        wanted = jnp.full(lengths.size, self.depth, jnp.int32)
        return AdaptiveState(inner, self._best(acceptance, 0) if self.draft_length == "ema" else wanted, acceptance)

    def choose(self, target, draft, state):
        most = jnp.max(jnp.where(state.done, 0, state.drafter.wanted))
        return state, None, jnp.searchsorted(jnp.array(self._lengths), most).astype(jnp.int32)

    def propose(self, target, draft, state, key):
        length = self.depth if self.length is None else self.length
        own = state.drafter
        if length == 0:
            has_q = self.drawn is Drawn.CHAIN
            q = jnp.zeros((state.root.size, 1, target.config.vocab_size)) if has_q else None
            return jax.vmap(chain)(state.root[:, None], q), own
        confidence = {"least": jnp.full(state.root.size, self.draft_confidence)}
        until = confidence if self.draft_length == "confidence" else {}
        before = state.replace(drafter=own.inner)
        before = before.replace(drafter=self.drafter.catch_up(draft, before))
        tree, inner = self._at(length).propose(target, draft, before, key, **until)
        cut = lambda leaf: leaf[:, : length + 1]
        q = None if tree.q is None else cut(tree.q)
        valid = cut(tree.valid) & (jnp.arange(length + 1) <= own.wanted[:, None])
        return jax.vmap(chain)(cut(tree.tokens), q, valid), own.replace(inner=inner)

    def commit(self, target, draft, state, tree, scored, verdict) -> AdaptiveState:
        own = state.drafter
        length = tree.tokens.shape[1] - 1
        inner = own.inner
        if length > 0:
            inner = self._at(length).commit(target, draft, state.replace(drafter=inner), tree, scored, verdict)
        drafted = jnp.cumprod(tree.valid[:, 1:], 1).sum(1)
        accepted = jnp.maximum(verdict.length - 1, 0)
        acceptance = own.acceptance.update(accepted, jnp.minimum(accepted + 1, drafted))
        wanted = own.wanted
        if self.draft_length == "heuristic":
            # A row of n-grams may propose nothing. Its length then stays.
            moved = jnp.where(drafted == 0, 0, jnp.where(accepted == drafted, 2, -1))
            wanted = jnp.clip(wanted + moved, 1, self.depth)
        if self.draft_length == "ema":
            wanted = self._best(acceptance, state.counters.calls + 1)  # the row's own rounds
        return AdaptiveState(inner, wanted, acceptance)

    def rest(self, target, draft, state, tree, scored, verdict) -> AdaptiveState:
        before = state.replace(drafter=state.drafter.inner)
        return state.drafter.replace(inner=self.drafter.rest(target, draft, before, tree, scored, verdict))

    @property
    def _lengths(self) -> tuple[int, ...]:
        """K and its half and quarter; for "ema" also 0, for "confidence" K alone."""
        K = self.depth
        least = {"confidence": K, "heuristic": 1, "ema": 0}[self.draft_length]
        return tuple(sorted(k for k in {0, K // 4, K // 2, K} if k >= least))

    def _at(self, length: int) -> Any:
        """The inner drafter, restricted to ``length`` tokens.

        A drafter without a model costs nothing. It drafts all its tokens, and the caller cuts the
        chain.
        """
        if not isinstance(self.needs, Models):
            return self.drafter
        return dataclasses.replace(self.drafter, num_speculative_tokens=length)

    def _best(self, acceptance: RunningAcceptance, round) -> jax.Array:
        """Int32 [B], the length with the highest gain; the shortest if several gain equally.

        ``round``: int32 [B] or a number, the rounds of each row so far.
        """
        lengths = jnp.array(self._lengths)
        cost = self.verify_cost + self.draft_cost * isinstance(self.needs, Models)
        time = 1 + lengths.astype(jnp.float32) * cost
        best = jnp.argmax(gain(acceptance.alpha[:, None], lengths, time, self.depth), 1)
        return lengths[jnp.where((best == 0) & (round % _PROBE == 0), 1, best)]
