"""Drafts of the next round, made while the target verifies this one.

The method is speculative speculative decoding (2603.03251). The verdict on a chain of K tokens is a
number of accepted tokens, from 0 to K, and the token after them. For each number the draft guesses
the F likeliest tokens. A chain follows each of these O = (K + 1) F outcomes.

The output is exact, and equal to that of drafting afterwards. The keys of a round depend on the
length of the row alone. A chain that is drawn ahead thus has the tokens and the q of a chain that
is drawn after the verdict.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from ...core.cache import Rows
from ...core.conditional import run_if
from ...core.sampling import adjust
from ...core.selection import likeliest
from ...core.state import DecodeState
from ...core.tree import Tree
from ...core.verdict import Verdict
from ...loop.decode import Round, commit, round_keys
from ...loop.drafter import Drafter
from ...models.base import Model, Output, Scored
from ..draft_model import DraftModel
from ..none import Plain


class Ahead(struct.PyTreeNode):
    """The drafts of the next round, one for each of O outcomes of this round.

    Attributes:
      length, root: int32 [O, B], the number of tokens of each row after the outcome, and the
        newest.
      tree: the chains, leaves [O, B, ...].
      rows: the draft's rows for these chains, as in ``ReaderState``, leaves [O, B, ...].
    """

    length: jax.Array
    root: jax.Array
    tree: Tree
    rows: Rows


def drafts_ahead(drafter: Drafter) -> bool:
    """Whether the method drafts the next round while the target verifies."""
    return isinstance(drafter, DraftModel) and drafter.draft_ahead > 0


def draft_ahead(drafter, target, draft: Model, state: DecodeState, tree: Tree) -> Ahead:
    """Drafts for the likely outcomes of the round in which the target verifies ``tree``.

    ``drafter`` is a ``DraftModel``, and ``state.drafter`` is the state after its ``propose``. The
    outcomes share the draft's cache. They read the tokens of ``tree`` as rows that are in no cache.
    """
    own = state.drafter
    n = state.cache.length
    place = jnp.arange(drafter.depth)
    positions = jnp.concatenate([jnp.maximum(n - 1, 0)[:, None], n[:, None] + place], 1)

    def draft_after(verdict: Verdict):
        after = _after(state, tree, verdict)
        # A round begins by reading the newest two tokens, see ``TokenReader``.
        seen = (positions < after.cache.length[:, None] - 1).at[:, 0].set(n > 0)
        key, _ = round_keys(after, drafter.depth + 1)
        model = _Continued(draft, own.rows, positions, seen)
        chain, pending = drafter.propose(target, model, after.replace(drafter=own), key)
        return Ahead(after.length, after.root, chain, pending.rows)

    return jax.vmap(draft_after)(_guess(drafter, draft, state, tree))


def propose_from(ahead: Ahead, drafter, target, draft: Model, state: DecodeState, key) -> tuple[Tree, Any, jax.Array]:
    """The drafts that follow the outcome of the last round; ``propose`` where none was made ahead.

    Returns the results of ``Drafter.propose``, and bool [B], whether a row's draft was made ahead.
    """
    fits = (ahead.length == state.length) & (ahead.root == state.root)
    hit = fits.any(0)
    outcome = jnp.argmax(fits, 0)
    row = jnp.arange(fits.shape[1])

    def draft_now(drafts):
        tree, own = drafter.propose(target, draft, state, key)
        select = lambda old, new: jnp.where(hit.reshape(-1, *(1,) * (new.ndim - 1)), old, new)
        return jax.tree.map(select, drafts, (tree, own.rows))

    drafts = jax.tree.map(lambda leaf: leaf[outcome, row], (ahead.tree, ahead.rows))
    tree, rows = run_if(jnp.any(~hit & ~state.done), draft_now, drafts)
    return tree, state.drafter.replace(rows=rows), hit


def _guess(drafter, draft: Model, state: DecodeState, tree: Tree) -> Verdict:
    """The likely verdicts on ``tree``, leaves [O, B, ...].

    The draft reads the whole chain once more, because its q tells no ranks at temperature 0. After
    fewer than K accepted tokens the next token differs from the drafted token.
    """
    own = state.drafter
    n = state.cache.length
    node = jnp.arange(drafter.depth + 1)
    positions = n[:, None] + node
    model = _Continued(draft, own.rows.first(1), jnp.maximum(n - 1, 0)[:, None], (n > 0)[:, None])
    out = model(tree.tokens, positions, jnp.tril(jnp.ones((node.size, node.size), bool)), own.cache)
    logits = draft.logits(out.hidden).astype(jnp.float32)
    logits = adjust(logits, state.request.sampling, state.tree_context(tree))
    drafted = jnp.where(node < drafter.depth, jnp.roll(tree.tokens, -1, 1), -1)
    others = jnp.where(jnp.arange(logits.shape[-1]) == drafted[..., None], -jnp.inf, logits)
    _, tokens = likeliest(others, min(drafter.draft_ahead, logits.shape[-1]))  # [B, K + 1, F]

    B, P, F = tokens.shape
    last = jnp.broadcast_to(jnp.repeat(node, F)[:, None], (P * F, B))
    path = jnp.minimum(node, last[..., None])
    return Verdict(path, last + 1, tokens.transpose(1, 2, 0).reshape(P * F, B))


def _after(state: DecodeState, tree: Tree, verdict: Verdict) -> DecodeState:
    """The state after a round with this verdict, without the states of target and draft."""
    void = jnp.zeros(())
    round = Round(tree, (), Scored(void, (), logits=void), void, verdict, state.failed)
    return commit(None, None, state.replace(drafter=()), round, drafter=Plain())  # pyright: ignore[reportArgumentType]


@dataclasses.dataclass(frozen=True, eq=False)
class _Continued:
    """A model that continues rows which are in no cache, see ``Model``.

    Attributes:
      rows: keys and values of R tokens after the cache.
      positions, seen: int32 and bool [B, R], their positions, and whether they are part of the
        text.
    """

    model: Model
    rows: Rows
    positions: jax.Array
    seen: jax.Array

    @property
    def config(self):
        return self.model.config

    def logits(self, hidden: jax.Array) -> jax.Array:
        return self.model.logits(hidden)

    def __call__(self, tokens, positions, mask, cache, *, rows=None, row_positions=None, **options) -> Output:
        (B, N) = tokens.shape
        own = positions if row_positions is None else row_positions
        known = self.rows if rows is None else self.rows.join(Rows(rows))
        seen = jnp.broadcast_to(self.seen[:, None], (B, N, self.seen.shape[1]))
        mask = jnp.concatenate([seen, jnp.broadcast_to(mask, (B, N, own.shape[1]))], -1)
        at = jnp.concatenate([self.positions, own], 1)
        out = self.model(tokens, positions, mask, cache, rows=known.layers, row_positions=at, **options)
        return out.replace(rows=Rows(out.rows).last(N).layers)
