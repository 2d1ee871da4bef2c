"""A chain from the target itself, which reads a part of its key/value cache.

With attention sinks and a window it is the drafting of MagicDec (Chen et al. 2024). With
chunks that the query chooses it is the retrieval of TriForce (Sun et al. 2024).
"""

import dataclasses

import jax.numpy as jnp

from ..core.cache import KVCache
from ..models.decoder import Decoder
from .parts import chains
from .parts.draft_sampling import DrawnChain
from .parts.partial_reader import SELF, PartialReader, add_node


@dataclasses.dataclass(frozen=True)
class PartialCache(PartialReader, DrawnChain):
    """Draws tokens one after another from the target with a part of its cache.

    For long texts and large batches, in which a step reads more bytes of the cache than of the
    weights. The method needs no training.

    Attributes:
      num_speculative_tokens: tokens that are drafted in a round.
    """

    num_speculative_tokens: int = 4

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype) -> KVCache | None:
        B, T = tokens.shape
        return self.blank_means(target.config, B, T, dtype)

    def propose(self, target: Decoder, draft, state, key):
        state = self.drafting(state)
        means = self.average(state.drafter, state.cache)
        root, part = self.read_root(target, state, means, self.depth)
        chain = chains.begin(state, self.depth, target.config.vocab_size)
        chain = chains.draw(chain, target.logits(root.hidden), 0, state, key)
        part = add_node(part, root)

        def read(i, token, part):
            out = target(token, part.length[:, None], jnp.array(SELF), part)
            return target.logits(out.hidden), add_node(part, out)

        chain, _, _ = chains.grow(chain, 1, read, part, state, key)
        return chain.tree, means

    def commit(self, target, draft, state, tree, scored, verdict) -> KVCache | None:
        return state.drafter
