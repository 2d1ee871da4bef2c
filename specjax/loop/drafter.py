"""The base class of drafting methods.

To add a method, write a file in ``drafters/`` with a subclass, and add a line to ``METHODS``.
"""

import dataclasses
from typing import Any, ClassVar

import jax

from ..core.state import DecodeState
from ..core.tree import Tree
from ..core.verdict import Verdict
from ..models.base import Model, Scored
from ..models.config import ModelConfig
from ..rules.acceptance import Drawn


@dataclasses.dataclass(frozen=True)
class Nothing:
    """The method drafts without a second model."""


@dataclasses.dataclass(frozen=True)
class Models:
    """The method drafts with language models.

    Attributes:
      least: the number of models that it needs.
      most: the number of models that it can use; None for any number.
      apart: whether they may be on devices of their own.
      heads: whether a trained head may stand in a model's place, see ``auto.resting``.
    """

    least: int = 1
    most: int | None = 1
    apart: bool = True
    heads: bool = False

    @property
    def is_one(self) -> bool:
        """Whether the method always gets one model as ``draft``. Otherwise it gets a tuple."""
        return self.least == self.most == 1


@dataclasses.dataclass(frozen=True)
class TrainedHead:
    """The method drafts with a trained head of one ``kind``, see ``heads``.

    The method's field ``head`` is the head's configuration.
    """

    kind: str


@dataclasses.dataclass(frozen=True)
class TargetCopy:
    """The method drafts with a copy of the target in another form.

    ``Drafter.parameters`` makes it of the target's module.
    """


@dataclasses.dataclass(frozen=True)
class Drafter:
    """A drafting method: its options as static fields, and pure functions. Hashable.

    A subclass must define ``propose`` and ``depth``. A method that keeps a state between rounds
    also defines ``init`` and ``commit``. All other members have defaults: they describe a method
    without the feature in question. A method that chooses a shape of drafts for each round is a
    ``Chooser``.

    Attributes:
      needs: the models or the head that the method drafts with. A method that needs any may run on
        devices of its own, see ``text.draft_devices``. There ``target`` has the configuration and,
        for a head, the embeddings, the final norm and ``logits``; ``state.cache`` has a length and
        no layers, and ``scored`` has the taps alone.
      reads_target: whether the method drafts with the target's layers and cache. It then runs on
        the target's devices only.
      with_encoder: whether the method drafts for encoder-decoders too.
    """

    needs: ClassVar[Nothing | Models | TrainedHead | TargetCopy] = Nothing()
    reads_target: ClassVar[bool] = False
    with_encoder: ClassVar[bool] = False

    def __post_init__(self):
        """Raises RequestError for options that do not fit together."""

    @property
    def depth(self) -> int:
        """The longest path that the method proposes, in edges."""
        raise TypeError(f"{type(self).__name__} must define depth")

    @property
    def drawn(self) -> Drawn:
        """How the method draws its tokens from the q of the tree; CHOSEN if it does not draw."""
        return Drawn.CHOSEN

    @property
    def taps(self) -> tuple[int, ...]:
        """The layers of the target whose inputs the method reads, as ``Output.taps``."""
        return ()

    def init(
        self, target: Model, draft, tokens: jax.Array, lengths: jax.Array, taps: tuple, *, chunk: int, dtype
    ) -> Any:
        """The method's state after the prompt, a pytree of arrays whose first axis is B.

        Args:
          tokens, lengths: int32 [B, T] and [B], the prompts. T is the capacity.
          taps: float32 [B, T, E] for each of ``self.taps``. The last token of a prompt has none.
          chunk, dtype: see ``prefill``.
        """
        return ()

    def reads(self, target: Model, draft, tokens: jax.Array, lengths: jax.Array, taps: tuple) -> tuple[Any, Any] | None:
        """The model with which ``init`` reads prompts, and the tokens that it reads, int32 [B].

        The model is one of ``prefill.Reads``.

        The arguments are those of ``init``. A method that has this function takes ``filled`` in
        ``init``: the prompts, already read in chunks (``prefill.Filled``), or None. None, the
        default, stands for a method whose ``init`` reads nothing, or all at once.
        """
        return None

    def propose(self, target: Model, draft, state: DecodeState, key: jax.Array) -> tuple[Tree, Any]:
        """A batched tree below ``state.root``, and the method's state for ``commit``.

        ``commit`` finds that state in ``state.drafter``. If the method has run the target's first
        layers for the nodes, the state has their results in an attribute ``computed``, see
        ``Model``. ``state.tokens`` has each row's text up to ``state.length``, the root included.
        ``key``: typed keys [B].
        """
        raise TypeError(f"{type(self).__name__} must define propose")

    def commit(self, target: Model, draft, state: DecodeState, tree: Tree, scored: Scored, verdict: Verdict) -> Any:
        """The method's state for the next round.

        ``state`` is the batch before this round's commit: its cache does not hold the path yet.
        """
        return ()

    def rest(self, target: Model, draft, state: DecodeState, tree: Tree, scored: Scored, verdict: Verdict) -> Any:
        """The method's state after a round that it did not draft; ``tree`` is a chain.

        The arguments are those of ``commit``, and ``state.drafter`` is the state before the round.
        By default it is the result of ``commit``, for methods that keep nothing of ``propose``.
        """
        return self.commit(target, draft, state, tree, scored, verdict)

    @property
    def chooser(self) -> Any:
        """The method itself if it chooses a shape for each round, see ``Chooser``; else None."""
        return None

    def check(self, config: ModelConfig) -> None:
        """Raises RequestError if the options do not fit a target with this configuration."""

    def parameters(self, draft, vocab_size: int) -> Any:
        """The pytree that the other functions take as ``draft``, made on the host.

        By default it is the draft's module. Raises RequestError for a file that cannot be used.
        """
        return draft

    def remember(self, parameters, texts: list[list[int]]) -> Any:
        """The parameters, updated on the host with ``texts``, the token ids of finished requests.

        Each text is a prompt and its answer.
        """
        return parameters
