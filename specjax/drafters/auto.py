"""The drafter, its draft length, or none: chosen in each round by expected tokens over time."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..cache import Rows
from ..conditional import run_if
from ..decode import round_keys
from ..drafter import Drafter, Models
from ..errors import RequestError
from ..heads.base import HeadConfig
from ..rules.verdict import q_of
from ..tree import chain
from ..verify import Drawn
from .ngram import Ngram
from .parts.arms import ARMS, Arm
from .parts.auto_state import AutoState, Draft, Parameters, Prepared
from .parts.choosing import Outlook, choose
from .parts.gain import tally
from .parts.kept import Kept
from .parts.probing import Probing, confidence
from .parts.rates import MATCHES, rates_of, start_rates
from .parts.resting import RestingHead, RestingModel
from .parts.times import Times, predict

_REST_MEMORY = 0.98
"""The factor by which a round without the model reduces the weight of its acceptance rate."""

_QUIET, _HELD = 16, 4
"""After so many rounds in which no draft came near to paying, a choice of plain decoding holds for so many rounds."""


@dataclasses.dataclass(frozen=True)
class Auto(Drafter):
    """Chooses the arm with the most expected tokens a second, for the whole batch in each round.

    An arm is a number of drafted tokens, and whether the draft model drafts, or in its place a head.
    In an arm with the model, each row takes the model's tokens or those that it looked up, whichever
    has the higher expectation. With acceptance rate alpha, k drafts give
    (1 - alpha^(k + 1)) / (1 - alpha) tokens (Leviathan et al. 2023, equation 1). The time of each
    arm is measured or predicted, see ``Times``.

    The emitted tokens test every look-up, used or not. Only use tests the model. If it does not
    pay, the batch tries it again now and then, see ``Probing``.

    The output is exact. Where the model drafts, ``walk_if_seeded`` judges: a row with a seed walks
    along the target's samples. For such a row the model draws with the noise of these samples, so
    its tokens agree with them as often as one noise for both allows (Daliri, Musco and Suresh 2024,
    the Gumbel coupling). For the other rows choice and draws depend on the text so far and on
    earlier rounds, not on draws that are judged.

    The choice costs as much as many small operations. While drafts are far from paying, it holds for
    four rounds, and between two choices nothing is looked up.

    Attributes:
      costs: a file that ``specjax tune --auto`` wrote; by default the one in the cache folder for
        this machine and these models, or a prediction.
      arms: the arms, plain decoding first.
      ends_together: whether the batch ends with its last row. The rows with most tokens to come then
        weigh most, because drafts that help the others save no time. An engine fills the slots of
        rows that end, so there all tokens weigh the same.
      length: the length of this round, see ``at_length``.
      head: the configuration of the head that drafts in place of a draft model, see ``RestingHead``.
    """

    costs: str | None = None
    arms: tuple[Arm, ...] = ARMS
    ends_together: bool = True
    length: int | None = None
    head: HeadConfig | None = None
    needs = Models(0, 1)
    with_encoder = True

    @property
    def depth(self) -> int:
        return max(self.choices) if self.length is None else self.length

    @property
    def drawn(self) -> Drawn:
        return Drawn.CHAIN_OR_CHOSEN if self._has_model else Drawn.CHOSEN

    @property
    def taps(self) -> tuple[int, ...]:
        return self.head.taps if self.head else ()

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.choices))) if self.length is None else ()

    @property
    def choices(self) -> tuple[int, ...]:
        """The length of each arm."""
        return tuple(arm.length for arm in self.arms)

    def at_length(self, length: int) -> "Auto":
        return dataclasses.replace(self, length=length)

    def without_model(self) -> "Auto":
        """The same method for a target without a draft model."""
        return dataclasses.replace(self, arms=tuple(arm for arm in self.arms if not arm.model))

    def predict(self, draft_cost: float) -> Times:
        """Predicted times of the arms, see ``times.predict``."""
        return predict([(arm.length, arm.model) for arm in self.arms], draft_cost, jax.default_backend())

    def parameters(self, draft, vocab_size: int) -> Parameters:
        models = tuple(draft or ())
        if len(models) < self._has_model:
            raise RequestError("method auto has arms with a draft model and none is given; call without_model()")
        return Parameters(models, self.predict(0.1))

    def describe_arms(self, parameters: Parameters, batch, context, sampled):
        seconds = parameters.times.at(batch, context, sampled, np)
        return [(str(arm), float(time)) for arm, time in zip(self.arms, seconds / seconds[0])]

    def learn_times(self, parameters: Parameters, rounds, batch, context, seconds, sampled) -> Parameters:
        if not rounds.sum() or seconds <= 0:
            return parameters
        return parameters.replace(times=parameters.times.correct(rounds, batch, context, seconds, sampled))

    def reads(self, target, draft, tokens, lengths, taps):
        return self._model.reads(target, draft.models[0], tokens, lengths, taps) if self._has_model else None

    def init(self, target, draft, tokens, lengths, taps, **reading) -> AutoState:
        read = lambda model: self._model.init(target, model, tokens, lengths, taps, **reading)
        B, models = lengths.size, tuple(map(read, draft.models))
        rates, probing, kept = start_rates(B), Probing.start(B), Kept.start(B, len(self.arms))
        return AutoState(models, rates, probing, kept, jnp.zeros_like(lengths))

    def begin(self, target, draft, state):
        """Looks tokens up, and chooses the arm, unless the last choice holds."""
        state = self._make_room(target, draft, state)

        def prepare(_):
            looked_up, matched = self._look_up(state)
            outlook = self._outlook(draft, state, matched)
            chosen, is_near = self._choose(state, outlook)
            return self._prepare(looked_up, matched, chosen, outlook), is_near

        shape = jax.eval_shape(prepare, None)
        plain = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
        prepared, is_near = run_if(~self._holds(state), prepare, plain)
        quiet = jnp.where(is_near, 0, state.drafter.quiet + 1)
        return state.replace(drafter=state.drafter.replace(quiet=quiet)), prepared, prepared.arm

    def _holds(self, state) -> jax.Array:
        """Bool, whether this round is plain without a choice. A row that has just begun does not ask for one."""
        quiet = jnp.where(state.done, 0, state.drafter.quiet).max()
        return (quiet >= _QUIET) & (quiet % _HELD != 0)

    def _outlook(self, draft, state, matched) -> Outlook:
        """What the rows may expect of the arms after look-ups with matches of these lengths, int32 [B]."""
        found, drawn = rates_of(state.drafter.acceptance, matched, state.done)
        longest = jnp.max(jnp.where(state.done, 0, state.length))
        seconds = draft.times.at(state.done.size, longest, jnp.any(state.request.sampling.temperature > 0))
        of_running = lambda tokens: jnp.where(state.done, 0, tokens).astype(jnp.float32)
        left, read = of_running(state.request.limit - state.length), [one.cache.length for one in state.drafter.models]
        unread = of_running(state.cache.length - read[0]).max() if read else jnp.float32(0)
        return Outlook(self.arms, self.ends_together, found, drawn, left, unread, seconds)

    def _choose(self, state, outlook) -> tuple[jax.Array, jax.Array]:
        """The number of this round's arm, and whether drafts nearly pay."""
        return choose(outlook, state.drafter.acceptance, state.drafter.kept, state.drafter.probing)

    def _prepare(self, looked_up, matched, chosen, outlook) -> Prepared:
        """The look-ups, and the rows for which the model drafts, in a round of arm ``chosen``."""
        count, ran = jnp.array(self.choices)[chosen], self._draws[chosen]
        expected, drew = outlook.expected()[:, chosen], ran & outlook.draws(count)
        return Prepared(chosen, expected, looked_up, matched, ran, drew, count)

    def _draft(self, target, draft, state) -> AutoState:
        """The state with the model's tokens, if the arm wants them."""
        own = state.drafter

        def run_model(carry):
            before, keys = state.replace(drafter=carry[0]), self._draft_keys(state)
            tree, model = self._model.propose(target, draft.models[0], before, keys, most=own.prepared.count)
            return model.replace(rows=Rows(())), Draft(tree.tokens, tree.valid, q_of(tree), model.rows)

        shape = jax.eval_shape(run_model, (own.models[0], None))[1]
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
        model, drafted = run_if(own.prepared.ran, run_model, (own.models[0], nothing))
        return own.replace(models=(model,), prepared=own.prepared.replace(draft=drafted))

    def propose(self, target, draft, state, key):
        length, own = self.depth, state.drafter
        if own.prepared is None:  # a round of one length alone
            arm = max(i for i, arm in enumerate(self.arms) if arm.length == length)
            own = self._make_room(target, draft, state).drafter
            looked_up, matched = self._look_up(state)
            outlook = self._outlook(draft, state, matched)
            own = own.replace(prepared=self._prepare(looked_up, matched, jnp.int32(arm), outlook))
        if self._draws_at(length):
            own = self._draft(target, draft, state.replace(drafter=own))
        found: Any = own.prepared
        first = lambda value, rest: jnp.concatenate([value[:, None], rest], 1)
        tokens = first(state.root, found.looked_up[:, :length])
        matched = jnp.broadcast_to(found.matched[:, None] > 0, (tokens.shape[0], length))
        valid, q = first(jnp.ones_like(state.done), matched), None
        if self._draws_at(length):
            cut = lambda leaf: leaf[:, : length + 1]
            pick = lambda a, b: jnp.where(found.drew.reshape(-1, *(1,) * (a.ndim - 1)), cut(a), b)
            # A token that was looked up counts as drawn from a one-hot q, see ``Switch``.
            one_hot = jax.nn.one_hot(jnp.pad(tokens[:, 1:], ((0, 0), (0, 1))), target.config.vocab_size)
            q = pick(found.draft.q, one_hot.at[:, -1].set(0))
            tokens, valid = pick(found.draft.tokens, tokens), pick(found.draft.valid, valid)
        return jax.vmap(chain)(tokens, q, valid), own

    def commit(self, target, draft, state, tree, scored, verdict) -> AutoState:
        own, found, length = state.drafter, state.drafter.prepared, self.depth
        models, probing = self._commit_model(target, draft, state, tree, scored, verdict), own.probing
        seen = tree.replace(tokens=jnp.pad(tree.tokens, ((0, 0), (0, 1))))  # with the bonus token's place
        looked_up = found.looked_up[:, : length + 1]
        accepted, tested = tally(looked_up, jnp.where(found.matched > 0, looked_up.shape[1], 0), seen, verdict)
        source = jnp.arange(1, MATCHES + 2) == found.matched[:, None]
        accepted, tested = (jnp.where(source, x[:, None], 0) for x in (accepted, tested))
        if self._draws_at(length):
            kept = jnp.maximum(verdict.length - 1, 0)
            accepted = accepted.at[:, -1].set(jnp.where(found.drew, kept, 0))
            tested = tested.at[:, -1].set(jnp.where(found.drew, jnp.minimum(kept + 1, found.count), 0))
            probing = probing.tried(found.drew, kept == found.count)
        acceptance = own.acceptance.update(accepted, tested)
        kept = own.kept.after(found.arm, verdict.length, found.expected)
        if self._has_model:
            idle = ~found.ran & (jnp.arange(MATCHES + 1) == MATCHES)
            acceptance = acceptance.fade(idle, _REST_MEMORY)
            probing = probing if self._draws_at(length) else probing.tried(jnp.zeros_like(found.drew), False)
            probing = probing.hear(confidence(scored.logits, verdict))
        return AutoState(models, acceptance, probing, kept, own.quiet)

    def _make_room(self, target, draft, state):
        """The state before a round, see ``parts.resting``."""
        room = lambda one, own: self._model.make_room(target, one, state.replace(drafter=own))
        models = tuple(map(room, draft.models, state.drafter.models))
        return state.replace(drafter=state.drafter.replace(models=models))

    def _commit_model(self, target, draft, state, tree, scored, verdict) -> tuple:
        """The state of the model, if there is one, for the next round."""
        found, model = state.drafter.prepared, self._model

        def commit(own):
            before = state.replace(drafter=own.replace(rows=found.draft.rows))
            return model.commit(target, draft.models[0], before, tree, scored, verdict, found.drew)

        def rest(own):
            return model.rest(target, draft.models[0], state.replace(drafter=own), scored, verdict)

        def after(own):
            own = run_if(found.ran, commit, own) if self._draws_at(self.depth) else own
            return run_if(~found.ran, rest, own)

        return tuple(map(after, state.drafter.models))

    def _look_up(self, state) -> tuple[jax.Array, jax.Array]:
        """The longest match's next tokens int32 [B, D + 1], the last for the bonus; its length int32 [B]."""
        return jax.vmap(Ngram(self.depth + 1, MATCHES, 1).look_up)(state.tokens, state.cache.length)

    def _draft_keys(self, state) -> jax.Array:
        """Keys [B, L] of the model's draws: for a row with a seed those of the target's samples."""
        length = self._model.depth
        propose, accept = round_keys(state, length)
        own = jax.vmap(lambda key: jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(length)))(propose)
        return own if state.request.seeded is None else jnp.where(state.request.seeded[:, None], accept, own)

    @property
    def _has_model(self) -> bool:
        return any(arm.model for arm in self.arms)

    def _draws_at(self, length: int) -> bool:
        """Whether the model may draft in a round of ``length``."""
        return Arm(length, True) in self.arms

    @property
    def _draws(self) -> jax.Array:
        """Bool [A], the arms in which the model drafts."""
        return jnp.array([arm.model for arm in self.arms])

    @property
    def _model(self) -> RestingModel | RestingHead:
        longest = max((arm.length for arm in self.arms if arm.model), default=1)
        if self.head is None:
            return RestingModel(longest)
        own = longest if self.length is None or not self._draws_at(self.length) else self.length
        return RestingHead(own, longest=max(self.choices))
