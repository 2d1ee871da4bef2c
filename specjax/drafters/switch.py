"""Several chain drafters, of which each row uses one at a time: n-grams where the text repeats itself, else a draft model."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from ..checks import per_row
from ..decode import once
from ..errors import RequestError
from ..tree import chain
from .base import can_rest, caught_up, checked, parameters, remembered
from .draft_model import DraftModel
from .ngram import Ngram
from .parts.gain import Acceptance, gain, tally


@struct.dataclass
class State:
    """The states of the M drafters, how the drafts of each fared, [B, M], and between draft and commit the proposals.

    Attributes:
      drafts: int32 [B, M, D], void beyond ``count`` [B, M].
      chosen: int32 [B], whose the row uses.
      ran: bool, whether the model drafted.
    """

    members: tuple
    acceptance: Acceptance
    drafts: jax.Array | None = None
    count: jax.Array | None = None
    chosen: jax.Array | None = None
    ran: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class Switch:
    """In each row and round the chain of the drafter with the highest ``gain``, of those that propose any; of equals the first.

    A drafter's gain is that of the tokens it proposes now, at the row's moving acceptance rate of this drafter's drafts; a model's
    tokens cost ``draft_cost`` each, others nothing. What is emitted judges every proposal that was made, used or not, so n-grams are
    tried again as soon as they would have been right. The model runs only when some unfinished row uses it.

    Lossless: the choice depends on the text so far and on earlier rounds, never on what the model draws now. A chain that was chosen
    by other means is one drawn from a one-hot q, and carries that q: a rule that divides by q then keeps it with probability p, which is
    exact, and with block verification accepts as many as the walk would.

    Attributes:
      drafters: at least one; at most one with a draft model.
      draft_cost: time to draft a token with the model, in plain target calls.
    """

    drafters: tuple = (Ngram(prompt_lookup_min=2), DraftModel())
    draft_cost: float = 0.1

    def __post_init__(self):
        if not self.drafters:
            raise RequestError("the list of drafters is empty; name at least one, such as ngram, draft_model")
        if not all(map(can_rest, self.drafters)):
            raise RequestError("a list of methods takes those that draft chains: draft_model, ngram, suffix")
        if sum(drafter.needs_draft for drafter in self.drafters) > 1:
            raise RequestError("a list of methods takes one with a draft model; leave out the others")
        per_row("draft_cost", self.draft_cost, 1, float)

    @property
    def depth(self) -> int:
        return max(drafter.depth for drafter in self.drafters)

    @property
    def sampled(self) -> str:
        return "chain" if any(drafter.sampled for drafter in self.drafters) else ""

    @property
    def taps(self) -> tuple[int, ...]:
        return ()

    @property
    def needs_draft(self) -> bool:
        return any(drafter.needs_draft for drafter in self.drafters)

    def parameters(self, draft, vocab_size: int) -> tuple:
        return tuple(parameters(drafter, draft if drafter.needs_draft else None, vocab_size) for drafter in self.drafters)

    def check(self, config):
        for drafter in self.drafters:
            checked(drafter, config)

    def remember(self, given: tuple, texts) -> tuple:
        return tuple(remembered(drafter, own, texts) for drafter, own in zip(self.drafters, given))

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        begin = lambda drafter, own: drafter.init(target, own, tokens, lengths, taps, chunk=chunk, dtype=dtype)
        return State(tuple(map(begin, self.drafters, draft)), Acceptance.begun(lengths.size, len(self.drafters)))

    def draft(self, target, draft, state, key):
        own, model = state.drafter, self._model
        ready = lambda i, before: caught_up(self.drafters[i], draft[i], state.replace(drafter=before))
        propose = lambda i, before: self.drafters[i].draft(target, draft[i], ready(i, before), key)
        found = {i: propose(i, before) for i, before in enumerate(own.members) if i != model}

        proposed = lambda i: (
            jnp.cumprod(found[i][0].valid[:, 1:], 1).sum(1) if i in found else jnp.full_like(state.root, self.drafters[i].depth)
        )
        count = jnp.stack([proposed(i).astype(jnp.int32) for i in range(len(self.drafters))], 1)
        time = 1 + count.astype(jnp.float32) * jnp.array([self.draft_cost * drafter.needs_draft for drafter in self.drafters])
        value = gain(own.acceptance.alpha, count, time, self.depth)
        chosen = jnp.argmax(jnp.where(count > 0, value, 0.0), 1).astype(jnp.int32)

        ran = jnp.any((chosen == model) & ~state.done) if model is not None else jnp.bool(False)
        if model is not None:
            before = own.members[model]
            nothing = _unchanged((None, before), jax.eval_shape(partial(propose, model), before))
            found[model] = once(ran, lambda found: propose(model, found[1]), nothing)

        drafts = jnp.stack([_padded(found[i][0].tokens, self.depth + 1)[:, 1:] for i in range(len(self.drafters))], 1)
        of_row = lambda leaf: jnp.take_along_axis(leaf, chosen.reshape(-1, *(1,) * (leaf.ndim - 1)), 1)[:, 0]
        tokens, valid = of_row(drafts), jnp.arange(self.depth) < of_row(count)[:, None]
        q = None
        if self.sampled:
            one_hot = _padded(jax.nn.one_hot(tokens, target.config.vocab_size), self.depth + 1)
            q = jnp.where((chosen == model)[:, None, None], _padded(found[model][0].q, self.depth + 1), one_hot)
        first = lambda value, rest: jnp.concatenate([value[:, None], rest], 1)
        tree = jax.vmap(chain)(first(state.root, tokens), q, first(jnp.ones_like(state.done), valid))
        members = tuple(found[i][1] for i in range(len(self.drafters)))
        return tree, State(members, own.acceptance, drafts, count, chosen, ran)

    def commit(self, target, draft, state, tree, out, verdict):
        own = state.drafter

        def committed(i):
            """As if none of a drafter's own had been kept where another's were used."""
            length = jnp.where(own.chosen == i, verdict.length, jnp.minimum(verdict.length, 1))
            path = jnp.minimum(verdict.path, jnp.maximum(length - 1, 0)[:, None])
            before = state.replace(drafter=own.members[i])
            return self.drafters[i].commit(target, draft[i], before, tree, out, verdict.replace(path=path, length=length))

        def after(i):
            if i != self._model:
                return committed(i)
            idle = lambda: _unchanged(own.members[i], jax.eval_shape(partial(committed, i)))
            return lax.cond(own.ran, partial(committed, i), idle)

        judged = [tally(own.drafts[:, i], own.count[:, i], tree, verdict) for i in range(len(self.drafters))]
        kept, tested = (jnp.stack(x, 1) for x in zip(*judged))
        if self._model is not None:  # a model that was not used drew nothing that counts, or ran for other rows
            tested = jnp.where((jnp.arange(len(self.drafters)) == self._model) & (own.chosen != self._model)[:, None], 0, tested)
        return State(tuple(map(after, range(len(self.drafters)))), own.acceptance.after(kept, tested))

    @property
    def _model(self) -> int | None:
        """Which of the drafters drafts with a model."""
        return next((i for i, drafter in enumerate(self.drafters) if drafter.needs_draft), None)


def _padded(leaf: jax.Array, size: int) -> jax.Array:
    """[B, N, ...] with zeros up to N = ``size``."""
    return jnp.pad(leaf, ((0, 0), (0, size - leaf.shape[1]), *((0, 0),) * (leaf.ndim - 2)))


def _unchanged(before, after):
    """What a drafter that is passed over returns: of the structure of ``after``, abstract, all that it already had; zeros elsewhere."""
    held = dict(jax.tree_util.tree_leaves_with_path(before))
    fill = lambda path, leaf: held.get(path, jnp.zeros(leaf.shape, leaf.dtype))
    return jax.tree_util.tree_map_with_path(fill, after)
