"""The target drafts a chain without some of its sub-layers (Draft & Verify, Zhang et al. 2024)."""

import dataclasses
from typing import ClassVar

from ..checks import per_row, whole
from ..errors import RequestError
from ..models.config import ModelConfig
from ..models.decoder import Skip
from .parts import self_chain


@dataclasses.dataclass(frozen=True)
class LayerSkip:
    """Draws tokens one after another from the target without a set of attention and MLP sub-layers, under the same sampling options.

    Needs no training; which sub-layers can be missed is a matter of search, see ``planning.layers``. Not to be confused with the paper
    called LayerSkip, which is ``EarlyExit``.

    Attributes:
      skip_attention, skip_mlp: the layers that lose these sub-layers, from 0; where neither is given, every other layer between
        the first and the last loses both.
      num_speculative_tokens: the longest chain.
      draft_confidence: drafting stops after a token drawn where the likeliest one was less probable than this. It is only the first
        value, and follows what is accepted; see ``self_chain``, also for why the output stays exact. 0 never stops.
    """

    skip_attention: tuple[int, ...] | None = None
    skip_mlp: tuple[int, ...] | None = None
    num_speculative_tokens: int = 8
    draft_confidence: float = 0.8
    sampled: ClassVar[str] = "chain"
    taps: ClassVar[tuple[int, ...]] = ()
    needs_draft: ClassVar[bool] = False

    def __post_init__(self):
        whole("num_speculative_tokens", self.num_speculative_tokens)
        per_row("draft_confidence", self.draft_confidence, 1, float, most=1)
        for name in ("skip_attention", "skip_mlp"):
            for layer in getattr(self, name) or ():
                whole(name, layer, 0)

    @property
    def depth(self) -> int:
        return self.num_speculative_tokens

    def skip(self, config: ModelConfig) -> Skip:
        """What the part that drafts lacks of a model. Raises RequestError where that is nothing or all."""
        L = config.num_layers
        attention, mlp = self.skip_attention, self.skip_mlp
        if attention is None and mlp is None:
            attention = mlp = tuple(range(1, L - 1, 2)) or (L - 1,)
        skip = Skip(tuple(attention or ()), tuple(mlp or ()))
        for name, layers in (("skip_attention", skip.attention), ("skip_mlp", skip.mlp)):
            if layers and max(layers) >= L:
                raise RequestError(f"{name} names layer {max(layers)}, and the target has the layers 0 to {L - 1}")
        if not skip.attention + skip.mlp:
            raise RequestError("layer_skip leaves nothing out; name layers in skip_attention or skip_mlp")
        if len({*skip.attention}) == len({*skip.mlp}) == L:
            raise RequestError("layer_skip leaves out every sub-layer; take some from skip_attention or skip_mlp")
        return skip

    def check(self, config: ModelConfig) -> None:
        self.skip(config)

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        return self_chain.init(lengths.size, self.draft_confidence)

    def draft(self, target, draft, state, key):
        return self_chain.draft(target, self.skip(target.config), state, key, self.depth)

    def commit(self, target, draft, state, tree, out, verdict):
        return self_chain.commit(state, tree, verdict, self.depth)
