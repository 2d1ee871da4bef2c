"""Acceptance rules: which path of a token tree is kept, and which token follows it.

A rule is a pure function ``(p, tree, key) -> Verdict`` for one row. ``p[i]`` is the target's
distribution after node i. ``tree.q[i]`` is the distribution from which the children of node i were
drawn. Both are float32 and come out of the same sampling options. ``key`` holds typed keys [P]: one
for the root's place in the text and for each place after it. Rules that do not draw place by place
use the first. Every rule but ``typical`` is lossless: accepted tokens and bonus token are
distributed as the target's own samples. At temperature 0 both distributions are one-hot, and every
rule is the greedy walk.

A rule that divides by q is exact for nodes drawn in certain ways, which ``resolve`` checks: a
chain, siblings drawn without replacement, or siblings drawn independently, from one draft or
several. Siblings are tested in the order of their nodes, which must be the order of their draws. Of
siblings drawn without replacement only the last may be invalid, since each was drawn given those
before it.
"""

import enum
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax, random

from .errors import RequestError
from .tree import Tree, ancestors


@struct.dataclass
class Verdict:
    """The outcome of one verification, P = ``tree.max_depth + 1``.

    Attributes:
      path: int32 [P]. Accepted nodes from the root down; entries from ``length`` on repeat the last
        one.
      length: int32. Accepted nodes, root included: how many rows to commit to the cache.
      bonus: int32. The token after the path, drawn by the target: the next root.
    """

    path: jax.Array
    length: jax.Array
    bonus: jax.Array


def argmax_walk(p: jax.Array, tree: Tree, key: jax.Array | None = None) -> Verdict:
    """Greedy verification: follows the children that the target itself would choose (SpecInfer,
    VerifyGreedy).
    """
    return _walk(jnp.argmax(p, -1), tree)


