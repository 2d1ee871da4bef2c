"""Plain decoding: a tree of one node."""

import dataclasses

import jax

from ..tree import chain


@dataclasses.dataclass(frozen=True)
class Plain:
    """Proposes nothing; every round emits the one token that the target draws."""

    depth: int = 0
    sampled: bool = False
    taps: tuple[int, ...] = ()

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        return ()

    def draft(self, target, draft, state, key):
        return jax.vmap(chain)(state.root[:, None]), ()

    def commit(self, target, draft, state, tree, out, verdict):
        return ()
