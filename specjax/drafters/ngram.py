"""Prompt lookup: the continuation of an earlier occurrence of the newest tokens (Saxena 2023; "ngram" in vLLM)."""

import dataclasses

import jax
import jax.numpy as jnp

from ..tree import Tree, chain


@dataclasses.dataclass(frozen=True)
class Ngram:
    """Looks up the last ``prompt_lookup_max`` tokens of a row, down to ``prompt_lookup_min``, in the row itself.

    The longest match wins, among equals the most recent. Where its continuation reaches the end of the row it goes on
    periodically, as the text would if it kept repeating.
    """

    num_tokens: int = 5
    prompt_lookup_max: int = 4
    prompt_lookup_min: int = 1
    sampled: bool = False
    taps: tuple[int, ...] = ()

    @property
    def depth(self) -> int:
        return self.num_tokens

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        return ()

    def draft(self, target, draft, state, key):
        return jax.vmap(self._propose)(state.tokens, state.cache.length), ()

    def commit(self, target, draft, state, tree, out, verdict):
        return ()

    def _propose(self, tokens: jax.Array, last: jax.Array) -> Tree:
        """The chain of one row: ``tokens`` int32 [T], of which those up to index ``last`` are text."""
        end = jnp.arange(tokens.size)  # where an earlier occurrence may end
        same = [(tokens == tokens[last]) & (end < last)]
        for back in range(1, self.prompt_lookup_max):
            earlier = jnp.roll(tokens, back) == tokens[jnp.maximum(last - back, 0)]
            same.append(same[-1] & earlier & (end >= back))
        matched = sum(s.astype(jnp.int32) for s in same)
        best = jnp.argmax(matched * tokens.size + end)  # the longest, then the most recent
        found = matched[best] >= self.prompt_lookup_min
        period = jnp.maximum(last - best, 1)
        drafted = tokens[best + 1 + jnp.arange(self.num_tokens) % period]
        valid = jnp.concatenate([jnp.ones(1, bool), jnp.broadcast_to(found, self.num_tokens)])
        return chain(jnp.concatenate([tokens[last][None], drafted]), valid=valid)
