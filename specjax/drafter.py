"""The base class of drafting methods.

A new method is a file in ``drafters/`` with a subclass, and a line in ``METHODS``.
"""

import dataclasses
from typing import Any, ClassVar

import jax

from .models.base import Model, Output
from .models.config import ModelConfig
from .state import DecodeState
from .tree import Tree
from .verify import Drawn, Verdict


@dataclasses.dataclass(frozen=True)
class Nothing:
    """The method drafts without a second model."""


@dataclasses.dataclass(frozen=True)
class Models:
    """The method drafts with language models.

    Attributes:
      least: how many it needs.
      most: how many it can use; None for any number. A method that can use more than one gets a
        tuple as ``draft``.
    """

    least: int = 1
    most: int | None = 1


@dataclasses.dataclass(frozen=True)
class TrainedHead:
    """The method drafts with a trained head of one ``kind``, see ``heads``.

    Its field ``head`` is the head's configuration.
    """

    kind: str


@dataclasses.dataclass(frozen=True)
class Drafter:
    """Static options of a method, and pure functions. Hashable.

    ``propose`` and ``depth`` must be written. A method that keeps something between rounds also
    writes ``init`` and ``commit``. Every other member has a default that suits a method without the
    ability it describes.

    Attributes:
      needs: what the method drafts with.
      can_rest: whether the method proposes chains of ``num_speculative_tokens`` tokens and may sit
        out any round. ``Switch`` and ``Adaptive`` take such methods only.
    """

    needs: ClassVar[Nothing | Models | TrainedHead] = Nothing()
    can_rest: ClassVar[bool] = False

    @property
    def depth(self) -> int:
        """The longest path that the method proposes, in edges."""
        raise TypeError(f"{type(self).__name__} must define depth")

    @property
    def drawn(self) -> Drawn:
        """How the proposed tokens are drawn from the q of their tree."""
        return Drawn.CHOSEN

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers of the target whose inputs the method reads in ``Output.taps``."""
        return ()

    def init(
        self, target: Model, draft, tokens: jax.Array, lengths: jax.Array, taps: tuple, *, chunk: int, dtype
    ) -> Any:
        """The method's state after the prompt, a pytree.

        Args:
          tokens, lengths: int32 [B, T] and [B], the prompts.
          taps: float32 [B, T, E] for each of ``self.taps``, of all tokens of the prompt but the
            last.
          chunk, dtype: see ``prefill``.
        """
        return ()

    def propose(self, target: Model, draft, state: DecodeState, key: jax.Array) -> tuple[Tree, Any]:
        """A batched tree below ``state.root``, and the state that ``commit`` will find in
        ``state.drafter``.

        ``key``: typed keys [B].
        """
        raise TypeError(f"{type(self).__name__} must define propose")

    def commit(self, target: Model, draft, state: DecodeState, tree: Tree, scored: Output, verdict: Verdict) -> Any:
        """The method's state for the next round.

        ``state`` is that before the verdict: its cache is not yet longer.
        """
        return ()

    def computed_layers(self, drafted) -> tuple | None:
        """The nodes' first layers, where ``propose`` has run them on the target already; see
        ``Model``.

        ``drafted`` is the state that ``propose`` returned.
        """
        return None

    @property
    def lengths(self) -> tuple[int, ...]:
        """Draft lengths, ascending, of which ``choose`` picks one for each round; empty for a
        method with one length.
        """
        return ()

    def choose(self, state: DecodeState) -> jax.Array:
        """Int32, the index in ``lengths`` for the next round."""
        raise TypeError(f"{type(self).__name__} has lengths and must define choose")

    def at_length(self, length: int) -> "Drafter":
        """The method with a draft of ``length`` tokens, one of ``lengths``."""
        return self

    def catch_up(self, draft, state: DecodeState) -> Any:
        """The method's state after it has read the tokens of rounds that it sat out.

        ``Switch``, ``Adaptive`` and ``Merged`` call this before ``propose``, because they may skip
        the method in a round or keep less of its proposal than was accepted.
        """
        return state.drafter

    def check(self, config: ModelConfig) -> None:
        """Raises RequestError where the options do not fit a target of this configuration."""

    def parameters(self, draft, vocab_size: int) -> Any:
        """What the functions take as ``draft``, made once on the host: by default the draft's
        module.

        Raises RequestError for a file that cannot be used.
        """
        return draft

    def remember(self, parameters, texts: list[list[int]]) -> Any:
        """The parameters after requests whose prompts and answers were ``texts``.

        On the host, between calls.
        """
        return parameters
