"""What a drafting method is. A new one is a file in this folder with a frozen dataclass of these members and a line in ``METHODS``."""

from typing import Any, Protocol

import jax

from ..decode import DecodeState
from ..models.decoder import Decoder, Output
from ..tree import Tree
from ..verify import Verdict


class Drafter(Protocol):
    """Static options of a method, hashable, and three pure functions. States are pytrees of the drafter's choosing.

    What ``draft`` returns may have an attribute ``begun``: the nodes' first layers as the target has them, which the verify pass then
    does not run, see ``Decoder``. A method may have ``check(config)``, which raises RequestError where its options do not fit a target.

    Attributes:
      depth: the longest path it proposes, in edges.
      sampled: how its tokens were drawn from the q that its trees carry: "chain", "without_replacement" or "independent" siblings,
        or "from_several" drafts; empty where they are chosen by other means.
      taps: layers of the target whose inputs it wants to see, in ``out.taps``.
      needs_draft: whether it drafts with a second model, or how many it needs at least. A method that can use several also has
        ``several = True``; its ``draft`` is the tuple of all that are given, where others get the first.

    One that learns from what was answered before also has ``memory``, a pytree of fixed shapes or None, which a ``Generator`` passes as
    ``draft``, and ``remember(memory, texts) -> memory``, called on the host between calls.
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
