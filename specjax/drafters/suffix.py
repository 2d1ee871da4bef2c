"""Suffix decoding (Oliaro et al. 2024): what most often followed the newest tokens, by the counts of a suffix tree.

The tree itself is never built. Its node for a run of tokens is the set of places where that run ends; going down to a child keeps
the places whose next token is the child's. So a set is a mask over the text, and the counts are those of the tree at any size.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from ..request import per_row, whole
from ..tree import Tree, chain


@dataclasses.dataclass(frozen=True)
class Suffix:
    """Looks up the last 1, 2, ... ``max_match`` tokens of a row in the row itself, follows the most frequent continuation of each,
    and proposes the one of the highest score.

    A token's probability is the product of count(child) / count(node) on the way to it. A continuation ends below
    ``min_token_prob`` and after as many tokens as its match is long; its score is the sum of its tokens' probabilities. Of equal
    scores the longer match wins, of equal counts the more recent token.

    Attributes:
      num_speculative_tokens: the longest continuation.
      max_match: the longest run looked up.
      min_token_prob: see above.
    """

    num_speculative_tokens: int = 8
    max_match: int = 16
    min_token_prob: float = 0.1
    sampled: ClassVar[str] = ""
    taps: ClassVar[tuple[int, ...]] = ()
    needs_draft: ClassVar[bool] = False

    def __post_init__(self):
        for name in ("num_speculative_tokens", "max_match"):
            whole(name, getattr(self, name))
        per_row("min_token_prob", self.min_token_prob, 1, float, most=1)

    @property
    def depth(self) -> int:
        return self.num_speculative_tokens

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        return ()

    def draft(self, target, draft, state, key):
        propose = lambda tokens, last: self._propose(tokens, last, target.config.vocab_size)
        return jax.vmap(propose)(state.tokens, state.cache.length), ()

    def commit(self, target, draft, state, tree, out, verdict):
        return ()

    def _propose(self, tokens: jax.Array, last: jax.Array, vocab_size: int) -> Tree:
        """The chain of one row: ``tokens`` int32 [T], of which those up to index ``last`` are text."""
        place, T = jnp.arange(tokens.size), tokens.size
        at = [(tokens == tokens[last]) & (place <= last)]
        for back in range(1, self.max_match):
            earlier = jnp.roll(tokens, back) == tokens[jnp.maximum(last - back, 0)]
            at.append(at[-1] & earlier & (place >= back) & (last >= back))
        at = jnp.stack(at)  # bool [L, T], where the newest 1, 2, ... tokens end, the newest place included
        length = 1 + jnp.arange(self.max_match)

        def follow(carry, depth):
            ends, p = carry  # ends [L, T]: where the run and its continuation so far end
            following = ends & (place < last)
            successor = jnp.roll(tokens, -1)
            counts = jnp.zeros((self.max_match, vocab_size), jnp.int32).at[:, successor].add(jnp.int32(following))
            often = jnp.where(following, counts[:, successor] * T + place, -1)
            best = jnp.argmax(often, 1)
            token = successor[best]
            share = jnp.take_along_axis(counts, token[:, None], 1)[:, 0] / jnp.maximum(ends.sum(1), 1)
            p = p * jnp.where(following.any(1), share, 0.0)
            p = jnp.where((p >= self.min_token_prob) & (depth < length), p, 0.0)
            ends = jnp.roll(following & (successor == token[:, None]), 1, axis=1)
            return (ends, p), (token, p)

        _, (drafted, p) = lax.scan(follow, (at, jnp.ones(self.max_match)), jnp.arange(self.depth))  # [K, L] each
        score = p.sum(0)
        best = self.max_match - 1 - jnp.argmax(score[::-1])
        valid = jnp.concatenate([jnp.ones(1, bool), p[:, best] > 0])
        return chain(jnp.concatenate([tokens[last][None], drafted[:, best]]), valid=valid)
