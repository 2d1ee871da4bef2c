"""A second, smaller language model drafts a chain (Leviathan et al. 2023; Chen et al. 2023)."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from ..checks import whole
from ..decode import catch_up
from .parts import chains
from .parts.readers import State, TokenReader


@dataclasses.dataclass(frozen=True)
class DraftModel:
    """Draws ``num_speculative_tokens`` tokens one after another from the draft, under the same sampling options as the target.

    A round begins with the newest two tokens, see ``readers.TokenReader``.
    """

    num_speculative_tokens: int = 5
    reader: ClassVar[Any] = TokenReader()
    sampled: ClassVar[str] = "chain"
    taps: ClassVar[tuple[int, ...]] = ()
    needs_draft: ClassVar[bool] = True
    can_rest: ClassVar[bool] = True

    def __post_init__(self):
        whole("num_speculative_tokens", self.num_speculative_tokens)

    @property
    def depth(self) -> int:
        return self.num_speculative_tokens

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        return self.reader.init(target, draft, tokens, lengths, taps, self.depth, chunk=chunk, dtype=dtype)

    def catch_up(self, draft, state) -> State:
        """See ``base.caught_up``: the draft reads all but the newest two tokens."""
        own = state.drafter
        return own.replace(cache=catch_up(draft, own.cache, state.tokens, jnp.maximum(state.cache.length - 1, 0)))

    def draft(self, target, draft, state, key, least: jax.Array | None = None):
        """See ``Drafter``; ``least``: see ``chains.draw``."""
        reader, modules = self.reader, self.reader.modules(draft, self.depth)
        begun, before = reader.begin(target, draft, state, self.depth), ()
        chain = chains.begin(state, self.depth, target.config.vocab_size)
        chain = chains.draw(chain, reader.logits(target, modules[0], begun.hidden), 0, state, key, least)
        for i, module in enumerate(modules[1:], 1):
            before += begun.rows
            begun = reader.follow(target, module, begun, chain.tokens[:, i])
            chain = chains.draw(chain, reader.logits(target, module, begun.hidden), i, state, key, least)

        (B, R), D, module = begun.seen.shape, len(modules), modules[-1]
        node = jnp.arange(D, self.depth)  # of the other drafts all but the last are read, by the last module
        at = jnp.concatenate([begun.positions, begun.root[:, None] + node], 1)

        def read(i, token, carry):
            hidden, rows = carry
            earlier = jnp.broadcast_to(node < i, (B, node.size))
            seen = jnp.concatenate([begun.seen, earlier, jnp.ones((B, 1), bool)], 1)[:, None]
            position = (begun.root + i)[:, None]
            positions = jnp.concatenate([at, position], 1)
            out = reader.read(target, module, token, hidden, position, seen, begun.cache, rows=rows, row_positions=positions)
            rows = jax.tree.map(lambda old, new: lax.dynamic_update_slice_in_dim(old, new[:, :, -1:], R + i - D, 2), rows, out.rows)
            return reader.logits(target, module, out.hidden), (out.hidden, rows)

        chain, (_, rows), _ = chains.grow(chain, D, read, (begun.hidden, begun.room(node.size)), state, key, least)
        return chain.tree, state.drafter.replace(cache=begun.cache, rows=before + rows)

    def commit(self, target, draft, state, tree, out, verdict):
        kept = jnp.minimum(jnp.arange(self.depth + 1), jnp.maximum(verdict.length - 1, 0)[:, None])
        return self.reader.commit(target, draft, state, jnp.minimum(kept, self.depth - 1), out, verdict)
