"""A chain from a second, smaller language model.

The method is Algorithm 1 of Leviathan et al. 2023, and Chen et al. 2023.
"""

import dataclasses

import jax.numpy as jnp

from ..core.tree import node_count
from ..loop.drafter import Models
from ..loop.prefill import catch_up
from .parts import chains
from .parts.draft_sampling import DrawnChain
from .parts.member import Member
from .parts.readers import ReaderState, Reading
from .parts.token_reader import TokenReader


@dataclasses.dataclass(frozen=True)
class DraftModel(DrawnChain, Member, Reading):
    """Draws gamma tokens one after another from the draft's distributions q_1 ... q_gamma.

    gamma is ``num_speculative_tokens``. The draft has the sampling options of the request, except
    for those of ``Drawing``. A round begins by reading the newest two tokens, see ``TokenReader``.

    Attributes:
      num_speculative_tokens: tokens that are drafted in a round, at most.
      draft_ahead: for a draft on devices of its own, guesses of the next token after each number of
        accepted tokens. While the target verifies, the draft drafts the next round for each guess,
        see ``parts.draft_ahead``. 0 drafts nothing ahead.
    """

    num_speculative_tokens: int = 5
    draft_ahead: int = 0
    needs = Models()
    with_encoder = True
    reader = TokenReader()

    def __post_init__(self):
        node_count("draft_ahead", self.draft_ahead, 0)
        super().__post_init__()

    def catch_up(self, draft, state) -> ReaderState:
        """Reads all tokens but the newest two."""
        own = state.drafter
        length = jnp.maximum(state.cache.length - 1, 0)
        return own.replace(cache=catch_up(draft, own.cache, state.tokens, length))

    def propose(self, target, draft, state, key, least=None, most=None):
        """See ``Drafter``.

        Args:
          least: float32 [B], the confidence at which a row stops.
          most: int32, the number of tokens of this round; by default ``num_speculative_tokens``.
        """
        state = self.drafting(state)
        B = state.root.size
        gamma = self.depth
        first = self.reader.begin(target, draft, state, gamma)
        chain = chains.begin(state, gamma, target.config.vocab_size)
        chain = chains.draw(chain, draft.logits(first.hidden), 0, state, key, least)  # x_1 ~ q_1

        R = first.seen.shape[1]
        node = jnp.arange(1, gamma)
        at = jnp.concatenate([first.positions, first.root[:, None] + node], 1)

        def read(i, token, rows):
            """Logits of q_{i+1}, after the drafted token x_i at position n + i."""
            earlier = jnp.broadcast_to(node < i, (B, gamma - 1))
            seen = jnp.concatenate([first.seen, earlier, jnp.ones((B, 1), bool)], 1)[:, None]
            position = (first.root + i)[:, None]
            known = dict(rows=rows.layers, row_positions=jnp.concatenate([at, position], 1))
            out = draft(token, position, seen, first.cache, **known)
            return draft.logits(out.hidden), rows.put(out.rows, 1, R + i - 1)

        chain, rows, _ = chains.grow(chain, 1, read, first.rows.room(gamma - 1), state, key, least, most)
        return chain.tree, state.drafter.replace(cache=first.cache, rows=rows)

    def commit(self, target, draft, state, tree, scored, verdict) -> ReaderState:
        return self.commit_chain(target, draft, state, scored, verdict)
