"""Chains drawn from a part of the target: shared by early exits and skipped layers.

The part reads the target's own cache, which the whole target computed. It keeps the rows of its
drafts outside the cache. The verify pass computes the true rows, so no row of the part outlives the
round.

Below the first layer that skips a sub-layer, the part computes the same as the target. The verify
pass reuses these layers, and begins at the first layer with a skipped sub-layer (LayerSkip,
Elhoushi et al. 2024, section 4.3).

Drafting may stop when the part is unsure (Draft & Verify, Zhang et al. 2024, adaptive
draft-exiting). The output stays exact. The decision to draw another token depends on the tokens
drafted before and on their distributions, never on that token itself. Given the tokens before it,
each token is thus either drawn from its q or not drawn at all. The proofs of the rules hold for
chains of any length.
"""

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from ...core.cache import Rows
from ...core.checks import per_row
from ...errors import RequestError
from ...loop.drafter import Drafter
from ...models.config import ModelConfig
from ...models.decoder import Decoder, Skip
from . import chains
from .draft_sampling import DrawnChain


class Confidence(struct.PyTreeNode):
    """The confidence at which rows stop drafting.

    Attributes:
      threshold: float32 [B]. A row stops after a token if the likeliest token at its place is less
        probable than this.
      matched: float32 [B], the moving average of accepted / drafted.
    """

    threshold: jax.Array
    matched: jax.Array


class SelfChainState(struct.PyTreeNode):
    """The state between rounds.

    Attributes:
      confidence: the rows' thresholds; None for chains of full length.
      computed: from ``propose`` to ``commit``, results of the layers that the verify pass need not
        run; see ``Model``.
    """

    confidence: Confidence | None = None
    computed: tuple | None = None


@dataclasses.dataclass(frozen=True)
class SelfChain(DrawnChain):
    """A method that draws a chain from the target without some of its sub-layers.

    The target's sampling options apply. A subclass has the fields ``num_speculative_tokens`` and
    ``draft_confidence``, and defines in ``skip`` the sub-layers to skip.
    """

    reads_target = True

    if TYPE_CHECKING:  # a field of the subclasses

        @property
        def draft_confidence(self) -> float: ...

    def __post_init__(self):
        super().__post_init__()
        per_row("draft_confidence", self.draft_confidence, 1, float, most=1)

    def skip(self, config: ModelConfig) -> Skip:
        """The sub-layers to skip. Raises RequestError if the part would skip none or all."""
        raise TypeError(f"{type(self).__name__} must define skip")

    def check(self, config: ModelConfig) -> None:
        skipped = self.skip(config).attention
        for i, layer in enumerate(config.layers):
            source = layer.mixer.source
            if i not in skipped and source in skipped:
                raise RequestError(
                    f"layer {i} of the target reads the keys and values of layer {source}, whose attention would be "
                    "skipped; keep it, or skip both"
                )

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype) -> SelfChainState:
        if not self.draft_confidence:
            return SelfChainState()
        B = lengths.size
        return SelfChainState(Confidence(jnp.full(B, self.draft_confidence, jnp.float32), jnp.zeros(B)))

    def propose(self, target: Decoder, draft, state, key):
        # 1. Name the layers that drafting skips.
        state = self.drafting(state)
        skip = self.skip(target.config)
        depth = self.depth
        n = state.cache.length
        cache = state.cache
        config = target.config
        first = min(skip.attention + skip.mlp)  # nothing is skipped below this layer
        place = jnp.arange(depth + 1)
        B = n.size
        P = depth + 1

        # 2. Define the forward of one node.
        def read(i, token, carry, skip=skip):
            """Reads node i.

            ``carry``: the input of layer ``first``, [B, P, E], and the rows of all nodes so far.
            """
            entering, rows = carry
            position = (n + i)[:, None]
            seen = jnp.broadcast_to(jnp.append(place < i, True), (B, 1, P + 1))
            positions = jnp.concatenate([n[:, None] + place, position], 1)
            out = target(
                token, position, seen, cache, rows=rows.layers, row_positions=positions, skip=skip, taps=(first,)
            )
            entering = lax.dynamic_update_slice_in_dim(entering, out.taps[0], i, 1)
            return out.hidden, (entering, rows.put(out.rows, 1, i))

        def follow(i, token, carry):
            hidden, carry = read(i, token, carry)
            return target.logits(hidden), carry

        # 3. Grow the chain.
        chain = chains.begin(state, depth, config.vocab_size)
        carry = (jnp.zeros((B, P, config.hidden_size)), cache.blank_rows(P, skip.attention))
        confidence = state.drafter.confidence
        least = None if confidence is None else confidence.threshold
        chain, (entering, rows), last = chains.grow(chain, 0, follow, carry, state, key, least)
        # 4. Read the newest node below the first skipped layer.
        if first == 0:
            return chain.tree, SelfChainState(confidence)
        above = tuple(range(first, config.num_layers))  # the newest node has not been read below ``first``
        carry = entering, Rows(rows.layers[:first] + (None,) * len(above))
        newest = lax.dynamic_slice_in_dim(chain.tokens, last, 1, 1)
        _, (entering, rows) = read(last, newest, carry, Skip(above, above))
        return chain.tree, SelfChainState(confidence, (entering, rows.layers[:first]))

    def commit(self, target, draft, state, tree, scored, verdict) -> SelfChainState:
        """Adapts the threshold to the share of accepted drafts, with Draft & Verify's constants."""
        confidence = state.drafter.confidence
        if confidence is None:
            return SelfChainState()
        drafted = tree.valid.sum(-1) - 1
        rate = (verdict.length - 1) / jnp.maximum(drafted, 1)
        matched = 0.5 * confidence.matched + 0.5 * rate
        change = jnp.where(matched < 0.9, 0.01, jnp.where(drafted < self.depth, -0.01, 0.0))
        threshold = 0.9 * confidence.threshold + 0.1 * (confidence.threshold + change)
        return SelfChainState(Confidence(threshold, matched))

    def rest(self, target, draft, state, tree, scored, verdict) -> SelfChainState:
        return state.drafter


def skips_layers(drafter: Drafter) -> bool:
    """Whether the method drafts with some of the target's own layers.

    Its work then depends on their number.
    """
    return isinstance(drafter, SelfChain)


def stops_early(drafter: Drafter) -> bool:
    """Whether the method stops drafting in a round by the confidence of its tokens."""
    return isinstance(drafter, SelfChain) and bool(drafter.draft_confidence)
