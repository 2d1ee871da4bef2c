"""Chains and trees from a draft model or a feature head that skips rounds, for ``Auto``.

Both classes have three functions more than other drafters. ``make_room`` runs before each round,
but for plain rounds that repeat a choice. ``rest`` takes the place of ``commit`` after a round in
which the draft did not run. ``commit`` is also told which rows took the draft's tokens: the others
took tokens that were looked up.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from ...core.cache import commit as commit_rows
from ...core.conditional import run_if
from ...errors import RequestError
from ...heads import KINDS
from ...heads.base import HeadConfig
from ..draft_model import DraftModel
from ..dynamic_tree import DynamicTree
from ..eagle import Eagle2
from ..mtp import Mtp
from ..parts.feature_reader import FeatureReader
from .constants import CONSTANTS

_KINDS = tuple(name for name, kind in KINDS.items() if kind.token_by_token)
"""The kinds of heads that draft one token after another from features."""


def can_rest(config: HeadConfig) -> bool:
    """Whether a head has one module and drafts token by token, as ``RestingHead`` needs."""
    return config.kind in _KINDS and config.modules == 1 and config.mask_token is None


def check_resting(config: HeadConfig, name: str) -> None:
    """Raises RequestError for a head that ``RestingHead`` cannot use. ``name`` is the head's."""
    if not can_rest(config):
        raise RequestError(
            f"method 'auto' drafts with heads of one module that draft token by token ({', '.join(_KINDS)}), and "
            f"head {name!r} of kind {config.kind!r} is none; name another draft, or decode by the head's own method"
        )


@dataclasses.dataclass(frozen=True)
class RestingModel:
    """A draft model, which reads the tokens of skipped rounds before it drafts again.

    Attributes:
      grower: grows the chain or the tree. A chain takes the argument ``most`` of ``propose``.
    """

    grower: DraftModel | DynamicTree | Mtp

    def init(self, target, draft, tokens, lengths, taps, **reading):
        return self.grower.init(target, draft, tokens, lengths, taps, **reading)

    def reads(self, target, draft, tokens, lengths, taps):
        return self.grower.reads(target, draft, tokens, lengths, taps)

    def make_room(self, target, draft, state):
        """The model's state, unchanged."""
        return state.drafter

    def propose(self, target, draft, state, key, **most):
        own = DraftModel().catch_up(draft, state)
        return self.grower.propose(target, draft, state.replace(drafter=own), key, **most)

    def commit(self, target, draft, state, tree, scored, verdict, from_model=None):
        """Of the rows without ``from_model``, bool [B], none of the model's tokens counts."""
        length = verdict.length
        if from_model is not None:
            length = jnp.where(from_model, length, jnp.minimum(length, 1))
        on_path = jnp.arange(verdict.path.shape[1]) < length[:, None]
        verdict = verdict.replace(path=jnp.where(on_path, verdict.path, 0), length=length)
        return self.grower.commit(target, draft, state, tree, scored, verdict)

    def rest(self, target, draft, state, scored, verdict):
        """The model's state, unchanged."""
        return state.drafter


