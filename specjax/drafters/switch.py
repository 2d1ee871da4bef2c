"""Several chain drafters, one at a time in each row, such as n-grams and draft models."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from ..core.checks import per_row
from ..core.conditional import run_if
from ..core.tree import chain
from ..errors import RequestError
from ..loop.drafter import Drafter, Models, Nothing
from ..rules.acceptance import Drawn
from .draft_model import DraftModel
from .ngram import Ngram
from .parts.member import Member
from .parts.running_acceptance import RunningAcceptance, gain, tally


class SwitchState(struct.PyTreeNode):
    """The state between rounds. The last four fields are set from ``propose`` to ``commit`` only.

    Attributes:
      members: the states of the M drafters.
      acceptance: the running acceptance rates of their drafts, [B, M].
      drafts: int32 [B, M, D], their proposals; void from ``count`` on.
      count: int32 [B, M], the number of tokens that each drafter proposes.
      chosen: int32 [B], the drafter that the row uses.
      ran: bool [K], whether each of the K draft models drafted.
    """

    members: tuple
    acceptance: RunningAcceptance
    drafts: jax.Array | None = None
    count: jax.Array | None = None
    chosen: jax.Array | None = None
    ran: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class Switch(Drafter):
    """Chooses the drafter with the highest ``gain`` for each row in each round.

    Only drafters that propose a token are candidates. The gain follows from the number of tokens
    that a drafter proposes now, and from the row's running acceptance rate of its drafts. Tokens of
    a model cost up to ``draft_cost`` each, other tokens cost nothing. If gains are equal, the first
    drafter wins. The emitted tokens test every proposal that is not a model's, used or not. A row
    therefore returns to n-grams as soon as their proposals become right. A model runs only if some
    unfinished row uses it.

    Several draft models may be of different domains, or of different sizes. Only use tests a model.
    With several models, the acceptance rate of each therefore begins at 1, and returns towards 1
    while a row uses other drafters. So a row tries every model that could be better, at first and
    now and then (optimistic initial values: Sutton and Barto 2018, section 2.6).

    The output is exact. The choice depends on the text so far and on earlier rounds, never on the
    model's draws in this round. A chain that was looked up equals a chain drawn from a one-hot q,
    and gets this q. A rule that divides by q then accepts a token x with probability p(x), which is
    exact. Block verification accepts as many of these tokens as ``sample_and_walk`` would.

    Attributes:
      drafters: one or more drafters of chains. Those with a draft model get the drafts in order.
      draft_cost: time to draft a token with the model, in plain target calls. Of several models it
        is that of the largest; the others cost less by their numbers of parameters.
    """

    drafters: tuple = (Ngram(prompt_lookup_min=2), DraftModel())
    draft_cost: float = 0.1

    def __post_init__(self):
        if not self.drafters:
            raise RequestError("the list of drafters is empty; name at least one, such as ngram, draft_model")
        if not all(isinstance(drafter, Member) for drafter in self.drafters):
            raise RequestError("a list of methods may name only methods that draft chains (subclasses of Member)")
        per_row("draft_cost", self.draft_cost, 1, float)

    @property
    def needs(self) -> Nothing | Models:
        return Models(len(self._models), len(self._models)) if self._models else Nothing()

    @property
    def with_encoder(self) -> bool:
        return all(drafter.with_encoder for drafter in self.drafters)

    @property
    def depth(self) -> int:
        return max(drafter.depth for drafter in self.drafters)

    @property
    def drawn(self) -> Drawn:
        return Drawn.CHOSEN if all(drafter.drawn is Drawn.CHOSEN for drafter in self.drafters) else Drawn.CHAIN

    def parameters(self, draft, vocab_size: int) -> tuple:
        models = iter(draft if len(self._models) > 1 else (draft,))
        return tuple(
            drafter.parameters(next(models) if _has_model(drafter) else None, vocab_size) for drafter in self.drafters
        )

    def check(self, config):
        for drafter in self.drafters:
            drafter.check(config)

    def remember(self, parameters: tuple, texts) -> tuple:
        return tuple(drafter.remember(own, texts) for drafter, own in zip(self.drafters, parameters))

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype) -> SwitchState:
        init = lambda drafter, own: drafter.init(target, own, tokens, lengths, taps, chunk=chunk, dtype=dtype)
        members = tuple(map(init, self.drafters, draft))
        acceptance = RunningAcceptance.start(lengths.size, len(self.drafters))
        return SwitchState(members, acceptance.toward_one(self._hopeful, 0.0))

    def propose(self, target, draft, state, key):
        own = state.drafter
        models = self._models
        indices = range(len(self.drafters))

        def propose_member(i, member):
            before = state.replace(drafter=member)
            before = before.replace(drafter=self.drafters[i].catch_up(draft[i], before))
            return self.drafters[i].propose(target, draft[i], before, key)

        proposals = {i: propose_member(i, member) for i, member in enumerate(own.members) if i not in models}
        count = jnp.stack([self._count(proposals, i, state) for i in indices], 1)
        value = gain(own.acceptance.alpha, count, 1 + count.astype(jnp.float32) * self._costs(draft), self.depth)
        chosen = jnp.argmax(jnp.where(count > 0, value, 0.0), 1).astype(jnp.int32)

        ran = jnp.any((chosen == jnp.array(models, jnp.int32)[:, None]) & ~state.done, 1)
        for k, model in enumerate(models):
            before = own.members[model]
            idle = _carry_over((None, before), jax.eval_shape(partial(propose_member, model), before))
            proposals[model] = run_if(ran[k], lambda proposals, model=model: propose_member(model, proposals[1]), idle)

        drafts = jnp.stack([_pad(proposals[i][0].tokens, self.depth + 1)[:, 1:] for i in indices], 1)
        of_row = lambda leaf: jnp.take_along_axis(leaf, chosen.reshape(-1, *(1,) * (leaf.ndim - 1)), 1)[:, 0]
        tokens = of_row(drafts)
        valid = jnp.arange(self.depth) < of_row(count)[:, None]
        q = None
        if self.drawn is Drawn.CHAIN:
            q = _pad(jax.nn.one_hot(tokens, target.config.vocab_size), self.depth + 1)
            for model in models:
                q = jnp.where((chosen == model)[:, None, None], _pad(proposals[model][0].q, self.depth + 1), q)
        first = lambda value, rest: jnp.concatenate([value[:, None], rest], 1)
        tree = jax.vmap(chain)(first(state.root, tokens), q, first(jnp.ones_like(state.done), valid))
        members = tuple(proposals[i][1] for i in indices)
        return tree, SwitchState(members, own.acceptance, drafts, count, chosen, ran)

    def commit(self, target, draft, state, tree, scored, verdict) -> SwitchState:
        own = state.drafter
        indices = range(len(self.drafters))

        def commit_member(i):
            """The member's state for the next round.

            For a row that uses another drafter, none of the member's tokens counts as accepted.
            """
            length = jnp.where(own.chosen == i, verdict.length, jnp.minimum(verdict.length, 1))
            path = jnp.minimum(verdict.path, jnp.maximum(length - 1, 0)[:, None])
            before = state.replace(drafter=own.members[i])
            cut = verdict.replace(path=path, length=length)
            return self.drafters[i].commit(target, draft[i], before, tree, scored, cut)

        def commit_if_ran(i):
            if i not in self._models:
                return commit_member(i)
            idle = lambda: _carry_over(own.members[i], jax.eval_shape(partial(commit_member, i)))
            return lax.cond(own.ran[self._models.index(i)], partial(commit_member, i), idle)

        tallies = [tally(own.drafts[:, i], own.count[:, i], tree, verdict) for i in indices]
        accepted, tested = (jnp.stack(x, 1) for x in zip(*tallies))
        # A model has no proposal for a row that did not use it.
        unused = jnp.array([i in self._models for i in indices]) & (own.chosen[:, None] != jnp.arange(len(indices)))
        acceptance = own.acceptance.update(accepted, jnp.where(unused, 0, tested)).toward_one(unused & self._hopeful)
        return SwitchState(tuple(map(commit_if_ran, indices)), acceptance)

    def rest(self, target, draft, state, tree, scored, verdict) -> SwitchState:
        own = state.drafter
        rest = lambda drafter, parameters, member: drafter.rest(
            target, parameters, state.replace(drafter=member), tree, scored, verdict
        )
        return own.replace(members=tuple(map(rest, self.drafters, draft, own.members)))

    def _count(self, proposals: dict, i: int, state) -> jax.Array:
        """Int32 [B], the number of tokens that drafter i proposes; the model's chain is full."""
        if i not in proposals:
            return jnp.full_like(state.root, self.drafters[i].depth).astype(jnp.int32)
        return jnp.cumprod(proposals[i][0].valid[:, 1:], 1).sum(1).astype(jnp.int32)

    def _costs(self, draft: tuple) -> jax.Array:
        """Float32 [M], the time to draft a token with each drafter, in plain target calls."""
        sizes = {i: sum(leaf.size for leaf in jax.tree.leaves(draft[i])) for i in self._models}
        share = lambda i: sizes[i] / max(sizes.values()) if i in sizes else 0
        return jnp.array([self.draft_cost * share(i) for i in range(len(self.drafters))], jnp.float32)

    @property
    def _models(self) -> tuple[int, ...]:
        """The indices of the drafters with a model."""
        return tuple(i for i, drafter in enumerate(self.drafters) if _has_model(drafter))

    @property
    def _hopeful(self) -> jax.Array:
        """Bool [M], the drafters whose acceptance rate returns towards 1: several models."""
        several = len(self._models) > 1
        return jnp.array([several and i in self._models for i in range(len(self.drafters))])


def _has_model(drafter: Drafter) -> bool:
    return isinstance(drafter.needs, Models)


def _pad(leaf: jax.Array, size: int) -> jax.Array:
    """An array [B, N, ...], padded with zeros to [B, ``size``, ...]."""
    return jnp.pad(leaf, ((0, 0), (0, size - leaf.shape[1]), *((0, 0),) * (leaf.ndim - 2)))


def _carry_over(before, after):
    """A drafter's state after a round that it skipped: ``before`` in the structure of ``after``.

    ``after`` is abstract. Leaves that ``before`` lacks are zeros.
    """
    held = dict(jax.tree_util.tree_leaves_with_path(before))
    fill = lambda path, leaf: held.get(path, jnp.zeros(leaf.shape, leaf.dtype))
    return jax.tree_util.tree_map_with_path(fill, after)
