"""The drafter, its draft length, or none: chosen in each round by expected tokens over time."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..cache import Rows
from ..conditional import run_if
from ..decode import round_keys
from ..drafter import Drafter, Models, Ran
from ..errors import RequestError
from ..heads.base import HeadConfig
from ..rules.verdict import q_of
from ..tree import chain
from ..verify import Drawn
from .ngram import Ngram
from .parts.arms import ARMS, Arm
from .parts.auto_state import AutoState, Draft, Parameters, Prepared
from .parts.choosing import Outlook, choose
from .parts.experience import Experience
from .parts.gain import tally
from .parts.kept import Kept
from .parts.probing import Probing, confidence
from .parts.rates import MATCHES, RATES, ModelRate, rate_of_match, rate_of_model, start_rates, tally_model, upper_bounds
from .parts.resting import RestingHead, RestingModel, resting
from .parts.times import Times, predict

_REST_MEMORY = 0.98
"""The factor by which a round without the model reduces the weight of its acceptance rate."""

_QUIET, _HELD = 16, 4
"""After so many rounds in which no draft came near to paying, a choice of plain decoding holds for so many rounds."""


@dataclasses.dataclass(frozen=True)
class Auto(Drafter):
    """Chooses the arm with the most expected tokens a second, for the whole batch in each round.

    An arm is a number of drafted tokens, and whether the draft model drafts, or in its place a head;
    or the most probable tree of the model, of a number of nodes. In an arm with the model, each row takes
    the model's tokens or those that it looked up, whichever has the higher expectation. With acceptance
    rate alpha, k drafts give (1 - alpha^(k + 1)) / (1 - alpha) tokens (Leviathan et al. 2023, equation
    1). In a tree alpha is the rate at which some child of a node is accepted. The time of each arm is
    measured or predicted, see ``Times``.

    The emitted tokens test every look-up, used or not. Only use tests the model. If it does not
    pay, the batch tries it again now and then, see ``Probing``.

    The output is exact. Where the model drafts, ``walk_if_seeded`` judges: a row with a seed walks
    along the target's samples. For such a row the model draws with the noise of these samples, so
    its tokens agree with them as often as one noise for both allows (Daliri, Musco and Suresh 2024,
    the Gumbel coupling). For the other rows choice and draws depend on the text so far and on
    earlier rounds, not on draws that are judged. In a round with a tree all rows walk.

    The choice costs as much as many small operations. While drafts are far from paying, it holds for
    four rounds, and between two choices nothing is looked up.

    Attributes:
      costs: a file that ``specjax tune --auto`` wrote; by default the one in the cache folder for
        this machine and these models, or a prediction.
      arms: the arms, plain decoding first.
      ends_together: whether the batch ends with its last row. The rows with most tokens to come then
        weigh most, because drafts that help the others save no time. An engine fills the slots of
        rows that end, so there all tokens weigh the same.
      shape: the shape of this round's drafts, see ``at_shape``.
      head: the configuration of the head that drafts in place of a draft model, see ``RestingHead``.
    """

    costs: str | None = None
    arms: tuple[Arm, ...] = ARMS
    ends_together: bool = True
    shape: tuple[int, int, int] | None = None
    head: HeadConfig | None = None
    needs = Models(0, 1)
    with_encoder = True

    @property
    def depth(self) -> int:
        return self._longest if self.shape is None else self.shape[0]

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

    def at_shape(self, shape: tuple[int, int, int]) -> "Auto":
        return dataclasses.replace(self, shape=shape)

    def without_model(self) -> "Auto":
        """The same method for a target without a draft model."""
        return dataclasses.replace(self, arms=tuple(arm for arm in self.arms if not arm.model))

    def predict(self, draft_cost: float) -> Times:
        """Predicted times of the arms, see ``times.predict``."""
        return predict(self.arms, draft_cost, jax.default_backend())

    def parameters(self, draft, vocab_size: int) -> Parameters:
        models = tuple(draft or ())
        if len(models) < self._has_model:
            raise RequestError("method auto has arms with a draft model and none is given; call without_model()")
        return Parameters(models, self.predict(0.1), Experience.start())

    def describe_arms(self, parameters: Parameters, batch, context, sampled):
        seconds = parameters.times.at(batch, context, sampled, np)
        return [(str(arm), float(time)) for arm, time in zip(self.arms, seconds / seconds[0])]

    def evidence(self, own: AutoState) -> jax.Array:
        return own.tests

    def learn(self, parameters: Parameters, ran: Ran) -> Parameters:
        if not ran.rounds.sum() or ran.seconds <= 0:
            return parameters
        times = parameters.times.correct(ran.rounds, ran.batch, ran.context, ran.seconds, ran.sampled)
        return parameters.replace(times=times, experience=parameters.experience.after(ran.evidence.sum(0)))

    def reads(self, target, draft, tokens, lengths, taps):
        return self._model.reads(target, draft.models[0], tokens, lengths, taps) if self._has_model else None

    def init(self, target, draft, tokens, lengths, taps, **reading) -> AutoState:
        read = lambda model: self._model.init(target, model, tokens, lengths, taps, **reading)
        B, models = lengths.size, tuple(map(read, draft.models))
        kept = Kept.start(B, len(self.arms)) if any(arm.nodes for arm in self.arms) else None
        rates, tests = start_rates(B, draft.experience.rate), jnp.zeros((B, 2, 2), jnp.int32)
        return AutoState(models, rates, tests, Probing.start(B), kept, jnp.zeros_like(lengths))

    def begin(self, target, draft, state):
        """Looks tokens up, and chooses the arm, unless the last choice holds."""
        state = self._make_room(target, draft, state)

        def prepare(_):
            looked_up, matched = self._look_up(state)
            outlook = self._outlook(draft, state, matched)
            return self._prepare(looked_up, matched, *self._choose(draft, state, outlook), outlook)

        shape = jax.eval_shape(prepare, None)
        plain = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
        prepared = run_if(~self._holds(state), prepare, plain)
        return state, prepared, prepared.arm

    def holds(self, state):
        return self._holds(state) if self.shape == self.arms[0].shape else None

    def _holds(self, state) -> jax.Array:
        """Bool, whether the next round is plain without a choice. A row that has just begun does not ask for one."""
        quiet = jnp.where(state.done, 0, state.drafter.quiet).max()
        return (quiet >= _QUIET) & (quiet % _HELD != 0)

    def _outlook(self, draft, state, matched) -> Outlook:
        """What the rows may expect of the arms after look-ups with matches of these lengths, int32 [B]."""
        found = rate_of_match(state.drafter.acceptance, matched)
        drawn, others = upper_bounds(self._rate(draft, state), state.done)
        longest = jnp.max(jnp.where(state.done, 0, state.length))
        seconds = draft.times.at(state.done.size, longest, jnp.any(state.request.sampling.temperature > 0))
        of_running = lambda tokens: jnp.where(state.done, 0, tokens).astype(jnp.float32)
        left, read = of_running(state.request.limit - state.length), [one.cache.length for one in state.drafter.models]
        unread = of_running(state.cache.length - read[0]).max() if read else jnp.float32(0)
        return Outlook(self.arms, self.ends_together, found, drawn, others, left, unread, seconds)

    def _rate(self, draft, state) -> ModelRate:
        """The model's acceptance rates."""
        sampled = state.request.sampling.temperature > 0
        return rate_of_model(state.drafter.acceptance, sampled, draft.experience.rate)

    def _choose(self, draft, state, outlook) -> tuple[jax.Array, jax.Array]:
        """The number of this round's arm, and whether drafts nearly pay."""
        return choose(outlook, self._rate(draft, state), state.drafter.kept, state.drafter.probing)

    def _prepare(self, looked_up, matched, chosen, near, outlook) -> Prepared:
        """The look-ups, and the rows for which the model drafts, in a round of arm ``chosen``."""
        of_arms = lambda name: jnp.array([getattr(arm, name) for arm in self.arms])[chosen]
        count, ran = of_arms("length"), of_arms("model")
        expected, drew = outlook.expected()[:, chosen], ran & outlook.draws()[:, chosen]
        return Prepared(chosen, near, expected, looked_up, matched, ran, drew, count)

    def _draft(self, target, draft, state) -> AutoState:
        """The state with the model's tokens, if the arm wants them."""
        own = state.drafter
        given = {} if self._is_tree else {"most": own.prepared.count}  # no draw chooses a tree's tokens
        keys = state.request.keys if self._is_tree else self._draft_keys(state)

        def run_model(carry):
            before = state.replace(drafter=carry[0])
            tree, model = self._model.propose(target, draft.models[0], before, keys, **given)
            return model.replace(rows=Rows(()), row_of=None), Draft(tree, model.rows, model.row_of)

        shape = jax.eval_shape(run_model, (own.models[0], None))[1]
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
        model, drafted = run_if(own.prepared.ran, run_model, (own.models[0], nothing))
        return own.replace(models=(model,), prepared=own.prepared.replace(draft=drafted))

    def propose(self, target, draft, state, key):
        length, own = self.depth, state.drafter
        if own.prepared is None:  # a round of one shape alone
            arm = max(i for i, choice in enumerate(self.choices) if choice == self.shape)
            own = self._make_room(target, draft, state).drafter
            looked_up, matched = self._look_up(state)
            outlook = self._outlook(draft, state, matched)
            own = own.replace(prepared=self._prepare(looked_up, matched, jnp.int32(arm), jnp.bool(True), outlook))
        if self._draws_here:
            own = self._draft(target, draft, state.replace(drafter=own))
        found: Any = own.prepared
        first = lambda value, rest: jnp.concatenate([value[:, None], rest], 1)
        tokens = first(state.root, found.looked_up[:, :length])
        matched = jnp.broadcast_to(found.matched[:, None] > 0, (tokens.shape[0], length))
        valid, q = first(jnp.ones_like(state.done), matched), None
        pick = lambda a, b: jnp.where(found.drew.reshape(-1, *(1,) * (a.ndim - 1)), a[:, : b.shape[1]], b)
        if self._is_tree:
            drafted, looked_up = found.draft.tree, jax.vmap(chain)(tokens, None, valid)
            room = (0, 0), (0, drafted.tokens.shape[1] - tokens.shape[1])
            return jax.tree.map(pick, drafted, jax.tree.map(lambda leaf: jnp.pad(leaf, room), looked_up)), own
        if self._draws_here:
            drafted = found.draft.tree
            # A token that was looked up counts as drawn from a one-hot q, see ``Switch``.
            one_hot = jax.nn.one_hot(jnp.pad(tokens[:, 1:], ((0, 0), (0, 1))), target.config.vocab_size)
            q = pick(q_of(drafted), one_hot.at[:, -1].set(0))
            tokens, valid = pick(drafted.tokens, tokens), pick(drafted.valid, valid)
        return jax.vmap(chain)(tokens, q, valid), own

    def commit(self, target, draft, state, tree, scored, verdict) -> AutoState:
        own, found, length = state.drafter, state.drafter.prepared, self.depth
        models = self._commit_model(target, draft, state, tree, scored, verdict)
        probing, tests = own.probing, own.tests
        looked_up = found.looked_up[:, : length + 1]  # the last one is tested by the bonus token
        accepted, tested = tally(looked_up, jnp.where(found.matched > 0, looked_up.shape[1], 0), tree, verdict)
        source = jnp.arange(1, RATES + 1) == found.matched[:, None]
        accepted, tested = (jnp.where(source, x[:, None], 0) for x in (accepted, tested))
        if self._draws_here:
            sampled = state.request.sampling.temperature > 0
            of_model = tally_model(tree, verdict, found.drew, sampled, found.count)
            accepted, tested = (x.at[:, MATCHES:].set(own) for x, own in zip((accepted, tested), of_model))
            tests += jnp.where(state.done[:, None, None], 0, jnp.stack(of_model, 2)[:, :2])
            probing = probing.tried(found.drew, jnp.maximum(verdict.length - 1, 0) == found.count)
        acceptance = own.acceptance.update(accepted, tested)
        kept = own.kept and own.kept.after(found.arm, verdict.length, found.expected)
        if self._has_model:
            idle = jnp.stack([jnp.bool(False)] * MATCHES + [~found.ran] * 2 + [jnp.bool(not self._is_tree)])
            acceptance = acceptance.fade(idle, _REST_MEMORY)
            probing = probing if self._draws_here else probing.tried(jnp.zeros_like(found.drew), False)
            probing = probing.hear(confidence(scored.logits, verdict))
        return AutoState(models, acceptance, tests, probing, kept, jnp.where(found.near, 0, own.quiet + 1))

    def _make_room(self, target, draft, state):
        """The state before a round, see ``parts.resting``."""
        room = lambda one, own: self._model.make_room(target, one, state.replace(drafter=own))
        models = tuple(map(room, draft.models, state.drafter.models))
        return state.replace(drafter=state.drafter.replace(models=models))

    def _commit_model(self, target, draft, state, tree, scored, verdict) -> tuple:
        """The state of the model, if there is one, for the next round."""
        found, model = state.drafter.prepared, self._model

        def commit(own):
            before = state.replace(drafter=own.replace(rows=found.draft.rows, row_of=found.draft.row_of))
            return model.commit(target, draft.models[0], before, tree, scored, verdict, found.drew)

        def rest(own):
            return model.rest(target, draft.models[0], state.replace(drafter=own), scored, verdict)

        def after(own):
            own = run_if(found.ran, commit, own) if self._draws_here else own
            return run_if(~found.ran, rest, own)

        return tuple(map(after, state.drafter.models))

    def _look_up(self, state) -> tuple[jax.Array, jax.Array]:
        """The longest match's next tokens int32 [B, D + 1], the last for the bonus; its length int32 [B]."""
        return jax.vmap(Ngram(self.depth + 1, MATCHES, 1).look_up)(state.tokens, state.cache.length)

    def _draft_keys(self, state) -> jax.Array:
        """Keys [B, L] of the draws of the model's chain: for a row with a seed those of the target's samples."""
        length = self._model.grower.depth
        propose, accept = round_keys(state, length)
        own = jax.vmap(lambda key: jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(length)))(propose)
        return own if state.request.seeded is None else jnp.where(state.request.seeded[:, None], accept, own)

    @property
    def _has_model(self) -> bool:
        return any(arm.model for arm in self.arms)

    @property
    def _longest(self) -> int:
        """The longest path of any arm, in edges."""
        return max(arm.length for arm in self.arms)

    @property
    def _draws_here(self) -> bool:
        """Whether the model may draft in a round of this shape."""
        return any(arm.model and arm.shape == self.shape for arm in self.arms)

    @property
    def _is_tree(self) -> bool:
        return self.shape is not None and self.shape[1] > 0

    @property
    def _model(self) -> RestingModel | RestingHead:
        """The draft model, or the head, with the shape of its drafts in this round."""
        chain = max((arm.length for arm in self.arms if arm.model and not arm.nodes), default=1)
        keeps_shape = self._is_tree or self.head is not None and self._draws_here
        shape = self.shape if self.shape and keeps_shape else (chain, 0, 0)
        return resting(*shape, self.head, longest=max(self._longest, _HELD - 1))
