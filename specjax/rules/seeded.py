"""The rule of a method that changes its drafter between rounds."""

import jax
import jax.numpy as jnp
from jax import lax

from ..core.tree import Tree
from ..core.verdict import Verdict
from .chains import block_verification
from .rule import Drawn, Rule
from .walks import sample_and_walk


def walk_if_seeded(p: jax.Array, tree: Tree, key: jax.Array, seeded: jax.Array | bool = False) -> Verdict:
    """``sample_and_walk`` for a row with a seed, ``block_verification`` for another row.

    The tokens of a seeded row are the target's samples. So its text is that of plain decoding, by
    whatever method and in whatever batch the tokens were drafted. Block verification accepts more
    tokens, and its text depends on where rounds begin. A tree without q was not drawn. Then
    ``sample_and_walk`` is exact, and serves all rows.
    """
    if tree.q is None:
        return sample_and_walk(p, tree, key)
    return lax.cond(seeded, sample_and_walk, block_verification, p, tree, key)


def walk_rows_if_seeded(p: jax.Array, tree: Tree, keys: jax.Array, seeded: jax.Array) -> Verdict:
    """``walk_if_seeded`` for rows [B]. A batch without a seed computes block verification alone."""
    if tree.q is None:
        return jax.vmap(sample_and_walk)(p, tree, keys)
    return lax.cond(
        jnp.any(seeded),
        jax.vmap(walk_if_seeded),
        lambda p, tree, keys, _: jax.vmap(block_verification)(p, tree, keys),
        *(p, tree, keys, seeded),
    )


RULES = (
    Rule(
        "walk_if_seeded",
        walk_if_seeded,
        exact_for=(Drawn.CHAIN, Drawn.CHAIN_OR_CHOSEN),
        default_for=(Drawn.CHAIN_OR_CHOSEN,),
        plain_if_seeded=True,
        reads=("seeded",),
        apply_rows=walk_rows_if_seeded,
    ),
)