@dataclasses.dataclass(frozen=True)
class RestingHead(RestingModel):
    """A head of one module, which needs the features of skipped rounds.

    The pairs of feature and token of these rounds wait in ``ReaderState.features``, see
    ``FeatureReader``. The head reads them before it drafts, or if more than ``Constants.waiting``
    wait.

    Attributes:
      longest: the longest path of any round, in edges. Between two calls of ``make_room`` come at
        most ``longest`` + 1 pairs, in one round or in several.
      reader: the reader of the nodes.
    """

    longest: int
    reader: FeatureReader = FeatureReader()

    @property
    def depth(self) -> int:
        return self.grower.depth

    @property
    def _room(self) -> int:
        """W, the pairs that fit: those that wait, and the path of a round."""
        return max(CONSTANTS.waiting, self.longest + 1) + self.longest + 1

    def init(self, target, draft, tokens, lengths, taps, **reading):
        return self.reader.init(target, draft, tokens, lengths, taps, self._room - 1, **reading)

    def make_room(self, target, draft, state):
        """The head's state, with room for the pairs that come before the next call."""
        return self._read_until(self._room - self.longest - 1, target, draft, state)

    def _read_until(self, most: int, target, draft, state):
        """The head's state after it has read pairs, until no row has more than ``most`` >= 1."""
        n = state.cache.length
        R = self.longest + 1

        def read(own):
            """Reads the first R pairs that wait, and leaves at least one."""
            part = own.replace(features=own.features[:, :R])
            before = state.replace(drafter=part)
            first = self.reader.begin(target, draft, before, R - 1)
            length = jnp.maximum(jnp.minimum(own.cache.length + R, n - 1), own.cache.length)
            assert first.hidden is not None  # ``begin`` sets it
            valid = jnp.isfinite(first.hidden).all((1, 2))
            cache = commit_rows(own.cache, first.rows.layers, None, length, valid=valid)
            at = jnp.arange(self._room) + (length - own.cache.length)[:, None]
            features = jnp.take_along_axis(own.features, jnp.minimum(at, self._room - 1)[..., None], 1)
            return own.replace(cache=cache, features=features)

        return lax.while_loop(lambda own: jnp.any(n - own.cache.length > most), read, state.drafter)

    def propose(self, target, draft, state, key, **most):
        own = self._read_until(self.depth + 1, target, draft, state)
        state = state.replace(drafter=own.replace(features=own.features[:, : self.depth + 1]))
        tree, drafted = self.grower.propose(target, draft, state, key, **most)
        return tree, drafted.replace(features=own.features)

    def commit(self, target, draft, state, tree, scored, verdict, from_model=None):
        own = state.drafter
        state = state.replace(drafter=own.replace(features=own.features[:, : self.depth + 1]))
        committed = self.grower.commit(target, draft, state, tree, scored, verdict)
        assert committed.features is not None  # a feature reader has them
        return committed.replace(features=lax.dynamic_update_slice(own.features, committed.features, (0, 0, 0)))

    def rest(self, target, draft, state, scored, verdict):
        """The head's state after a round in which it did not draft. The path's features wait."""
        own = state.drafter
        path = draft.fuse(target, tuple(jnp.take_along_axis(tap, verdict.path[..., None], 1) for tap in scored.taps))
        at = state.cache.length - own.cache.length
        put = jax.vmap(lambda features, new, place: lax.dynamic_update_slice(features, new, (place, 0)))
        return own.replace(features=put(own.features, path.astype(own.features.dtype), at))


def commit_or_rest(model: RestingModel, target, draft, state, tree, scored, verdict, *, draws: bool) -> tuple:
    """The state of the model, if there is one, after a round in which it may draft (``draws``)."""
    prepared = state.drafter.prepared

    def commit(own):
        before = state.replace(drafter=own.replace(rows=prepared.draft.rows, row_of=prepared.draft.row_of))
        return model.commit(target, draft.models[0], before, tree, scored, verdict, prepared.from_model)

    def rest(own):
        return model.rest(target, draft.models[0], state.replace(drafter=own), scored, verdict)

    def after(own):
        own = run_if(prepared.ran, commit, own) if draws else own
        return run_if(~prepared.ran, rest, own)

    return tuple(map(after, state.drafter.models))


def resting(length: int, nodes: int, top_k: int, head: HeadConfig | None, *, longest: int) -> RestingModel:
    """A draft model, or a head, that grows a chain, or a tree of so many ``nodes``; see ``Arm``."""
    if head is None:
        return RestingModel(DynamicTree(nodes, length, top_k) if nodes else DraftModel(length))
    return RestingHead(Eagle2(nodes, length, top_k, head=head) if nodes else Mtp(length, head=head), longest)
