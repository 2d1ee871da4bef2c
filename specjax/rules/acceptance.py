"""Acceptance rules: they choose the path of a token tree to keep, and the token that follows it.

A rule is a pure function ``(p, tree, key) -> Verdict`` for one row. ``p[i]`` is the target's
distribution after node i. ``tree.q[i]`` is the distribution from which the children of node i were
drawn. Both are float32 and come out of the same sampling options. ``key`` holds typed keys [P], one
for the root's place in the text and one for each place after it. A rule that does not draw place by
place uses the first key.

The record ``Rule`` names the function and states all that ``resolve`` and ``accept`` need to know
of it, such as further facts that it reads. The files of the folder ``rules`` hold the rules and
their records. A user's own rule is a record too, or a plain function.

Every rule that is not ``lossy`` is lossless: accepted tokens and bonus token are distributed as the
target's own samples. At temperature 0 p and q are one-hot, and every rule is the greedy walk. Only
the rules that judge greedy rows read p at temperature 1.

A rule that divides by q is exact only for tokens drawn in certain ways: as a chain, as siblings
without replacement, or as independent siblings, from one draft or several. ``resolve`` checks this.
Siblings are tested in the order of their nodes, which must be the order of their draws. Among
siblings drawn without replacement only the last may be invalid, because each draw excludes the
tokens before it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..core.checks import shorten, suggest
from ..core.sampling import SamplingParams
from ..core.stats import Counters
from ..core.tree import Tree
from ..core.verdict import Verdict
from ..errors import RequestError
from . import RULES
from .rule import Drawn, Rule, as_rule
from .soft import cosines_of
from .walks import argmax_walk


def resolve(name: str, drawn: Drawn) -> Rule:
    """The rule called ``name``; "auto" is the lossless rule that accepts most tokens.

    Raises RequestError for an unknown name, for a margin out of range, or for a rule that is not
    exact for tokens that are ``drawn`` in this way.
    """
    if name == "auto":
        return next(rule for rule in RULES.values() if drawn in rule.default_for)
    kind, has_margin, margin = name.partition("=")
    rule = RULES.get(kind)
    if rule is None or has_margin and rule.with_margin is None:
        raise RequestError(
            f"rule {shorten(name)} is unknown{suggest(name, RULES) or '; use auto or one of ' + ', '.join(RULES)}"
        )
    if rule.exact_for is not None and drawn not in rule.exact_for:
        exact = " or ".join(way.value for way in rule.exact_for)
        does = "chooses them" if drawn is Drawn.CHOSEN else f"draws {drawn.value.replace('_', ' ')}"
        raise RequestError(f"rule {name!r} needs drafts sampled as {exact}, and this method {does}; use rule='auto'")
    if has_margin and rule.with_margin is not None:
        return dataclasses.replace(rule, apply=rule.with_margin(_read_margin(kind, margin)))
    return rule


def is_lossy(name: str, sampled: bool) -> bool:
    """Whether the rule called ``name`` changes the law of a row, ``sampled`` or greedy."""
    rule = RULES.get(name.partition("=")[0])
    return rule is not None and rule.lossy and (sampled or rule.judges_greedy)


def seen_options(rule: Rule | Callable, options: SamplingParams) -> SamplingParams:
    """The options that make a rule's p: temperature 1 if it judges greedy rows."""
    if not as_rule(rule).judges_greedy:
        return options
    return options.replace(temperature=jnp.where(options.temperature == 0, 1.0, options.temperature))


def accept(
    rule: Rule | Callable,
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
      rule: the acceptance rule, a record or a plain function for one row.
      p: float32 [B, N, V], the target's distribution after each node, see ``seen_options``.
      tree: the batched tree.
      keys: typed keys [B, P].
      temperature: float32 [B]. If it is 0 in all rows, a rule that does not judge greedy rows
        computes only the greedy walk.
      counters: the sums of the rows so far, for a rule that reads the acceptance rate.
      seeded: bool [B], the rows whose request has a seed; None for no row.
      target: the model whose ``token_embeddings`` a rule of embeddings reads.

    Raises RequestError if the rule reads embeddings and the target has no ``token_embeddings``, or
    if it reads an unknown fact.
    """
    rule = as_rule(rule)
    facts = {name: _read_fact(name, p, tree, temperature, counters, seeded, target) for name in rule.reads}

    def apply_rule(p, tree, keys):
        return (rule.apply_rows or jax.vmap(rule.apply))(p, tree, keys, **facts)

    def walk_greedily(p, tree, keys):
        return jax.vmap(argmax_walk)(p, tree)

    if rule.judges_greedy:
        return apply_rule(p, tree, keys)
    return lax.cond(jnp.all(temperature == 0), walk_greedily, apply_rule, p, tree, keys)


def _read_fact(name: str, p, tree, temperature, counters, seeded, target) -> jax.Array:
    """The fact ``name`` of every row, see ``Rule.reads``. The other arguments are ``accept``'s."""
    if name == "greedy":
        return temperature == 0
    if name == "rate":
        return jnp.ones_like(temperature) if counters is None else counters.acceptance_rate
    if name == "seeded":
        return jnp.zeros(temperature.shape, bool) if seeded is None else seeded
    if name == "cosines":
        embed = getattr(target, "token_embeddings", None)
        if embed is None:
            raise RequestError("the rule compares embeddings, and the target has no token_embeddings; use another rule")
        return cosines_of(embed, p, tree)
    raise RequestError(f"the rule reads {name!r}; a rule can read greedy, rate, seeded and cosines")


def _read_margin(rule: str, text: str) -> float:
    try:
        margin = float(text)
    except ValueError:
        margin = -1.0
    if not 0 <= margin <= 1:
        raise RequestError(f"the margin of rule {rule!r} must be a number from 0 to 1, not {text!r}")
    return margin
