"""Acceptance rules: which path of a token tree is kept, and which token follows it.

A rule is a pure function ``(p, tree, key) -> Verdict`` for one row. ``p[i]`` is the target's distribution after node i and
``tree.q[i]`` the one its children were drawn from, both already warped by the sampling options (temperature, top-k, ...), in
float32. Each rule here is lossless: accepted tokens plus bonus are distributed as the target's own samples. At temperature 0
both are one-hot and every rule is the greedy walk.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jax import random

from .errors import RequestError
from .tree import Tree, ancestors


@struct.dataclass
class Verdict:
    """The outcome of one verification, P = ``tree.max_depth + 1``.

    Attributes:
      path: int32 [P]. Accepted nodes from the root down; entries from ``length`` on repeat the last one.
      length: int32. Accepted nodes, root included: how many rows to commit to the cache.
      bonus: int32. The token after the path, drawn by the target: the next root.
    """

    path: jax.Array
    length: jax.Array
    bonus: jax.Array


def argmax_walk(p: jax.Array, tree: Tree, key: jax.Array | None = None) -> Verdict:
    """Greedy verification: follow the children that the target itself would choose (SpecInfer, VerifyGreedy)."""
    return _walk(jnp.argmax(p, -1), tree)


def sample_and_walk(p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """Samples the target after every node, then follows the children that match.

    Lossless for candidates chosen by any deterministic means, in any tree whose siblings differ: the emitted tokens *are* the
    target's samples. Accepts with probability sum of p over a node's children.
    """
    return _walk(random.categorical(key, jnp.log(p)), tree)


def rejection(p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """Token-wise speculative sampling of a chain drawn from q (Leviathan et al. 2023, Algorithm 1).

    Keeps x with probability min(1, p(x) / q(x)) and replaces the first refused one by a draw from norm(max(p - q, 0)). After the
    last node q is zero, so the same line draws the bonus token from p.
    """
    accept_key, bonus_key = random.split(key)
    p_drafted, q_drafted = (_prob_of_next(d, tree) for d in (p, tree.q))
    accepted = random.uniform(accept_key, p_drafted.shape) * q_drafted < p_drafted  # strict: zero p is never accepted
    last = jnp.cumprod(accepted & tree.valid[1:]).sum()
    return _chain_verdict(last, p[last], tree, bonus_key)


def block(p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """Block verification of a chain drawn from q (Sun et al. 2024, Algorithm 2): judges whole prefixes jointly.

    Never accepts fewer tokens in expectation than ``rejection``. ``w[i]`` is the mass with which the first i tokens may be kept;
    the longest prefix that passes its own test wins, even if a shorter one failed.
    """
    accept_key, bonus_key = random.split(key)

    def extend(w, drafted):
        p, q = drafted
        w = jnp.where(w * p >= q, 1.0, w * p / q)  # min(1, w p / q), without overflow; q > 0: the token was drawn from it
        return w, w

    _, w = jax.lax.scan(extend, jnp.float32(1), (_prob_of_next(p, tree), _prob_of_next(tree.q, tree)))
    w = jnp.concatenate([jnp.ones(1), w])  # [N]

    node, end = jnp.arange(w.size), _end(tree)
    surplus = jnp.maximum(w[:, None] * p - tree.q, 0).sum(-1)
    loss = surplus + 1 - w  # zero only where w = 1 and p = q: then a longer prefix is kept for certain
    keep = jnp.where(node == end, w, surplus / jnp.where(loss > 0, loss, 1))
    passed = (random.uniform(accept_key, keep.shape) < keep) & (node <= end)
    last = jnp.max(jnp.where(passed.at[0].set(True), node, 0))
    scale = jnp.where(last == end, 1.0, w[last])
    return _chain_verdict(last, scale * p[last], tree, bonus_key)


RULES = {"argmax_walk": argmax_walk, "sample_and_walk": sample_and_walk, "rejection": rejection, "block": block}
"""The rules by the names users give them."""


def resolve(name: str, sampled: bool):
    """The rule called ``name``; "auto" is the lossless one with the highest acceptance for drafts that were sampled or chosen.

    Raises RequestError for an unknown name, or a rule that divides by the q of a draft that has none.
    """
    if name == "auto":
        return block if sampled else sample_and_walk
    if name not in RULES:
        raise RequestError(f"rule {name!r} is unknown; use auto or one of {', '.join(RULES)}")
    if name in ("rejection", "block") and not sampled:
        raise RequestError(f"rule {name!r} needs drafts sampled from a distribution, and this method chooses them; use rule='auto'")
    return RULES[name]


def _walk(wanted: jax.Array, tree: Tree) -> Verdict:
    """The deepest node all of whose ancestors are the tokens wanted after their parents; ``wanted``: int32 [N]."""
    lineage = ancestors(tree)
    matches = ((tree.tokens == wanted[tree.parent]) & tree.valid).at[0].set(True)
    reachable = (matches | ~lineage).all(-1)
    last = jnp.argmax(jnp.where(reachable, lineage.sum(-1), 0))
    path = jnp.flatnonzero(lineage[last], size=tree.max_depth + 1, fill_value=last)  # topological order: from the root down
    return Verdict(path, lineage[last].sum(), wanted[last])


def _prob_of_next(dist: jax.Array, tree: Tree) -> jax.Array:
    """[N - 1]: the probability of each drafted token of a chain under ``dist`` [N, V] of its predecessor."""
    return jnp.take_along_axis(dist[:-1], tree.tokens[1:, None], axis=-1)[:, 0]


def _end(tree: Tree) -> jax.Array:
    """The last node of a chain that may be accepted."""
    return jnp.cumprod(tree.valid[1:]).sum()


def _chain_verdict(last: jax.Array, p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """Accepts nodes 0..last of a chain and draws the bonus from norm(max(p - q, 0)); from p after the end, or where they are equal."""
    residual = jnp.maximum(p - jnp.where(last == _end(tree), 0, tree.q[last]), 0)
    residual = jnp.where(residual.sum() > 0, residual, p)
    path = jnp.minimum(jnp.arange(tree.max_depth + 1), last)
    return Verdict(path, last + 1, random.categorical(key, jnp.log(residual)))
