"""Method auto: the drafter, its draft length, or none, chosen by expected tokens over time."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ...core.conditional import run_if
from ...core.tree import chain
from ...errors import RequestError
from ...heads.base import HeadConfig
from ...loop.chooser import Chooser, Run, at_largest_shape
from ...loop.drafter import Models
from ...rules.acceptance import Drawn
from ..ngram import Ngram
from .arms import ARMS, Arm
from .choice import Outlook
from .constants import CONSTANTS
from .proposal import run_draft, select
from .rates import MATCHES, estimate, rate_of_match, start_rates, update_rates, upper_bounds
from .resting import RestingModel, commit_or_rest, resting
from .state import AutoState, Parameters, Prepared
from .times import Times, predict


@dataclasses.dataclass(frozen=True)
class Auto(Chooser):
    """Chooses the arm with the most expected tokens a second, for the whole batch in each round.

    An arm is a number of drafted tokens, and whether the draft model drafts, or in its place a
    head; or the most probable tree of the model. In an arm with the model, each row takes the
    model's tokens or those that it looked up, whichever has the higher expectation. The expected
    tokens follow from acceptance rates, see ``rates``, and times are measured or predicted, see
    ``Times``. While drafts are far from paying, plain decoding holds for four rounds without a
    choice and without a look-up.

    The output is exact. Where the model drafts, ``walk_if_seeded`` judges: a row with a seed walks
    along the target's samples. For such a row the model draws with the noise of these samples, so
    its tokens agree with them as often as one noise for both allows (Daliri, Musco and Suresh 2024,
    the Gumbel coupling). For the other rows choice and draws depend on the text so far and on
    earlier rounds, not on draws that are judged. In a round with a tree all rows walk.

    Attributes:
      costs: a file that ``specjax tune --auto`` wrote; by default the one in the cache folder for
        this machine and these models, or a prediction.
      arms: the arms, plain decoding first.
      ends_together: whether the batch ends with its last row. Drafts that help the other rows then
        save no time. An engine fills the slots of rows that end, so there all tokens weigh the
        same.
      shape: the shape of this round's drafts, see ``at_shape``; None for a choice in each round.
      head: the configuration of the head that drafts in place of a draft model, see
        ``RestingHead``.
    """

    costs: str | None = None
    arms: tuple[Arm, ...] = ARMS
    ends_together: bool = True
    shape: tuple[int, int, int] | None = None
    head: HeadConfig | None = None
    needs = Models(0, 1, apart=False, heads=True)
    with_encoder = True
    has_arms = True

    @property
    def depth(self) -> int:
        return max(arm.length for arm in self.arms) if self.shape is None else self.shape[0]

    @property
    def drawn(self) -> Drawn:
        return Drawn.CHAIN_OR_CHOSEN if self._has_model else Drawn.CHOSEN

    @property
    def taps(self) -> tuple[int, ...]:
        return self.head.taps if self.head else ()

    @property
    def shapes(self) -> tuple[tuple[int, int, int], ...]:
        return tuple(sorted(set(self.choices))) if self.shape is None else ()

    @property
    def choices(self) -> tuple[tuple[int, int, int], ...]:
        """The shape of each arm."""
        return tuple(arm.shape for arm in self.arms)

    @property
    def repeated_shape(self) -> tuple[int, int, int]:
        """Plain decoding."""
        return self.arms[0].shape

    def at_shape(self, shape: tuple[int, int, int]) -> "Auto":
        return dataclasses.replace(self, shape=shape)

    def for_slots(self) -> "Auto":
        return dataclasses.replace(self, ends_together=False)

    def without_model(self) -> "Auto":
        """The same method for a target without a draft model."""
        return dataclasses.replace(self, arms=tuple(arm for arm in self.arms if not arm.model))

    def predict(self, draft_cost: float) -> Times:
        """The arms' predicted times, see ``times.predict``."""
        return predict(self.arms, draft_cost, jax.default_backend())

    def parameters(self, draft, vocab_size: int) -> Parameters:
        models = tuple(draft or ())
        if len(models) < self._has_model:
            raise RequestError("method auto has arms with a draft model and none is given; call without_model()")
        return Parameters(models, self.predict(0.1), jnp.full(2, CONSTANTS.first_rate))

    def describe_arms(self, parameters: Parameters, batch, context, sampled):
        seconds = parameters.times.at(batch, context, sampled, np)
        return [(str(arm), float(time)) for arm, time in zip(self.arms, seconds / seconds[0])]

    def learn(self, parameters: Parameters, run: Run) -> Parameters:
        if not run.rounds.sum() or run.seconds <= 0:
            return parameters
        times = parameters.times.correct(run.rounds, run.batch, run.context, run.seconds, run.sampled)
        return parameters.replace(times=times)

    def with_times_of(self, parameters: Parameters, earlier: Parameters) -> Parameters:
        return parameters.replace(times=earlier.times, rates=earlier.rates)

    def reads(self, target, draft, tokens, lengths, taps):
        return self._model.reads(target, draft.models[0], tokens, lengths, taps) if self._has_model else None

    def init(self, target, draft, tokens, lengths, taps, **reading) -> AutoState:
        read = lambda model: self._model.init(target, model, tokens, lengths, taps, **reading)
        return AutoState(tuple(map(read, draft.models)), start_rates(lengths.size), jnp.zeros_like(lengths))

    def choose(self, target, draft, state):
        """Looks tokens up, and chooses the arm, unless the last choice holds."""
        state = self._make_room(target, draft, state)

        def prepare(_):
            looked_up, matched = self._look_up(state)
            outlook = self._outlook(draft, state, matched)
            return self._prepare(looked_up, matched, *self._choose_arm(state, outlook), outlook)

        shape = jax.eval_shape(prepare, None)
        plain = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
        prepared = run_if(~self.repeats(state), prepare, plain)
        return state, prepared, prepared.arm

    def with_prepared(self, state, prepared: Prepared):
        return state.replace(drafter=state.drafter.replace(prepared=prepared))

    def repeats(self, state) -> jax.Array:
        """Bool, whether the next round is plain without a choice."""
        rounds = jnp.where(state.done, 0, state.drafter.since_near).max()
        return (rounds >= CONSTANTS.repeated) & (rounds % CONSTANTS.repeated != 0)

    def _outlook(self, draft, state, matched) -> Outlook:
        """The expectations of rows whose matches are so long, ``matched`` int32 [B]."""
        temperature = state.request.sampling.temperature
        estimates = estimate(state.drafter.acceptance, jnp.interp(temperature, jnp.arange(2.0), draft.rates))
        longest = jnp.max(jnp.where(state.done, 0, state.length))
        seconds = draft.times.at(state.done.size, longest, jnp.any(temperature > 0))
        of_running = lambda tokens: jnp.where(state.done, 0, tokens).astype(jnp.float32)
        left = of_running(state.request.limit - state.length)
        read = [one.cache.length for one in state.drafter.models]
        unread = of_running(state.cache.length - read[0]).max() if read else jnp.float32(0)
        rates = rate_of_match(estimates[0], matched), *upper_bounds(*estimates, state.done)
        return Outlook(self.arms, self.ends_together, *rates, left, unread, seconds)

    def _choose_arm(self, state, outlook) -> tuple[jax.Array, jax.Array]:
        """The number of this round's arm, and whether drafts nearly pay."""
        return outlook.choose()

    def _prepare(self, looked_up, matched, chosen, near, outlook) -> Prepared:
        """The look-ups, and the rows for which the model drafts, in a round of arm ``chosen``."""
        of_arms = lambda name: jnp.array([getattr(arm, name) for arm in self.arms])[chosen]
        ran = of_arms("model")
        from_model = ran & outlook.draws()[:, chosen]
        return Prepared(chosen, near, looked_up, matched, ran, from_model, of_arms("length"))

    def propose(self, target, draft, state, key):
        if self.shape is None:
            return at_largest_shape(self).propose(target, draft, state, key)
        own = state.drafter
        if own.prepared is None:  # a round of one shape alone
            own = self._prepare_alone(target, draft, state)
        if self._draws_here:
            own = run_draft(self._model, target, draft, state.replace(drafter=own), is_tree=self._is_tree)
        assert own.prepared is not None
        first = lambda value, rest: jnp.concatenate([value[:, None], rest], 1)
        tokens = first(state.root, own.prepared.looked_up[:, : self.depth])
        matched = jnp.broadcast_to(own.prepared.matched[:, None] > 0, (tokens.shape[0], self.depth))
        valid = first(jnp.ones_like(state.done), matched)
        if not self._draws_here:
            return jax.vmap(chain)(tokens, None, valid), own
        return select(own.prepared, tokens, valid, target.config.vocab_size, is_tree=self._is_tree), own

    def _prepare_alone(self, target, draft, state) -> AutoState:
        """The state before a round that was not chosen. It is one of the shape's last arm."""
        arm = max(i for i, choice in enumerate(self.choices) if choice == self.shape)
        own = self._make_room(target, draft, state).drafter
        looked_up, matched = self._look_up(state)
        outlook = self._outlook(draft, state, matched)
        return own.replace(prepared=self._prepare(looked_up, matched, jnp.int32(arm), jnp.bool(True), outlook))

    def commit(self, target, draft, state, tree, scored, verdict) -> AutoState:
        if self.shape is None:
            return at_largest_shape(self).commit(target, draft, state, tree, scored, verdict)
        models = commit_or_rest(self._model, target, draft, state, tree, scored, verdict, draws=self._draws_here)
        own = state.drafter
        acceptance = own.acceptance
        acceptance = update_rates(acceptance, own.prepared, tree, verdict, depth=self.depth, is_tree=self._is_tree)
        return AutoState(models, acceptance, jnp.where(own.prepared.near, 0, own.since_near + 1))

    def rest(self, target, draft, state, tree, scored, verdict) -> AutoState:
        state = self._make_room(target, draft, state)
        rest = lambda one, own: self._model.rest(target, one, state.replace(drafter=own), scored, verdict)
        return state.drafter.replace(models=tuple(map(rest, draft.models, state.drafter.models)))

    def _make_room(self, target, draft, state):
        """The state before a round, see ``resting``."""
        room = lambda one, own: self._model.make_room(target, one, state.replace(drafter=own))
        models = tuple(map(room, draft.models, state.drafter.models))
        return state.replace(drafter=state.drafter.replace(models=models))

    def _look_up(self, state) -> tuple[jax.Array, jax.Array]:
        """The tokens after the longest match, int32 [B, D + 1], and its length, int32 [B]."""
        return jax.vmap(Ngram(self.depth + 1, MATCHES, 1).look_up)(state.tokens, state.cache.length)

    @property
    def _has_model(self) -> bool:
        return any(arm.model for arm in self.arms)

    @property
    def _draws_here(self) -> bool:
        """Whether the model may draft in a round of this shape."""
        return any(arm.model and arm.shape == self.shape for arm in self.arms)

    @property
    def _is_tree(self) -> bool:
        return self.shape is not None and self.shape[1] > 0

    @property
    def _model(self) -> RestingModel:
        """The draft model, or the head, with the shape of its drafts in this round."""
        longest = max(CONSTANTS.repeated - 1, *(arm.length for arm in self.arms))
        chain = max((arm.length for arm in self.arms if arm.model and not arm.nodes), default=1)
        keeps_shape = self._is_tree or self.head is not None and self._draws_here
        shape = self.shape if self.shape and keeps_shape else (chain, 0, 0)
        return resting(*shape, self.head, longest=longest)