def sample_and_walk(p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """Samples the target after every node, then follows the children that match.

    Lossless for nodes chosen by any deterministic means, in any tree: the emitted tokens *are* the
    target's samples. A node's children are accepted with the sum of their p. The sample at a place
    of the text depends on the key of that place alone. A seed therefore gives the text of plain
    decoding, whatever was proposed, and equal siblings cannot disagree.
    """
    lineage = ancestors(tree)
    noise = jax.vmap(lambda key: random.gumbel(key, p.shape[1:]))(
        key
    )  # one noise per depth: one node of a depth is reached
    return _walk(jnp.argmax(jnp.log(p) + noise[lineage.sum(-1) - 1], -1), tree)


def rejection(p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """Token-wise speculative sampling of a chain drawn from q (Leviathan et al. 2023, Algorithm 1).

    Accepts x with probability min(1, p(x) / q(x)), and replaces the first rejected token by a draw
    from norm(max(p - q, 0)). After the last node q is zero, so that the same line draws the bonus
    token from p.
    """
    accept_key, bonus_key = random.split(key[0])
    p_drafted, q_drafted = (_prob_of_next(d, tree) for d in (p, tree.q))
    accepted = (
        random.uniform(accept_key, p_drafted.shape) * q_drafted < p_drafted
    )  # strict: a token with p = 0 is never accepted
    last = jnp.cumprod(accepted & tree.valid[1:]).sum()
    return _chain_verdict(last, p[last], tree, bonus_key)


def block_verification(p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """Block verification of a chain drawn from q (Sun et al. 2024, Algorithm 2): tests whole
    prefixes jointly.

    It accepts in expectation at least as many tokens as ``rejection``. ``w[i]`` is the paper's p_i,
    the probability mass with which the first i tokens may be kept. The longest prefix that passes
    its own test wins, even if a shorter one failed.
    """
    accept_key, bonus_key = random.split(key[0])

    def extend(w, drafted):
        p, q = drafted
        w = jnp.where(w * p >= q, 1.0, w * p / q)  # min(1, w p / q) without overflow; a drawn token has q > 0
        return w, w

    _, w = lax.scan(extend, jnp.float32(1), (_prob_of_next(p, tree), _prob_of_next(tree.q, tree)))
    w = jnp.concatenate([jnp.ones(1), w])  # [N]

    node, end = jnp.arange(w.size), _end(tree)
    surplus = jnp.maximum(w[:, None] * p - tree.q, 0).sum(-1)
    loss = surplus + 1 - w  # zero only where w = 1 and p = q; a longer prefix then passes for certain
    keep = jnp.where(node == end, w, surplus / jnp.where(loss > 0, loss, 1))
    passed = (random.uniform(accept_key, keep.shape) < keep) & (node <= end)
    last = jnp.max(jnp.where(passed.at[0].set(True), node, 0))
    scale = jnp.where(last == end, 1.0, w[last])
    return _chain_verdict(last, scale * p[last], tree, bonus_key)


def recursive_rejection(p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """Recursive rejection of siblings drawn without replacement (Sequoia, Chen et al. 2024,
    Algorithm 1; EAGLE).

    After a rejected sibling the target's distribution is norm(max(p - q, 0)). The next sibling was
    drawn from q without it.
    """

    def proposal(i, parent, tried):
        return normalise(jnp.where(tried, 0, tree.q[parent]))

    return _descend(p, tree, key, proposal, residual)


def multi_step(p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """Multi-step speculative sampling of siblings drawn independently, from one draft or several
    (SpecInfer, Algorithm 2).

    Every sibling is tested against the q from which it was drawn, also where tokens are equal.
    After a rejected sibling the target's distribution is norm(max(p - q, 0)). The paper tests in
    random order. Every order that does not depend on the drawn tokens is exact; here it is the
    order of the nodes.
    """

    def proposal(i, parent, tried):
        return tree.q[parent] if tree.source is None else tree.q[tree.source[i], parent]

    return _descend(p, tree, key, proposal, residual)


def k_seq(p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """SpecTr's K-SEQ for k siblings drawn independently from one q (Sun et al. 2023, Algorithm 3).

    Accepts x with probability min(1, p(x) / (rho q(x))). ``beta`` is the acceptance probability of
    one sibling at this rho. rho is the smallest number at which the residual is a distribution: 1 -
    (1 - beta)^k <= rho beta.
    """
    nodes = jnp.arange(tree.parent.size)
    k = jnp.zeros(nodes.size).at[tree.parent].add(jnp.float32(tree.valid & (nodes > 0)))
    overlap = lambda rho: jnp.minimum(p / rho[:, None], tree.q)
    some = lambda beta: 1 - (1 - beta) ** k

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) / 2
        beta = overlap(middle).sum(-1)
        enough = some(beta) <= middle * beta
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    _, rho = lax.fori_loop(0, 30, halve, (jnp.ones(nodes.size), jnp.maximum(k, 1.0)))
    beta = overlap(rho).sum(-1)
    covered = overlap(rho) * (some(beta) / jnp.where(beta > 0, beta, 1))[:, None]
    left = residual(p, jnp.where(k[:, None] > 0, covered, 0))
    return _descend(p, tree, key, lambda i, parent, tried: rho[parent] * tree.q[parent], lambda p, q: p, left)


def traversal(p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """Traversal verification of siblings drawn without replacement (Weng et al. 2025): from the
    leaves up.

    It generalises ``block_verification`` to trees. ``w[i]`` is the mass with which node i may be
    kept; the root has w = 1. Nodes are left in depth-first post-order. A rejected node takes its
    share from the w, p and q of its parent before the next sibling is entered.
    """
    accept_key, bonus_key = random.split(key[0])
    nodes, luck = jnp.arange(tree.parent.size), random.uniform(accept_key, tree.parent.shape)

    def enter(state, child):
        node, seen, w, p, q, _ = state
        x = tree.tokens[child]
        kept, proposed = w[node] * p[node, x], q[node, x]
        ratio = jnp.where(kept > 0, kept / jnp.maximum(proposed, kept), 0)
        return child, seen.at[node].set(child), w.at[child].set(ratio), p, q, False

    def leave(state, _):
        node, seen, w, p, q, _ = state
        above, x = tree.parent[node], tree.tokens[node]
        left = jnp.maximum(w[above] * p[above] - q[above], 0)
        surplus, loss = left.sum(), left.sum() + (1 - w[above])
        shrunk = (
            above,
            seen,
            w.at[above].set(jnp.where(loss > 0, surplus / jnp.where(loss > 0, loss, 1), 1.0)),
            p.at[above].set(jnp.where(surplus > 0, left / jnp.where(surplus > 0, surplus, 1), p[above])),
            q.at[above].set(normalise(q[above].at[x].set(0))),
            False,
        )
        kept = (luck[node] < w[node]) | (node == 0)
        return jax.tree.map(lambda a, b: jnp.where(kept, a, b), (node, seen, w, p, q, True), shrunk)

    def visit(state):
        node, seen = state[:2]
        waiting = (tree.parent == node) & (nodes > seen[node]) & tree.valid
        child = jnp.argmax(waiting)
        return lax.cond(waiting.any(), enter, leave, state, child)

    start = (
        jnp.int32(0),
        nodes,
        jnp.ones(nodes.size),
        p,
        tree.q,
        False,
    )  # a node's children have higher numbers than the node
    node, _, _, p, _, _ = lax.while_loop(lambda state: ~state[-1], visit, start)
    return _verdict_at(node, random.categorical(bonus_key, jnp.log(p[node])), tree, ancestors(tree))


def typical(p: jax.Array, tree: Tree, key: jax.Array, *, epsilon: float = 0.09, delta: float = 0.3) -> Verdict:
    """Typical acceptance (Medusa, Cai et al. 2024, section 2.3.1). **Lossy**: the output is not the
    target's law.

    Accepts nodes with p(x) > min(epsilon, delta exp(-H(p))), H the entropy. The longest path wins;
    of equally long paths the most probable. p includes the sampling options. The bonus token is
    drawn from p, where the paper takes the likeliest. The rule is never chosen by "auto".
    """
    entropy = -jnp.where(p > 0, p * jnp.log(jnp.where(p > 0, p, 1)), 0).sum(-1)
    threshold = jnp.minimum(epsilon, delta * jnp.exp(-entropy))
    likely = p[tree.parent, tree.tokens]
    path = jnp.where(ancestors(tree), jnp.log(likely).at[0].set(0), 0).sum(-1)
    last, lineage = _deepest(likely > threshold[tree.parent], tree, path)
    return _verdict_at(last, random.categorical(key[0], jnp.log(p[last])), tree, lineage)


RULES = {
    "argmax_walk": argmax_walk,
    "sample_and_walk": sample_and_walk,
    "rejection": rejection,
    "block": block_verification,
    "recursive_rejection": recursive_rejection,
    "multi_step": multi_step,
    "k_seq": k_seq,
    "traversal": traversal,
    "typical": typical,
}
"""The rules by their public names."""

LOSSY = ("typical",)


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
}
"""For each rule that divides by q, the ways of drawing for which it is exact."""

_AUTO = {
    Drawn.CHOSEN: "sample_and_walk",
    Drawn.CHAIN: "block",
    Drawn.WITHOUT_REPLACEMENT: "recursive_rejection",
    Drawn.INDEPENDENT: "multi_step",
    Drawn.FROM_SEVERAL: "multi_step",
}


def resolve(name: str, drawn: Drawn) -> Callable:
    """The rule called ``name``; "auto" is the lossless rule that accepts most of nodes drawn in
    this way.

    Raises RequestError for an unknown name, or a rule that is not exact for nodes drawn in this
    way.
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
    """The rule's verdict for every row.

    Args:
      p: float32 [B, N, V]; ``tree`` is batched.
      keys: typed keys [B, P].
      temperature: float32 [B]. Where all rows are greedy only the greedy walk is computed.
    """
    return lax.cond(
        jnp.all(temperature == 0),
        lambda p, tree, keys: jax.vmap(argmax_walk)(p, tree),
        lambda p, tree, keys: jax.vmap(rule)(p, tree, keys),
        p, tree, keys,
    )  # fmt: skip


def _walk(wanted: jax.Array, tree: Tree) -> Verdict:
    """The verdict on the deepest path along which every token is the one ``wanted`` int32 [N] after
    its parent.
    """
    last, lineage = _deepest(tree.tokens == wanted[tree.parent], tree)
    return _verdict_at(last, wanted[last], tree, lineage)


def _deepest(kept: jax.Array, tree: Tree, value: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """The deepest valid node that is kept, bool [N], with all its ancestors; and the ancestor
    matrix.

    Of equally deep nodes the one of the highest ``value`` float32 [N] wins, or the first.
    """
    lineage = ancestors(tree)
    reachable = ((kept & tree.valid).at[0].set(True) | ~lineage).all(-1)
    depth = jnp.where(reachable, lineage.sum(-1), 0)
    return jnp.argmax(depth if value is None else jnp.where(depth == depth.max(), value, -jnp.inf)), lineage


def _verdict_at(last: jax.Array, bonus: jax.Array, tree: Tree, lineage: jax.Array) -> Verdict:
    """The verdict that accepts the path from the root to node ``last``."""
    path = jnp.flatnonzero(
        lineage[last], size=tree.max_depth + 1, fill_value=last
    )  # topological order: from the root down
    return Verdict(path, lineage[last].sum(), bonus)


def _descend(p, tree: Tree, key, proposal: Callable, residual: Callable, left: jax.Array | None = None) -> Verdict:
    """Tests siblings one after another and descends to the first that passes, in one pass over the
    nodes.

    Args:
      proposal: ``(i, parent, tried) -> [V]``, the distribution of node i, given bool [V] ``tried``,
        the rejected tokens.
      residual: ``(r, q) -> [V]``, the target's distribution after a rejection, r before it.
      left: float32 [N, V], the distributions of the bonus token; by default those after all
        rejections.
    """
    accept_key, bonus_key = random.split(key[0])
    luck = random.uniform(accept_key, tree.parent.shape)

    def test(carry, i):
        node, r, tried = carry
        x, q = tree.tokens[i], proposal(i, node, tried)
        tested = (tree.parent[i] == node) & tree.valid[i]
        kept = tested & (luck[i] * q[x] < r[x])
        r = jnp.where(kept, p[i], jnp.where(tested, residual(r, q), r))
        tried = ~kept & tried.at[x].set(tried[x] | tested)
        return (jnp.where(kept, i, node), r, tried), None

    start = (jnp.int32(0), p[0], jnp.zeros(p.shape[-1], bool))
    (last, r, _), _ = lax.scan(test, start, jnp.arange(1, tree.parent.size))
    bonus = random.categorical(bonus_key, jnp.log(r if left is None else left[last]))
    return _verdict_at(last, bonus, tree, ancestors(tree))


def normalise(weights: jax.Array) -> jax.Array:
    """Weights [..., V] divided by their sum; zeros where the sum is zero."""
    total = weights.sum(-1, keepdims=True)
    return weights / jnp.where(total > 0, total, 1)


def residual(p: jax.Array, q: jax.Array) -> jax.Array:
    """norm(max(p - q, 0)) [..., V]; p where the difference is empty, since nothing is then ever
    rejected.
    """
    left = jnp.maximum(p - q, 0)
    return jnp.where(left.sum(-1, keepdims=True) > 0, normalise(left), p)


def _prob_of_next(dist: jax.Array, tree: Tree) -> jax.Array:
    """[N - 1]: the probability of each drafted token of a chain under ``dist`` [N, V] of its
    predecessor.
    """
    return jnp.take_along_axis(dist[:-1], tree.tokens[1:, None], axis=-1)[:, 0]


def _end(tree: Tree) -> jax.Array:
    """The last node of a chain that may be accepted."""
    return jnp.cumprod(tree.valid[1:]).sum()


def _chain_verdict(last: jax.Array, p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """Accepts nodes 0 to ``last`` of a chain, and draws the bonus token from norm(max(p - q, 0)),
    or from p after the end.
    """
    left = residual(p, jnp.where(last == _end(tree), 0, tree.q[last]))
    path = jnp.minimum(jnp.arange(tree.max_depth + 1), last)
    return Verdict(path, last + 1, random.categorical(key, jnp.log(left)))
