"""The drafters that a boost tries: what each costs, and how it is trained."""

import dataclasses
from collections.abc import Callable
from typing import Any

from ...models.config import ModelConfig

_VOCABULARY_SHARE, _MULTIPLE = 10, 1024
"""A trained head drafts only the most frequent tokens: a tenth of the vocabulary, rounded down to a
multiple of 1,024, and at least 4,096. Fewer tokens make its output matrix cheaper."""

_BATCH = 8
_LENGTH = 256

_FEATURES = 16 << 30
"""The most bytes of the target's features on disk. A training reads each window several times."""

_TRAINING = {"batch": _BATCH, "length": _LENGTH, "prompts": 0}


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A kind of drafter.

    Attributes:
      method: the method that drafts with it.
      acceptance: the share of drafted tokens that good drafters of this kind have accepted, at the
        first place of a draft. It decides whether the kind may pay, before anything is trained.
      cost: the weights that it reads for a drafted token, as a share of the target's.
      recipe: the recipe of its training, without steps; None where nothing is trained.
    """

    method: str
    acceptance: float
    cost: Callable[[ModelConfig], float]
    recipe: Callable[[ModelConfig], dict[str, Any]] | None = None

    @property
    def is_trained(self) -> bool:
        return self.recipe is not None


def _nothing(config: ModelConfig) -> float:
    return 0.0


def _in_four_bits(config: ModelConfig) -> float:
    """The copy has 4 bits a weight, and a scale and an offset for 32; the target has 16 or more."""
    return 6 / 16


def _head_cost(layers: int, outputs: Callable[[ModelConfig], int]) -> Callable[[ModelConfig], float]:
    """The cost of ``layers`` of the target's layers and an output matrix of some tokens."""

    def cost(config: ModelConfig) -> float:
        matrices = config.vocab_size * config.hidden_size
        layer = (config.num_weights - matrices * (1 if config.tie_embeddings else 2)) / config.num_layers
        read = config.num_weights - (0 if config.tie_embeddings else matrices)
        return (layers * layer + outputs(config) * config.hidden_size) / read

    return cost


def _frequent(config: ModelConfig) -> int:
    return min(config.vocab_size, max(config.vocab_size // (_VOCABULARY_SHARE * _MULTIPLE), 4) * _MULTIPLE)


def _all(config: ModelConfig) -> int:
    return config.vocab_size


def draft_layers(config: ModelConfig) -> int:
    """The layers of a draft that is cut from the target."""
    return max(config.num_layers // 10, 1)


def _eagle3(config: ModelConfig) -> dict[str, Any]:
    head = {"from_target": True, "draft_vocab_size": _frequent(config)}
    return _TRAINING | {"kind": "eagle3", "head": head, "loss": {"steps": 3}, "features": _FEATURES}


def _medusa(config: ModelConfig) -> dict[str, Any]:
    return _TRAINING | {"kind": "medusa", "head": {"num_heads": 3}}


def _mtp(config: ModelConfig) -> dict[str, Any]:
    return _TRAINING | {"kind": "mtp", "head": {"from_target": True}, "loss": {"steps": 3}}


def _block(config: ModelConfig) -> dict[str, Any]:
    return _TRAINING | {"kind": "block", "head": {"num_layers": 1, "block_size": 5, "from_target": True}}


def _draft(config: ModelConfig) -> dict[str, Any]:
    return _TRAINING | {"kind": "draft", "loss": {"forward_kl": 1.0}}


CANDIDATES = {
    "ngram": Candidate("ngram", 0.35, _nothing),
    "suffix": Candidate("suffix", 0.35, _nothing),
    "token_recycling": Candidate("token_recycling", 0.4, _nothing),
    "quantized_self": Candidate("quantized_self", 0.85, _in_four_bits),
    "eagle3": Candidate("eagle3", 0.65, _head_cost(1, _frequent), _eagle3),
    "draft": Candidate("draft_model", 0.65, lambda config: _head_cost(draft_layers(config), _all)(config), _draft),
    "mtp": Candidate("mtp", 0.65, _head_cost(1, _all), _mtp),
    "medusa": Candidate("medusa", 0.55, _head_cost(0, _all), _medusa),
    "block": Candidate("block", 0.6, _head_cost(1, _all), _block),
}
"""The kinds by their names on the command line, cheapest first."""

USUAL = ("ngram", "suffix", "token_recycling", "quantized_self", "eagle3", "draft")
"""The kinds that are tried where the user names none."""
