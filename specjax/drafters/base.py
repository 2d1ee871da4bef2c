"""What a drafting method is. A new one is a file in this folder with a frozen dataclass of these members and a line in ``METHODS``."""

import dataclasses
from typing import Any, Protocol

import jax

from ..decode import DecodeState
from ..models.decoder import Decoder, Output
from ..tree import Tree
from ..verify import Verdict


class Drafter(Protocol):
    """Static options of a method, hashable, and three pure functions. States are pytrees of the drafter's choosing.

    One that drafts chains names their length ``num_speculative_tokens``. One that reads more than a draft model has a method
    ``parameters``, one that drafts now more and now less ``lengths`` and ``choose``; see below and ``decode.step``.

    Attributes:
      depth: the longest path it proposes, in edges.
      sampled: how its tokens were drawn from the q that its trees carry: "chain", "without_replacement" or "independent" siblings;
        empty where they are chosen by other means.
      taps: layers of the target whose inputs it wants to see, in ``out.taps``.
      needs_draft: whether it drafts with a second model.
    """

    depth: int
    sampled: str
    taps: tuple[int, ...]
    needs_draft: bool

    def init(self, target: Decoder, draft, tokens: jax.Array, lengths: jax.Array, taps: tuple, *, chunk: int, dtype) -> Any:
        """The state after the prompt. ``tokens`` int32 [B, T] holds it, ``taps`` are those of all its tokens but the last."""

    def draft(self, target: Decoder, draft, state: DecodeState, key: jax.Array) -> tuple[Tree, Any]:
        """A batched tree whose root is ``state.root``, and what ``commit`` will find in ``state.drafter``. ``key`` is [B]."""

    def commit(self, target: Decoder, draft, state: DecodeState, tree: Tree, out: Output, verdict: Verdict) -> Any:
        """The state for the next round. ``state`` is that of before the verdict: its cache is not yet longer."""


def proposes_chains(drafter: Drafter) -> bool:
    """Whether all its trees are chains, of ``num_speculative_tokens`` tokens."""
    return any(field.name == "num_speculative_tokens" for field in dataclasses.fields(drafter))


def parameters(drafter: Drafter, draft: Decoder | None, vocab_size: int):
    """What the functions of ``drafter`` take as ``draft``: the draft model, unless its method ``parameters`` says otherwise.

    Raises RequestError for a file that cannot be used.
    """
    own = getattr(drafter, "parameters", None)
    return draft if own is None else own(draft, vocab_size)
