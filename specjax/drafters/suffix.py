"""Suffix decoding (Oliaro et al. 2024): the most frequent continuation of the newest tokens.

The method uses the counts of a suffix tree without building the tree. The tree's node for a run of
tokens corresponds to the set of places where this run ends. Its child for a token corresponds to
the places that the token follows. In the row itself such a set is a mask over the text. In the
texts of earlier requests it is a range of their suffix array.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from ..core.checks import per_row, whole
from ..core.tree import Tree, chain, node_count
from .parts import text_store as texts
from .parts.member import Member

_MOST_PLACES = 32
"""The most places of a range that are counted. They are evenly spaced in a longer range."""


@dataclasses.dataclass(frozen=True)
class Suffix(Member):
    """Looks up runs of the newest tokens, and proposes the continuation with the highest score.

    The runs are the newest 1, 2, ... ``max_match`` tokens. The method looks them up in the row
    itself and in the store, and follows the most frequent continuation of each run. A token's
    probability is the product of count(child) / count(node) along the way to it. A continuation
    ends where this probability falls below ``min_token_prob``, and after as many tokens as its run
    has. The score of a continuation is the sum of its tokens' probabilities. If scores are equal,
    the row's own continuation wins, then the longer run. If counts are equal, the more recent token
    wins.

    The store holds prompts and answers of earlier requests to a ``Generator``. The output does not
    depend on the store, because the store only proposes.

    Attributes:
      num_speculative_tokens: the longest continuation.
      max_match: the longest run looked up.
      min_token_prob: the probability below which a continuation ends.
      store_tokens: size of the store in tokens; 0 looks up in the row alone.
    """

    num_speculative_tokens: int = 8
    max_match: int = 16
    min_token_prob: float = 0.1
    store_tokens: int = 0
    with_encoder = True

    def __post_init__(self):
        for name in ("num_speculative_tokens", "max_match"):
            node_count(name, getattr(self, name))
        whole("store_tokens", self.store_tokens, 0)
        per_row("min_token_prob", self.min_token_prob, 1, float, most=1)

    @property
    def depth(self) -> int:
        return self.num_speculative_tokens

    def parameters(self, draft, vocab_size: int) -> texts.Store | None:
        return texts.empty(self.store_tokens) if self.store_tokens else None

    def remember(self, parameters: texts.Store | None, answered: list[list[int]]) -> texts.Store | None:
        return parameters and texts.append(parameters, answered)

    def propose(self, target, draft, state, key):
        propose = lambda tokens, last: self._propose_row(tokens, last, target.config.vocab_size, draft)
        return jax.vmap(propose)(state.tokens, state.cache.length), ()

    def _propose_row(self, tokens: jax.Array, last: jax.Array, vocab_size: int, store: texts.Store | None) -> Tree:
        """The chain of one row. Its text is ``tokens`` int32 [T] up to index ``last``, included."""
        drafted, p = self._in_row(tokens, last, vocab_size)
        if store is not None:
            recalled, its_p = self._in_store(tokens, last, store)
            better = its_p.sum() > p.sum()
            drafted = jnp.where(better, recalled, drafted)
            p = jnp.where(better, its_p, p)
        return chain(jnp.concatenate([tokens[last][None], drafted]), valid=jnp.concatenate([jnp.ones(1, bool), p > 0]))

    def _in_row(self, tokens, last, vocab_size: int) -> tuple[jax.Array, jax.Array]:
        """The best continuation in the row, int32 [K], and its tokens' probabilities float32 [K].

        The probabilities are 0 from the end of the continuation on.
        """
        place = jnp.arange(tokens.size)
        T = tokens.size
        at = [(tokens == tokens[last]) & (place <= last)]
        for back in range(1, self.max_match):
            earlier = jnp.roll(tokens, back) == tokens[jnp.maximum(last - back, 0)]
            at.append(at[-1] & earlier & (place >= back) & (last >= back))
        at = jnp.stack(at)  # bool [L, T]: where the newest 1, 2, ... tokens end, the row's end included

        def follow(carry, depth):
            ends, p = carry  # ends [L, T]: where the run and its continuation so far end
            following = ends & (place < last)
            successor = jnp.roll(tokens, -1)
            counts = jnp.zeros((self.max_match, vocab_size), jnp.int32).at[:, successor].add(jnp.int32(following))
            often = jnp.where(following, counts[:, successor] * T + place, -1)
            token = successor[jnp.argmax(often, 1)]
            p = self._share(p, jnp.take_along_axis(counts, token[:, None], 1)[:, 0], ends.sum(1), depth)
            ends = jnp.roll(following & (successor == token[:, None]), 1, axis=1)
            return (ends, p), (token, p)

        _, drafts = lax.scan(follow, (at, jnp.ones(self.max_match)), jnp.arange(self.depth))
        return self._best(*drafts)

    def _in_store(self, tokens, last, store: texts.Store) -> tuple[jax.Array, jax.Array]:
        """The same from the store, which counts at most ``_MOST_PLACES`` places of each run."""
        length = 1 + jnp.arange(self.max_match)
        place = jnp.arange(self.max_match)
        runs = tokens[jnp.maximum(last - length[:, None] + 1 + place, 0)]  # [L, M]: the newest 1, 2, ... tokens
        low, high = texts.find(store, runs, length)
        count = jnp.where(length <= last + 1, high - low, 0)[:, None]
        nth = jnp.arange(_MOST_PLACES)
        spread = jnp.where(count > _MOST_PLACES, nth * count // _MOST_PLACES, nth)
        start = store.order[jnp.minimum(low[:, None] + spread, store.order.size - 1)]  # [L, R]
        after = start[:, :, None] + length[:, None, None] + jnp.arange(self.depth)
        after = store.tokens[jnp.minimum(after, store.tokens.size - 1)]  # [L, R, K]

        def follow(carry, depth):
            there, p = carry  # bool [L, R]: which of the places still agree
            token = after[:, :, depth]
            following = there & (token >= 0)
            alike = (token[:, :, None] == token[:, None, :]) & following[:, None, :]
            often = jnp.where(following, alike.sum(2) * store.tokens.size + start, -1)
            best = jnp.argmax(often, 1)[:, None]
            chosen = jnp.take_along_axis(token, best, 1)
            onward = following & (token == chosen)
            p = self._share(p, onward.sum(1), there.sum(1), depth)
            return (onward, p), (jnp.maximum(chosen[:, 0], 0), p)

        _, drafts = lax.scan(follow, (nth < count, jnp.ones(self.max_match)), jnp.arange(self.depth))
        return self._best(*drafts)

    def _share(self, p, child, node, depth) -> jax.Array:
        """The probabilities [L] of the next tokens; 0 for a continuation that ends before."""
        p = p * (child / jnp.maximum(node, 1))
        return jnp.where((p >= self.min_token_prob) & (p > 0) & (depth < 1 + jnp.arange(self.max_match)), p, 0.0)

    def _best(self, drafted, p) -> tuple[jax.Array, jax.Array]:
        """The continuation [K] with the highest score among [K, L], and its probabilities [K].

        If scores are equal, the longest run wins.
        """
        best = self.max_match - 1 - jnp.argmax(p.sum(0)[::-1])
        return drafted[:, best], p[:, best]
