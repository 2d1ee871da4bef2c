"""The base class of drafting methods.

To add a method, write a file in ``drafters/`` with a subclass, and add a line to ``METHODS``.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import numpy as np

from .models.base import Model, Scored
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
      least: the number of models that it needs.
      most: the number of models that it can use; None for any number.
    """

    least: int = 1
    most: int | None = 1

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
class Ran:
    """A run of rounds, as ``Drafter.learn`` hears of it on the host.

    Attributes:
      rounds: int32 [A], the rounds of each of ``Drafter.choices`` in the row that ended last.
      batch: the number of rows.
      context: the number of tokens of the longest row after the rounds.
      seconds: the time of the rounds.
      sampled: whether any row has a temperature above 0.
      evidence: by how much ``Drafter.evidence`` has grown in the rounds.
    """

    rounds: np.ndarray
    batch: int
    context: int
    seconds: float
    sampled: bool
    evidence: Any = ()


@dataclasses.dataclass(frozen=True)
class Drafter:
    """A drafting method: its options as static fields, and pure functions. Hashable.

    A subclass must define ``propose`` and ``depth``. A method that keeps a state between rounds
    also defines ``init`` and ``commit``. All other members have defaults: they describe a method
    without the feature in question.

    Attributes:
      needs: the models or the head that the method drafts with. A method that needs any may run on
        devices of its own, see ``apart``. There ``target`` has the configuration and, for a head,
        the embeddings, the final norm and ``logits``; ``state.cache`` has a length and no layers,
        and ``scored`` has the taps alone.
      reads_target: whether the method drafts with the target's layers and cache. It then runs on the
        target's devices only.
      with_encoder: whether the method drafts for encoder-decoders too.
      can_rest: whether the method proposes chains of ``num_speculative_tokens`` tokens and may skip
        any round. ``Switch`` and ``Adaptive`` accept such methods only.
    """

    needs: ClassVar[Nothing | Models | TrainedHead | TargetCopy] = Nothing()
    reads_target: ClassVar[bool] = False
    with_encoder: ClassVar[bool] = False
    can_rest: ClassVar[bool] = False

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
        """The method's state after the prompt, a pytree.

        Args:
          tokens, lengths: int32 [B, T] and [B], the prompts.
          taps: float32 [B, T, E] for each of ``self.taps``. The last token of a prompt has none.
          chunk, dtype: see ``prefill``.
        """
        return ()

    def reads(self, target: Model, draft, tokens: jax.Array, lengths: jax.Array, taps: tuple) -> tuple[Any, Any] | None:
        """The model, see ``prefill.Reads``, with which ``init`` reads prompts, and the int32 [B] tokens that it reads.

        The arguments are those of ``init``. A method that has this function takes ``filled`` in
        ``init``: the prompts, already read in chunks (``prefill.Filled``), or None. None, the
        default, stands for a method whose ``init`` reads nothing, or all at once.
        """
        return None

    def propose(self, target: Model, draft, state: DecodeState, key: jax.Array) -> tuple[Tree, Any]:
        """A batched tree below ``state.root``, and the method's state for ``commit``.

        ``commit`` finds that state in ``state.drafter``. ``key``: typed keys [B].
        """
        raise TypeError(f"{type(self).__name__} must define propose")

    def commit(self, target: Model, draft, state: DecodeState, tree: Tree, scored: Scored, verdict: Verdict) -> Any:
        """The method's state for the next round.

        ``state`` is the batch before this round's commit: its cache does not hold the path yet.
        """
        return ()

    def computed_layers(self, drafted) -> tuple | None:
        """Results of the target's first layers for the nodes, if ``propose`` has run these layers.

        ``drafted`` is the state that ``propose`` returned. ``Model`` describes the results.
        """
        return None

    @property
    def shapes(self) -> tuple[Any, ...]:
        """The shapes of drafts, ascending, of which ``choose`` picks one for each round: hashable values.

        A chain's shape may be its length. Empty for a method with one shape.
        """
        return ()

    @property
    def choices(self) -> tuple[Any, ...]:
        """The shape of each choice. A method may have several choices of one shape."""
        return self.shapes

    def begin(self, target: Model, draft, state: DecodeState) -> tuple[DecodeState, Any, jax.Array]:
        """What a method with several shapes does before a round of a shape.

        Returns the state; a pytree for ``propose``, which finds it in ``state.drafter.prepared``, or
        None; and int32, the index in ``choices`` for the round.
        """
        return state, None, self.choose(state)

    def holds(self, state: DecodeState) -> jax.Array | None:
        """Bool, whether the next round has the shape of the last one, without ``begin``.

        Called on the result of ``at_shape``. In a round without ``begin``, ``state.drafter.prepared`` is all zeros.
        None, the default, stands for a shape that is chosen anew for each round.
        """
        return None

    def choose(self, state: DecodeState) -> jax.Array:
        """Int32, the index in ``choices`` for the next round."""
        raise TypeError(f"{type(self).__name__} has shapes and must define choose")

    def at_shape(self, shape: Any) -> "Drafter":
        """The same method, restricted to drafts of one of its ``shapes``."""
        return self

    @property
    def at_largest_shape(self) -> "Drafter":
        """The method, restricted to its largest drafts if it chooses a shape for each round."""
        return self.at_shape(max(self.shapes)) if self.shapes else self

    @property
    def varies(self) -> bool:
        """Whether the work of a round varies, because the method chooses a shape or may stop drafting early."""
        return bool(self.shapes)

    def catch_up(self, draft, state: DecodeState) -> Any:
        """The method's state after it has read the tokens of the rounds that it skipped.

        ``Switch``, ``Adaptive`` and ``Merged`` call this before ``propose``, because they may skip
        the method in a round, or tell it that fewer of its tokens were accepted.
        """
        return state.drafter

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

    def describe_arms(self, parameters, batch: int, context: int, sampled: bool) -> list[tuple[str, float]]:
        """The name of each of ``choices``, and the time of its round in plain rounds.

        Empty for a method that does not name them. ``batch``, ``context`` and ``sampled`` are those of
        ``Ran``.
        """
        return []

    def evidence(self, own) -> Any:
        """The sums over all rounds so far that ``learn`` reads, leaves [B, ...], from the method's state."""
        return ()

    def learn(self, parameters, ran: Ran) -> Any:
        """The parameters, updated on the host after a run of rounds."""
        return parameters
