"""Plain decoding: a tree of one node."""

import dataclasses
from typing import ClassVar

import jax

from ..tree import chain


@dataclasses.dataclass(frozen=True)
class Plain:
    """Proposes nothing; every round emits the one token that the target draws."""

    depth: ClassVar[int] = 0
    sampled: ClassVar[str] = ""
    taps: ClassVar[tuple[int, ...]] = ()
    needs_draft: ClassVar[bool] = False

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        return ()

    def draft(self, target, draft, state, key):
        return jax.vmap(chain)(state.root[:, None]), ()

    def commit(self, target, draft, state, tree, out, verdict):
        return ()
