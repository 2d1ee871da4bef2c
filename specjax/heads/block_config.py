"""The configuration of a block head, and the form that it shares with recipes of training."""

import dataclasses
from typing import Any, ClassVar

from ..errors import ConfigError
from ..models.config import ModelConfig
from .base import HeadConfig
from .corrections import MARKOV


def bounded(default: int, least: int, most: int) -> Any:
    """A field for a number of a recipe, which training bounds."""
    return dataclasses.field(default=default, metadata={"least": least, "most": most})


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockForm:
    """The form of a block head, as configurations and recipes of training give it.

    Attributes:
      block_size: the number of places in a block, the root's included.
      causal: whether a place sees only itself and the places before it (JetSpec).
      from_root: whether a place predicts the token *after* it, so that the root's place predicts
        too (DSpark). Otherwise each place predicts its own token.
      markov_rank: the rank of the correction by the token before (DSpark, DFlash 2); 0 for no
        correction.
      markov: the kind of correction, one of ``MARKOV``.
      confidence: whether the head has a confidence head.
      candidates: with the correction "selector", the number of tokens that a drawn token is chosen
        from. They are the likeliest before the correction.
      conv_taps: the number of places that a convolution reads, its own included (DFlash 2); 0 for
        no convolutions, see ``ConvolvedLayer``.
      conv_group: the number of channels that share the dynamic part of a kernel.
      refiner_rank: the rank of the correction by a guess of the block (XPress); 0 for no
        correction.
      refiner_size: the width of the refiner's feed-forward.
    """

    block_size: int = bounded(16, 2, 1024)
    causal: bool = False
    from_root: bool = False
    markov_rank: int = bounded(0, 0, 10**5)
    markov: str = "vanilla"
    confidence: bool = False
    candidates: int = bounded(0, 0, 4096)
    conv_taps: int = bounded(0, 0, 1024)
    conv_group: int = bounded(16, 1, 10**5)
    refiner_rank: int = bounded(0, 0, 10**5)
    refiner_size: int = bounded(512, 1, 10**6)


@dataclasses.dataclass(frozen=True)
class BlockConfig(BlockForm, HeadConfig):
    """The configuration of a block head.

    Attributes:
      layers: its decoder layers; ``vocab_size`` is the target's.
      target_size, target_layers: the target's width and depth.
      taps: the layers of the target whose inputs the head reads.
      mask_token: the token at the places that are not known yet.
      confidence_markov: whether the confidence head also reads the Markov embedding of the token
        before.
      own_embedding, own_head: whether the head has an embedding and an output matrix of its own;
        otherwise it uses the target's.
      draft_vocab_size: the number of tokens that the head knows; None for all. A smaller number
        needs an output matrix of its own.
      causal_windows: whether layers with an attention window are causal even if the other layers
        are not (speculators).
      refiner_passes: how often the guess is corrected.

    The other attributes are as in ``BlockForm``.
    """

    layers: ModelConfig
    target_size: int
    target_layers: int
    taps: tuple[int, ...]
    mask_token: int = dataclasses.field()  # not the default of the base class
    _: dataclasses.KW_ONLY
    confidence_markov: bool = False
    own_embedding: bool = False
    own_head: bool = False
    draft_vocab_size: int | None = None
    causal_windows: bool = False
    refiner_passes: int = 6
    kind: ClassVar[str] = "block"

    def __post_init__(self):
        if self.draft_vocab_size is None:
            object.__setattr__(self, "draft_vocab_size", self.vocab_size)
        own = self.own_embedding and self.own_head
        width = self.layers.hidden_size
        Vd = self.draft_vocab_size or self.vocab_size
        if width != self.target_size and not own:
            raise ConfigError(
                f"the block head is {width} wide and its target {self.target_size}: "
                "it needs an embedding and an output matrix of its own"
            )
        if self.markov not in MARKOV:
            raise ConfigError(f"the Markov correction {self.markov!r} is not supported; use one of {', '.join(MARKOV)}")
        if self.confidence_markov and not self.markov_rank:
            raise ConfigError("the block head's confidence reads a Markov embedding, and markov_rank is 0; raise it")
        if not 0 < Vd <= self.vocab_size:
            raise ConfigError(f"draft_vocab_size is {Vd}; it must be from 1 to {self.vocab_size}")
        if Vd < self.vocab_size and not self.own_head:
            raise ConfigError(
                f"the block head knows {Vd} of {self.vocab_size} tokens; it needs an output matrix of its own"
            )
        if self.drafts < 1:
            raise ConfigError(f"block_size {self.block_size} leaves no place to draft at; use a larger one")
        if self.conv_taps and width % self.conv_group:
            raise ConfigError(f"groups of {self.conv_group} channels do not divide the width {width}; use a divisor")
        if bool(self.candidates) != (self.markov_rank > 0 and self.markov == "selector"):
            raise ConfigError("candidates belong to the Markov correction 'selector'; give both, or leave both out")
        if self.candidates and not self.candidates <= Vd == self.vocab_size:
            raise ConfigError(
                f"a path selector with {self.candidates} candidates needs them in a draft vocabulary of all "
                f"{self.vocab_size} tokens; the head knows {Vd}"
            )
        if self.refiner_rank and (self.markov_rank or self.confidence):
            raise ConfigError("a block head with a refiner has no Markov and no confidence head; leave them out")

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        context = {"fc": ("write", "taps"), "hidden_norm": ("norm",)}
        gate = "same, read" if self.markov == "rnn" else "read, same"
        markov = {"first": ("same", "same"), "second": ("same", "same"), "gate": ("same", gate), "gate_bias": ("same",)}
        return context | markov | {"confidence": ("same", "read, same"), "confidence_bias": ("same",)}

    @property
    def part_not_grown(self) -> str:
        if self.candidates:
            return "a path selector"
        if self.conv_taps:
            return "convolutions"
        return "a refiner" if self.refiner_rank else ""

    @property
    def vocab_size(self) -> int:
        return self.layers.vocab_size

    @property
    def drafts(self) -> int:
        """The number of tokens that one block drafts."""
        return self.block_size - (not self.from_root)
