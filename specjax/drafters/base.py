"""What a drafting method is. A new one is a file in this folder with a frozen dataclass of these members and a line in ``METHODS``."""

from typing import Any, Protocol

import jax

from ..decode import DecodeState
from ..models.config import ModelConfig
from ..models.decoder import Decoder, Output
from ..tree import Tree
from ..verify import Verdict


class Drafter(Protocol):
    """Static options of a method, hashable, and three pure functions. States are pytrees of the drafter's choosing.

    What ``draft`` returns may have an attribute ``begun``: the nodes' first layers as the target has them, which the verify pass then
    does not run, see ``Decoder``. One that drafts now more and now less has ``lengths`` and ``choose``, see ``decode.step``. The
    functions at the end of this file say what else a method may have.

    Attributes:
      depth: the longest path it proposes, in edges.
      sampled: how its tokens were drawn from the q that its trees carry: "chain", "without_replacement" or "independent" siblings,
        or "from_several" drafts; empty where they are chosen by other means.
      taps: layers of the target whose inputs it wants to see, in ``out.taps``.
      needs_draft: whether it drafts with a second model, or how many it needs at least. A method that can use several also has
        ``several = True``; its ``draft`` is the tuple of all that are given, where others get the first. A method that drafts with a
        trained head has ``heads``, the kinds it takes, and a field ``head`` for the head's configuration; its ``draft`` is the head.
    """

    depth: int
    sampled: str
    taps: tuple[int, ...]
    needs_draft: bool | int

    def init(self, target: Decoder, draft, tokens: jax.Array, lengths: jax.Array, taps: tuple, *, chunk: int, dtype) -> Any:
        """The state after the prompt. ``tokens`` int32 [B, T] holds it, ``taps`` are those of all its tokens but the last."""

    def draft(self, target: Decoder, draft, state: DecodeState, key: jax.Array) -> tuple[Tree, Any]:
        """A batched tree whose root is ``state.root``, and what ``commit`` will find in ``state.drafter``. ``key`` is [B]."""

    def commit(self, target: Decoder, draft, state: DecodeState, tree: Tree, out: Output, verdict: Verdict) -> Any:
        """The state for the next round. ``state`` is that of before the verdict: its cache is not yet longer."""


def several(drafter: Drafter) -> bool:
    """Whether the method uses all drafts that are given, rather than the first."""
    return getattr(drafter, "several", False)


def heads_of(drafter: Drafter) -> tuple[str, ...]:
    """The kinds of trained heads that the method drafts with, see ``heads``; empty for one that drafts with a model, or with none."""
    return getattr(drafter, "heads", ())


def can_rest(drafter: Drafter) -> bool:
    """Whether it drafts chains of ``num_speculative_tokens`` tokens, any number of them, and may be passed over in any round."""
    return getattr(drafter, "can_rest", False)


def caught_up(drafter: Drafter, draft, state: DecodeState) -> DecodeState:
    """``state``, in which the drafter has read what was emitted in rounds that passed it over: by its method ``catch_up``, where it has
    one. Who may pass it over, or keep less of a round than was accepted, calls this before ``draft``; nobody else need compile it."""
    own = getattr(drafter, "catch_up", None)
    return state if own is None else state.replace(drafter=own(draft, state))


def checked(drafter: Drafter, config: ModelConfig) -> Drafter:
    """The drafter. Raises RequestError where its method ``check`` finds that its options do not fit the target."""
    if hasattr(drafter, "check"):
        drafter.check(config)
    return drafter


def parameters(drafter: Drafter, draft: Decoder | None, vocab_size: int):
    """What the functions of ``drafter`` take as ``draft``: the draft model, unless its method ``parameters`` says otherwise.

    Raises RequestError for a file that cannot be used.
    """
    own = getattr(drafter, "parameters", None)
    return draft if own is None else own(draft, vocab_size)


def remembered(drafter: Drafter, given, texts: list[list[int]]):
    """The parameters ``given`` after requests whose prompt and answer were ``texts``, by its method ``remember``. On the host, between calls."""
    own = getattr(drafter, "remember", None)
    return given if own is None else own(given, texts)
