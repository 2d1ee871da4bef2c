"""The rule of a method that changes its drafter between rounds."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from ..tree import Tree
from .chains import block_verification
from .verdict import Verdict
from .walks import sample_and_walk


@dataclasses.dataclass(frozen=True)
class WalkIfSeeded:
    """``sample_and_walk`` for rows whose request has a seed, ``block_verification`` for the others.

    The tokens of a seeded row are the target's samples. So its text is that of plain decoding, by
    whatever method and in whatever batch the tokens were drafted. Block verification accepts more
    tokens, and its text depends on where rounds begin. A tree without q was not drawn. Then
    ``sample_and_walk`` is exact, and serves all rows.
    """

    def __call__(self, p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
        """The verdict on a row without a seed."""
        return (sample_and_walk if tree.q is None else block_verification)(p, tree, key)

    def of_rows(self, p: jax.Array, tree: Tree, keys: jax.Array, seeded: jax.Array) -> Verdict:
        """The verdicts on rows [B]. ``seeded``: bool [B]."""
        unseeded = lambda p, tree, keys: jax.vmap(self)(p, tree, keys)
        if tree.q is None:
            return unseeded(p, tree, keys)

        def both(p, tree, keys):
            walk, block = jax.vmap(sample_and_walk)(p, tree, keys), unseeded(p, tree, keys)
            pick = lambda a, b: jnp.where(seeded.reshape(-1, *(1,) * (a.ndim - 1)), a, b)
            return jax.tree.map(pick, walk, block)

        return lax.cond(jnp.any(seeded), both, unseeded, p, tree, keys)
