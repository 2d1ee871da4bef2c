"""Acceptance rules: they choose the path of a token tree to keep, and the token that follows it.

A rule is a pure function ``(p, tree, key) -> Verdict`` for one row. ``p[i]`` is the target's
distribution after node i. ``tree.q[i]`` is the distribution from which the children of node i were
drawn. Both are float32 and come out of the same sampling options. ``key`` holds typed keys [P], one
for the root's place in the text and one for each place after it. A rule that does not draw place by
place uses the first key.

Every rule but ``typical`` is lossless: accepted tokens and bonus token are distributed as the
target's own samples. At temperature 0 p and q are one-hot, and every rule is the greedy walk.

A rule that divides by q is exact only for tokens drawn in certain ways: as a chain, as siblings
without replacement, or as independent siblings, from one draft or several. ``resolve`` checks this.
Siblings are tested in the order of their nodes, which must be the order of their draws. Among
siblings drawn without replacement only the last may be invalid, because each draw excludes the
tokens before it.

The folder ``rules`` holds the rules. This file names them and lists the drafts for which each is
exact.
"""

import enum
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from .errors import RequestError
from .rules.chains import block_verification, rejection
from .rules.several_paths import greedy_block
from .rules.siblings import k_seq, multi_step, recursive_rejection
from .rules.traversal import traversal
from .rules.verdict import Verdict
from .rules.walks import argmax_walk, sample_and_walk, typical
from .tree import Tree

RULES = {
    "argmax_walk": argmax_walk,
    "sample_and_walk": sample_and_walk,
    "rejection": rejection,
    "block": block_verification,
    "recursive_rejection": recursive_rejection,
    "multi_step": multi_step,
    "k_seq": k_seq,
    "traversal": traversal,
    "greedy_block": greedy_block,
    "typical": typical,
}
"""The rules by their public names."""

LOSSY = ("typical",)
"""The rules that change the target's distribution."""


class Drawn(enum.StrEnum):
    """How the nodes of a tree were drawn from its q."""

    CHOSEN = "chosen"
    CHAIN = "chain"
    WITHOUT_REPLACEMENT = "without_replacement"
    INDEPENDENT = "independent"
    FROM_SEVERAL = "from_several"


_HOLDS_FOR = {
    "rejection": (Drawn.CHAIN,),
    "block": (Drawn.CHAIN,),
    "recursive_rejection": (Drawn.CHAIN, Drawn.WITHOUT_REPLACEMENT),
    "traversal": (Drawn.CHAIN, Drawn.WITHOUT_REPLACEMENT),
    "multi_step": (Drawn.CHAIN, Drawn.INDEPENDENT, Drawn.FROM_SEVERAL),
    "k_seq": (Drawn.CHAIN, Drawn.INDEPENDENT),
    "greedy_block": (Drawn.CHAIN, Drawn.INDEPENDENT),
}
"""For each rule that divides by q, the ways of drawing for which it is exact."""

_AUTO = {
    Drawn.CHOSEN: "sample_and_walk",
    Drawn.CHAIN: "block",
    Drawn.WITHOUT_REPLACEMENT: "recursive_rejection",
    Drawn.INDEPENDENT: "greedy_block",
    Drawn.FROM_SEVERAL: "multi_step",
}


def resolve(name: str, drawn: Drawn) -> Callable:
    """The rule called ``name``; "auto" is the lossless rule that accepts most tokens.

    Raises RequestError for an unknown name, or for a rule that is not exact for tokens that are
    ``drawn`` in this way.
    """
    if name == "auto":
        name = _AUTO[drawn]
    if name not in RULES:
        raise RequestError(f"rule {name!r} is unknown; use auto or one of {', '.join(RULES)}")
    if name in _HOLDS_FOR and drawn not in _HOLDS_FOR[name]:
        exact = " or ".join(way.value for way in _HOLDS_FOR[name])
        does = "chooses them" if drawn is Drawn.CHOSEN else f"draws {drawn.value.replace('_', ' ')}"
        raise RequestError(f"rule {name!r} needs drafts sampled as {exact}, and this method {does}; use rule='auto'")
    return RULES[name]


def accept(rule: Callable, p: jax.Array, tree: Tree, keys: jax.Array, temperature: jax.Array) -> Verdict:
    """The rule's verdict for every row of a batch.

    Args:
      rule: the acceptance rule, a function for one row.
      p: float32 [B, N, V], the target's distribution after each node.
      tree: the batched tree.
      keys: typed keys [B, P].
      temperature: float32 [B]. If it is 0 in all rows, only the greedy walk is computed.
    """
    walk_greedily = lambda p, tree, keys: jax.vmap(argmax_walk)(p, tree)
    apply_rule = lambda p, tree, keys: jax.vmap(rule)(p, tree, keys)
    return lax.cond(jnp.all(temperature == 0), walk_greedily, apply_rule, p, tree, keys)
