"""What a head is, and what those have in common that draft from features (EAGLE, multi-token prediction).

Alignment, which is where implementations go wrong: row i of a feature head reads the target's feature of token i and the *next*
token, i + 1, at position i; what it says is about token i + 2. Tokens are shifted by one, features are not. Of several modules each
shifts tokens by one more.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import jax
from flax import nnx

from ..cache import KVCache
from ..models.config import ModelConfig
from ..models.decoder import Decoder, Output


@dataclasses.dataclass(frozen=True, eq=False)
class Head:
    """A loaded head.

    Attributes:
      module: its parameters, with the forward.
      config: its shapes and variants, one of the configurations in this package; hashable.
      name: what it was loaded as.
      layout: how its checkpoint was written, see ``layouts``; empty for one that was not loaded.
    """

    module: nnx.Module
    config: Any
    name: str
    layout: str = ""


class HeadConfig(Protocol):
    """What all configurations have. ``kind`` names the family; ``target_size``, ``target_layers`` and ``vocab_size`` are those of the
    target that the head was made for; ``taps`` are the layers whose inputs it reads, see ``Decoder``."""

    kind: ClassVar[str]
    vocab_size: int
    target_size: int
    target_layers: int
    taps: tuple[int, ...]


class AfterLastLayer:
    """What follows for a configuration whose head reads what leaves the target's last layer, and whose ``layers`` are as wide as the target."""

    layers: ModelConfig
    target_layers: int

    @property
    def taps(self) -> tuple[int, ...]:
        return (self.target_layers,)

    @property
    def target_size(self) -> int:
        return self.layers.hidden_size

    @property
    def vocab_size(self) -> int:
        return self.layers.vocab_size


class FeatureHead(Protocol):
    """A head that drafts token by token from features and has a cache of its own.

    Attributes:
      config: with ``layers``, the ModelConfig of a module's decoder layers, by which its cache is made.
      modules: those that follow one another, mostly the head itself alone. Module k, counted from 0, reads the hidden states of module
        k - 1, the first one the features, and in each row the token one further on; the last continues its own hidden states.
    """

    config: Any
    modules: Sequence["FeatureModule"]

    def fuse(self, target: Decoder, taps: tuple) -> jax.Array:
        """The features float32 [B, N, E] of tokens whose taps are these: what takes the place of the head's own hidden states."""


class FeatureModule(Protocol):
    """What reads the rows of a FeatureHead."""

    def __call__(
        self, target: Decoder, tokens, features, positions, mask, cache: KVCache | None = None, *, rows=None, row_positions=None
    ) -> Output:
        """Continues N rows.

        Args:
          tokens: int32 [B, N], in row i the token after that of the feature; in module k the token k further on.
          features: float32 [B, N, E], real ones from ``fuse``, or ``hidden`` of an earlier call.
          positions: int32 [B, N], those of the features.
          mask, rows, row_positions: as in ``Decoder``.
          cache: as in ``Decoder``, with the layers of all modules one after another.

        Returns an Output whose ``hidden`` float32 [B, N, E] takes the place of the next tokens' features, and whose rows are the module's.
        """

    def logits(self, target: Decoder, hidden: jax.Array) -> jax.Array:
        """Float32 [..., V] over the target's vocabulary; ``LACKING`` where the head does not know a token."""
