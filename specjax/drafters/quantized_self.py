"""The target drafts with its own weights in fewer bits (QuantSpec, 2502.10424, section 4)."""

import dataclasses

import jax.numpy as jnp

from ..errors import RequestError
from ..loop.drafter import TargetCopy
from ..models.decoder import Decoder
from ..models.quantised_weights import SCHEMES
from ..models.rounding import quantise_module
from .parts import chains
from .parts.draft_sampling import DrawnChain


@dataclasses.dataclass(frozen=True)
class QuantizedSelf(DrawnChain):
    """Draws tokens one after another from a copy of the target with quantised weights.

    The copy reads the target's own cache, which the target's full weights computed, and keeps the
    rows of its drafts outside. It needs no prefill and no cache of its own.

    Groups of int4 have an offset besides the scale: a fifth more bytes, and more accepted drafts.

    Attributes:
      draft_scheme: the form of the copy's weights: int4, int8 or fp8.
      num_speculative_tokens: tokens that are drafted in a round.
    """

    draft_scheme: str = "int4"
    num_speculative_tokens: int = 4
    needs = TargetCopy()
    reads_target = True

    def __post_init__(self):
        if self.draft_scheme not in SCHEMES:
            raise RequestError(f"draft_scheme is {self.draft_scheme!r}; it must be one of {', '.join(SCHEMES)}")
        super().__post_init__()

    def parameters(self, draft: Decoder, vocab_size: int) -> Decoder:
        """The quantised copy of ``draft``, the target."""
        if not isinstance(draft, Decoder):
            raise RequestError("quantized_self copies a Decoder of specjax, and the target is another model")
        return quantise_module(draft, self.draft_scheme, offset=True)

    def propose(self, target, draft, state, key):
        state = self.drafting(state)
        n = state.cache.length
        cache = state.cache
        B = n.size
        P = self.depth + 1
        place = jnp.arange(P)

        def read(i, token, rows):
            """The copy's logits after node i, which is at position n + i."""
            position = (n + i)[:, None]
            seen = jnp.broadcast_to(jnp.append(place < i, True), (B, 1, P + 1))
            positions = jnp.concatenate([n[:, None] + place, position], 1)
            out = draft(token, position, seen, cache, rows=rows.layers, row_positions=positions)
            return draft.logits(out.hidden), rows.put(out.rows, 1, i)

        chain = chains.begin(state, self.depth, target.config.vocab_size)
        chain, _, _ = chains.grow(chain, 0, read, cache.blank_rows(P), state, key)
        return chain.tree, ()
