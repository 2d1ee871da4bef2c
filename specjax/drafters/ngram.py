"""Prompt lookup (Saxena 2023; "ngram" in vLLM): the continuation of an earlier occurrence."""

import dataclasses

import jax
import jax.numpy as jnp

from ..core.tree import Tree, chain, node_count
from ..errors import RequestError
from .parts.member import Member
from .parts.ngram_statistics import ORDERS, Statistics, load


@dataclasses.dataclass(frozen=True)
class Ngram(Member):
    """Looks up the newest tokens of a row in the row itself, and proposes the tokens that followed.

    The longest match wins; among equally long matches the most recent one wins. A continuation that
    reaches the end of the row goes on periodically, as the text would if it kept repeating.

    Attributes:
      num_speculative_tokens: tokens of a continuation.
      prompt_lookup_max: the longest run that is looked up.
      prompt_lookup_min: the shortest run that is looked up.
      ngram_statistics: a file that ``specjax ngrams`` wrote. If the row has no match, the file
        gives the token that most often followed the newest tokens in a corpus.
    """

    num_speculative_tokens: int = 5
    prompt_lookup_max: int = 4
    prompt_lookup_min: int = 1
    ngram_statistics: str | None = dataclasses.field(default=None, metadata={"metavar": "FILE"})
    with_encoder = True

    def __post_init__(self):
        for name in ("num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min"):
            node_count(name, getattr(self, name))
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise RequestError(
                f"prompt_lookup_min {self.prompt_lookup_min} is above prompt_lookup_max {self.prompt_lookup_max}; "
                "lower it"
            )

    @property
    def depth(self) -> int:
        return self.num_speculative_tokens

    def parameters(self, draft, vocab_size: int) -> Statistics | None:
        return None if self.ngram_statistics is None else load(self.ngram_statistics, vocab_size)

    def propose(self, target, draft, state, key):
        return jax.vmap(self._propose_row, (0, 0, None))(state.tokens, state.cache.length, draft), ()

    def _propose_row(self, tokens: jax.Array, last: jax.Array, statistics: Statistics | None) -> Tree:
        """The chain of one row. Its text is ``tokens`` int32 [T] up to index ``last``, included."""
        drafted, matched = self.look_up(tokens, last)
        is_match = matched >= self.prompt_lookup_min
        valid = jnp.broadcast_to(is_match, self.depth)
        if statistics is not None:
            back = last - jnp.arange(max(ORDERS))[::-1]
            other = statistics.chain(jnp.where(back < 0, -1, tokens[back]), self.depth)
            drafted = jnp.where(is_match, drafted, jnp.maximum(other, 0))
            valid = is_match | (other >= 0)
        nodes = jnp.concatenate([tokens[last][None], drafted])
        return chain(nodes, valid=jnp.concatenate([jnp.ones(1, bool), valid]))

    def look_up(self, tokens: jax.Array, last: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The continuation of the longest match in a row, int32 [K], and the length of the match.

        The row's text is ``tokens`` int32 [T] up to index ``last``, included. The continuation is
        void if the match is shorter than ``prompt_lookup_min``.
        """
        end = jnp.arange(tokens.size)  # where an earlier occurrence may end
        before = jnp.pad(tokens, (self.prompt_lookup_max, 0), constant_values=-1)  # no token is -1
        same = [(tokens == tokens[last]) & (end < last)]
        for back in range(1, self.prompt_lookup_max):
            start = self.prompt_lookup_max - back  # slices join the loop of the comparison, as a roll does not
            same.append(same[-1] & (before[start : start + tokens.size] == tokens[jnp.maximum(last - back, 0)]))
        matched = sum((s.astype(jnp.int32) for s in same), jnp.int32(0))
        longest = jnp.max(matched * tokens.size + end)  # the longest match, and of these the most recent
        matched = longest // tokens.size
        best = longest % tokens.size
        period = jnp.maximum(last - best, 1)
        return tokens[best + 1 + jnp.arange(self.depth) % period], matched
