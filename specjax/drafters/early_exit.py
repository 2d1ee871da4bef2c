"""The target's first layers and its own head draft a chain (LayerSkip, Elhoushi et al. 2024, section 4.3)."""

import dataclasses
from typing import ClassVar

from ..checks import per_row, whole
from ..errors import RequestError
from ..models.config import ModelConfig
from ..models.decoder import Skip
from .parts import self_chain


@dataclasses.dataclass(frozen=True)
class EarlyExit:
    """Draws tokens one after another from what the target's final norm and head say after its first ``exit_layer`` layers, under the
    same sampling options as the target. The verify pass runs the other layers only.

    Works with any model, and well with one that was trained to exit early.

    Attributes:
      exit_layer: how many layers draft; half of them by default.
      num_speculative_tokens: the longest chain.
      draft_confidence: drafting stops after a token drawn where the likeliest one was less probable than this. It is only the first
        value, and follows what is accepted; see ``self_chain``, also for why the output stays exact. 0 never stops.
    """

    exit_layer: int | None = None
    num_speculative_tokens: int = 6
    draft_confidence: float = 0.0
    sampled: ClassVar[str] = "chain"
    taps: ClassVar[tuple[int, ...]] = ()
    needs_draft: ClassVar[bool] = False

    def __post_init__(self):
        whole("num_speculative_tokens", self.num_speculative_tokens)
        per_row("draft_confidence", self.draft_confidence, 1, float, most=1)
        if self.exit_layer is not None:
            whole("exit_layer", self.exit_layer)

    @property
    def depth(self) -> int:
        return self.num_speculative_tokens

    def skip(self, config: ModelConfig) -> Skip:
        """What the part that drafts lacks of a model. Raises RequestError where that is nothing or all."""
        L = config.num_layers
        exit_layer = L // 2 if self.exit_layer is None else self.exit_layer
        if not 1 <= exit_layer < L:
            raise RequestError(
                f"exit_layer must be 1 to {L - 1} for a target of {L} layers, not {exit_layer}"
                if L > 1
                else "early_exit needs a target of at least two layers, and this one has one; use another method"
            )
        above = tuple(range(exit_layer, L))
        return Skip(above, above)

    def check(self, config: ModelConfig) -> None:
        self.skip(config)

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        return self_chain.init(lengths.size, self.draft_confidence)

    def draft(self, target, draft, state, key):
        return self_chain.draft(target, self.skip(target.config), state, key, self.depth)

    def commit(self, target, draft, state, tree, out, verdict):
        return self_chain.commit(state, tree, verdict, self.depth)
