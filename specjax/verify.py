"""Acceptance rules: they choose the path of a token tree to keep, and the token that follows it.

A rule is a pure function ``(p, tree, key) -> Verdict`` for one row. ``p[i]`` is the target's
distribution after node i. ``tree.q[i]`` is the distribution from which the children of node i were
drawn. Both are float32 and come out of the same sampling options. ``key`` holds typed keys [P], one
for the root's place in the text and one for each place after it. A rule that does not draw place by
place uses the first key.

Every rule outside ``LOSSY`` is lossless: accepted tokens and bonus token are distributed as the
target's own samples. At temperature 0 p and q are one-hot, and every rule is the greedy walk, except
for the soft rules: they read p at temperature 1.

A rule that divides by q is exact only for tokens drawn in certain ways: as a chain, as siblings
without replacement, or as independent siblings, from one draft or several. ``resolve`` checks this.
Siblings are tested in the order of their nodes, which must be the order of their draws. Among
siblings drawn without replacement only the last may be invalid, because each draw excludes the
tokens before it.

The folder ``rules`` holds the rules. This file names them and lists the drafts for which each is
exact.
"""

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .errors import RequestError
from .rules.chains import block_verification, rejection
from .rules.seeded import WalkIfSeeded
from .rules.several_paths import greedy_block
from .rules.siblings import k_seq, multi_step, recursive_rejection
from .rules.soft import Loosening, NearMatch, SoftMatch, cosines_of
from .rules.traversal import traversal
from .rules.verdict import Verdict
from .rules.walks import argmax_walk, sample_and_walk, typical
from .sampling import SamplingParams
from .stats import Counters
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
    "walk_if_seeded": WalkIfSeeded(),
    "typical": typical,
    "soft_match": SoftMatch(),
    "loosening": Loosening(),
    "near_match": NearMatch(),
}
"""The rules by their public names. A soft rule takes another margin as "soft_match=0.1"."""

LOSSY = ("typical", "soft_match", "loosening", "near_match")
"""The rules that change the target's distribution."""


class Drawn(enum.StrEnum):
    """How the nodes of a tree were drawn from its q.

    CHAIN_OR_CHOSEN: trees with a q are drawn chains, and the nodes of trees without one are chosen.
    """

    CHOSEN = "chosen"
    CHAIN = "chain"
    CHAIN_OR_CHOSEN = "chain_or_chosen"
    WITHOUT_REPLACEMENT = "without_replacement"
    INDEPENDENT = "independent"
    FROM_SEVERAL = "from_several"


_HOLDS_FOR = {
    "walk_if_seeded": (Drawn.CHAIN, Drawn.CHAIN_OR_CHOSEN),
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
    Drawn.CHAIN_OR_CHOSEN: "walk_if_seeded",
    Drawn.WITHOUT_REPLACEMENT: "recursive_rejection",
    Drawn.INDEPENDENT: "greedy_block",
    Drawn.FROM_SEVERAL: "multi_step",
}


def resolve(name: str, drawn: Drawn) -> Callable:
    """The rule called ``name``; "auto" is the lossless rule that accepts most tokens.

    Raises RequestError for an unknown name, for a margin out of range, or for a rule that is not
    exact for tokens that are ``drawn`` in this way.
    """
    if name == "auto":
        name = _AUTO[drawn]
    kind, given, margin = name.partition("=")
    soft = RULES.get(kind)
    if given and isinstance(soft, SoftMatch):
        return dataclasses.replace(soft, margin=_read_margin(kind, margin))
    if name not in RULES:
        raise RequestError(f"rule {name!r} is unknown; use auto or one of {', '.join(RULES)}")
    if name in _HOLDS_FOR and drawn not in _HOLDS_FOR[name]:
        exact = " or ".join(way.value for way in _HOLDS_FOR[name])
        does = "chooses them" if drawn is Drawn.CHOSEN else f"draws {drawn.value.replace('_', ' ')}"
        raise RequestError(f"rule {name!r} needs drafts sampled as {exact}, and this method {does}; use rule='auto'")
    return RULES[name]


def is_lossy(name: str, sampled: bool) -> bool:
    """Whether the rule called ``name`` changes the law of a row, ``sampled`` or greedy."""
    kind = name.partition("=")[0]
    return kind in LOSSY and (sampled or isinstance(RULES[kind], SoftMatch))


def seen_options(rule: Callable, options: SamplingParams) -> SamplingParams:
    """The options that make the p of a rule: a soft rule sees greedy rows at temperature 1."""
    if not isinstance(rule, SoftMatch):
        return options
    return options.replace(temperature=jnp.where(options.temperature == 0, 1.0, options.temperature))


def accept(
    rule: Callable,
    p: jax.Array,
    tree: Tree,
    keys: jax.Array,
    temperature: jax.Array,
    counters: Counters | None = None,
    seeded: jax.Array | None = None,
    target: Any = None,
) -> Verdict:
    """The rule's verdict for every row of a batch.

    Args:
      rule: the acceptance rule, a function for one row.
      p: float32 [B, N, V], the target's distribution after each node, see ``seen_options``.
      tree: the batched tree.
      keys: typed keys [B, P].
      temperature: float32 [B]. If it is 0 in all rows, a rule that is not soft computes only the
        greedy walk.
      counters: the sums of the rows so far, whose acceptance rate a soft rule reads.
      seeded: bool [B], the rows whose request has a seed, for ``walk_if_seeded``; None for no row.
      target: the model whose ``token_embeddings`` a rule of embeddings reads.

    Raises RequestError if the rule reads embeddings and the target has no ``token_embeddings``.
    """
    if isinstance(rule, SoftMatch):
        rate = jnp.ones_like(temperature) if counters is None else counters.acceptance_rate
        embed = getattr(target, "token_embeddings", None)
        if rule.reads_embeddings and embed is None:
            raise RequestError("the rule compares embeddings, and the target has no token_embeddings; use another rule")
        cosines = cosines_of(embed, p, tree) if rule.reads_embeddings and embed else None
        return jax.vmap(rule)(p, tree, keys, temperature == 0, rate, cosines)
    walk_greedily = lambda p, tree, keys: jax.vmap(argmax_walk)(p, tree)
    apply_rule = lambda p, tree, keys: jax.vmap(rule)(p, tree, keys)
    if isinstance(rule, WalkIfSeeded):
        seeded = jnp.zeros(temperature.shape, bool) if seeded is None else seeded
        apply_rule = lambda p, tree, keys: rule.of_rows(p, tree, keys, seeded)
    return lax.cond(jnp.all(temperature == 0), walk_greedily, apply_rule, p, tree, keys)


def _read_margin(rule: str, text: str) -> float:
    try:
        margin = float(text)
    except ValueError:
        margin = -1.0
    if not 0 <= margin <= 1:
        raise RequestError(f"the margin of rule {rule!r} must be a number from 0 to 1, not {text!r}")
    return margin
