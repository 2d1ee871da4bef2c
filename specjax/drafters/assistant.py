"""Chains from an assistant that reads the target's cache (Gemma 4)."""

import dataclasses

import jax
import jax.numpy as jnp

from ..errors import RequestError
from ..heads.assistant import sources
from ..loop.drafter import TrainedHead
from ..models.config import ModelConfig
from .parts import chains
from .parts.draft_sampling import DrawnChain
from .parts.head_drafter import HeadDrafter


@dataclasses.dataclass(frozen=True)
class AssistantDrafter(DrawnChain, HeadDrafter):
    """Draws a chain with an assistant.

    The state between rounds is the feature of the token before the root.

    Attributes:
      num_speculative_tokens: the length of the chain.
    """

    num_speculative_tokens: int = 4
    needs = TrainedHead("assistant")
    reads_target = True

    def check(self, config: ModelConfig) -> None:
        mend = "use an assistant made for the target"
        for i, (wanted, source) in enumerate(zip(self.head.mixers, sources(self.head, config))):
            if source is None:
                window = "an attention window" if wanted.scores.window else "no attention window"
                raise RequestError(
                    f"layer {i} of the assistant has {window}, and no layer of the target with keys has one like it; "
                    f"{mend}"
                )
            number, layer = source
            if (wanted.num_kv_heads, wanted.head_dim) != (layer.num_kv_heads, layer.head_dim):
                raise RequestError(
                    f"layer {i} of the assistant reads {wanted.num_kv_heads} key heads of size {wanted.head_dim}, and "
                    f"layer {number} of the target has {layer.num_kv_heads} of size {layer.head_dim}; {mend}"
                )

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype) -> jax.Array:
        """The feature float32 [B, 1, E] of the last token but one."""
        before = jnp.maximum(lengths - 2, 0)[:, None, None]
        return draft.fuse(target, tuple(jnp.take_along_axis(tap, before, 1) for tap in taps))

    def propose(self, target, draft, state, key):
        drawing = self.drafting(state)

        def read(i, token, feature):
            hidden = draft(target, token, feature, state.cache)
            return draft.logits(target, hidden), draft.next_features(hidden)

        chain = chains.begin(drawing, self.depth, target.config.vocab_size)
        chain, _, _ = chains.grow(chain, 0, read, state.drafter, drawing, key)
        return chain.tree, state.drafter

    def commit(self, target, draft, state, tree, scored, verdict) -> jax.Array:
        last = jnp.take_along_axis(verdict.path, jnp.maximum(verdict.length - 1, 0)[:, None], 1)[..., None]
        return draft.fuse(target, tuple(jnp.take_along_axis(tap, last, 1) for tap in scored.taps))
