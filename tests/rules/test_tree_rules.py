"""Acceptance rules on trees: their law against the target's, their acceptance against the papers' loops written in plain Python."""

import itertools
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import random
from support.models import p_value

from specjax.core.tree import Tree
from specjax.core.verdict import normalise
from specjax.rules import RULES, Drawn
from specjax.rules.chains import block_verification, rejection
from specjax.rules.several_paths import choose

V, K, DRAWS, UNLIKELY = 3, 2, 40_000, 1e-4
PARENT = np.array([0, 0, 0, 1, 1, 2, 2])  # two tokens after the root, two after each of them
RAGGED = np.array([1, 1, 1, 1, 1, 1, 0], bool)  # the second token has one child

DRAWN = {
    "recursive_rejection": "without_replacement",
    "traversal": "without_replacement",
    "multi_step": "independent",
    "k_seq": "independent",
    "greedy_block": "independent",
    "sample_and_walk": "without_replacement",
}


def world(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Target and draft [4, V]: after the root, and after each first token; row 0 is the root's. The third level is the target's."""
    rng = np.random.default_rng(5)
    p, q = rng.dirichlet(np.ones(V), (2, 1 + V))
    if kind == "equal":
        q = p
    if kind == "zeros":
        p[:, 0], q[::2, 1] = 0, 0
    if kind == "disjoint":
        p[:, 0], q[:, 1:] = 0, 0
    if kind == "one-hot":
        p[1:] = np.eye(V)
    if kind == "ties":
        p[:], q[0] = 1 / V, [0.5, 0.5, 0]
    return p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)


def draw_tree(q: jax.Array, scheme: str, valid: jax.Array, key) -> Tree:
    """Siblings drawn from q [1 + V, V], or from q [2, 1 + V, V] by turns, the first of each pair by the first draft."""
    several = q.ndim == 3
    tokens, alive, dists = [jnp.int32(0)], [jnp.bool_(True)], []
    for node, parent in enumerate(PARENT[1:], 1):
        place = jnp.where(parent == 0, 0, tokens[parent] + 1)
        dist = q[(node - 1) % K, place] if several else q[place]
        if scheme == "without_replacement" and (node - 1) % K:
            dist = normalise(dist.at[tokens[node - 1]].set(0))
        tokens.append(random.categorical(random.fold_in(key, node), jnp.log(dist)).astype(jnp.int32))
        alive.append(dist.sum() > 0)
    for node in range(len(PARENT)):
        inner = node in PARENT
        place = 0 if node == 0 else tokens[node] + 1
        dists.append(jnp.where(inner, q[..., place, :], 0))
    source = jnp.where(jnp.arange(len(PARENT)) == 0, 0, (jnp.arange(len(PARENT)) - 1) % K) if several else None
    q_nodes = jnp.stack(dists, -2)
    return Tree(jnp.stack(tokens), jnp.asarray(PARENT), jnp.stack(alive) & valid, q_nodes, source, max_depth=2)


@partial(jax.jit, static_argnames=("rule", "scheme"))
def play(rule, scheme: str, p, q, valid, keys):
    """First two tokens [n, 2] of each draw and the accepted lengths [n]; what the rule leaves open is the target's."""

    def once(key):
        tree_key, rule_key, fill_key = random.split(key, 3)
        tree = draw_tree(q, scheme, valid, tree_key)
        place = jnp.where(jnp.arange(len(PARENT)) == 0, 0, tree.tokens + 1)
        leaf = ~jnp.isin(jnp.arange(len(PARENT)), PARENT) | (jnp.arange(len(PARENT)) == 0)
        verdict = rule(
            jnp.where((leaf & (jnp.arange(len(PARENT)) > 0))[:, None], 1 / V, p[place]),
            tree,
            random.split(rule_key, tree.max_depth + 1),
        )
        emitted = jnp.append(tree.tokens[verdict.path[1:]], 0).at[verdict.length - 1].set(verdict.bonus)
        second = random.categorical(fill_key, jnp.log(p[emitted[0] + 1]))
        return emitted[0], jnp.where(verdict.length > 1, emitted[1], second), verdict.length

    first, second, length = jax.vmap(once)(keys)
    return jnp.stack([first, second], 1), length


@cache
def outcome(rule, scheme, kind, ragged=False, several=False) -> tuple[float, float, float]:
    """The p-value of the two tokens, the mean accepted drafts and its standard error."""
    p, q = world(kind)
    q = np.stack([q, np.roll(q, 1, -1)]) if several else q
    valid = jnp.asarray(RAGGED) if ragged else jnp.ones(len(PARENT), bool)
    tokens, length = play(rule, scheme, jnp.float32(p), jnp.float32(q), valid, random.split(random.key(0), DRAWS))
    counts = np.bincount(np.ravel_multi_index(np.asarray(tokens).T, (V, V)), minlength=V * V)
    accepted = np.asarray(length) - 1.0
    return p_value(counts, p[0][:, None] * p[1:]), accepted.mean(), accepted.std() / DRAWS**0.5


KINDS = ("random", "zeros", "disjoint", "equal", "one-hot", "ties")
# Every rule meets the first kind, and those that divide by q meet one of the others, by turns; the second tier has
# every rule with every kind.
TURNS = dict(zip([name for name in DRAWN if RULES[name].exact_for], KINDS[1:]))
CELLS = [
    pytest.param(name, kind, marks=() if kind in (KINDS[0], TURNS.get(name)) else pytest.mark.slow)
    for name, kind in itertools.product(DRAWN, KINDS)
]


@pytest.mark.parametrize(("name", "kind"), CELLS)
def test_law_is_the_targets(name, kind):
    assert outcome(RULES[name], DRAWN[name], kind)[0] > UNLIKELY


RAGGED_IN_FIRST_TIER = ("recursive_rejection", "traversal", "greedy_block")  # one of each file


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in RAGGED_IN_FIRST_TIER else pytest.mark.slow) for name in DRAWN]
)
def test_law_is_the_targets_on_ragged_trees(name):
    assert outcome(RULES[name], DRAWN[name], "random", ragged=True)[0] > UNLIKELY


@pytest.mark.parametrize(
    "kind", ["random", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("zeros", "disjoint"))]
)
def test_siblings_of_several_drafts(kind):
    value, accepted, _ = outcome(RULES["multi_step"], "independent", kind, several=True)
    assert value > UNLIKELY and (accepted > 0 or kind == "disjoint")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "scheme"),
    [
        pytest.param("recursive_rejection", "independent", id="equal siblings tested as if they differed"),
        pytest.param(
            "multi_step", "without_replacement", id="siblings without replacement tested with their parent's q"
        ),
        pytest.param("k_seq", "without_replacement", id="k-seq on siblings without replacement"),
    ],
)
def test_a_rule_on_siblings_drawn_otherwise_is_noticed(rule, scheme):
    assert outcome(RULES[rule], scheme, "random")[0] < UNLIKELY


def simulated(name: str, p, q, draws: int) -> np.ndarray:
    """Accepted drafts of each draw, by the papers' loops over lists."""
    rng = np.random.default_rng(1)
    pick = lambda dist: int(rng.choice(V, p=dist / dist.sum()))

    def siblings(dist):
        dist, chosen = dist.copy(), []
        for _ in range(K):
            if dist.sum() == 0:
                break
            chosen.append(pick(dist))
            if DRAWN[name] == "without_replacement":
                dist[chosen[-1]] = 0
        return chosen

    def down() -> int:
        """Top-down rules: the number of levels passed."""
        place = 0
        for level in range(2):
            r, s, chosen = p[place].copy(), q[place].copy(), siblings(q[place])
            rho = k_seq_rho(r, s, len(chosen)) if name == "k_seq" else 1
            for c in chosen:
                if rng.random() < min(1, r[c] / (rho * s[c])):
                    break
                if name != "k_seq":
                    r = np.maximum(r - s, 0)
                    r /= r.sum()
                if name == "recursive_rejection":
                    s[c] = 0
                    s /= max(s.sum(), 1e-300)
            else:
                return level
            place = c + 1
        return 2

    def visit(place, level, w):
        """Traversal: the depth of the accepted node below this one, or None."""
        r = p[place].copy() if level < 2 else None
        s = q[place].copy() if level < 2 else None
        for c in siblings(q[place]) if level < 2 else []:
            found = visit(c + 1, level + 1, min(1, w * r[c] / s[c]))
            if found is not None:
                return found
            left = np.maximum(w * r - s, 0)
            w = left.sum() / (left.sum() + 1 - w)
            r, s[c] = left / left.sum() if left.any() else r, 0
            s /= max(s.sum(), 1e-300)
        return level if rng.random() < w else None

    def best_path() -> int:
        """Greedy multi-path block verification: the largest level whose own test passes."""
        place, count, w, passed = 0, 1, 1.0, 0
        for level in range(1, 3):
            drawn = sum((siblings(q[place]) for _ in range(count)), [])
            law, levels, number = law_by_enumeration(w * p[place], q[place], len(drawn))
            surplus = np.maximum(w * p[place] - law, 0).sum()
            if level > 1 and rng.random() < surplus / (surplus + 1 - w):
                passed = level - 1
            chosen = max(drawn[:number], key=levels.__getitem__)
            w, count, place = min(1, w * p[place][chosen] / law[chosen]), drawn.count(chosen), chosen + 1
        return 2 if rng.random() < w else passed

    ways = {"traversal": lambda: visit(0, 0, 1.0), "greedy_block": best_path}
    return np.array([ways.get(name, down)() for _ in range(draws)])


@cache
def _rho(p: tuple, q: tuple, k: int) -> float:
    overlap = lambda rho: np.minimum(np.array(p) / rho, q).sum()
    grid = np.linspace(1, k, 2_001)
    return next(rho for rho in grid if 1 - (1 - overlap(rho)) ** k <= rho * overlap(rho) + 1e-12)


def k_seq_rho(p, q, k: int) -> float:
    """The smallest rho of SpecTr, by trying all."""
    return _rho(tuple(p), tuple(q), k)


def law_by_enumeration(p, q, siblings: int) -> tuple[np.ndarray, np.ndarray, int]:
    """The law of the first of ``count`` independent draws at the highest level; the levels of p / q; and the count."""
    return _law(tuple(p), tuple(q), siblings)


@cache
def _law(p: tuple, q: tuple, siblings: int) -> tuple[np.ndarray, np.ndarray, int]:
    p, q = np.array(p), np.array(q)
    with np.errstate(divide="ignore", invalid="ignore"):
        levels = np.clip(np.nan_to_num(np.round(4 * np.log2(p / q)), nan=-16, posinf=-16), -16, 16)
    laws = np.zeros((siblings + 1, len(p)))
    for count in range(1, siblings + 1):
        for drawn in itertools.product(range(len(p)), repeat=count):
            laws[count, max(drawn, key=levels.__getitem__)] += np.prod(q[list(drawn)])
    count = 1 + int(np.argmax(np.minimum(p, laws[1:]).sum(1).round(6)))
    return laws[count], levels, count


choose_at_once = jax.jit(choose)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("siblings", [1, 2, 4])
@pytest.mark.parametrize("w", [1, 0.3])
def test_law_of_the_chosen_sibling(kind, siblings, w):
    for p, q in zip(*world(kind)):
        law, levels, count = law_by_enumeration(w * p, q, siblings)
        level, found, number = choose_at_once(jnp.float32(w * p), jnp.float32(q), jnp.int32(siblings))
        np.testing.assert_allclose(found, law, atol=1e-6)
        np.testing.assert_array_equal(level, levels)
        assert number == count


def test_the_law_of_the_chosen_is_precise_for_large_vocabularies():
    """Tokens with tiny q have the relative precision of float32, against float64."""
    p, q = np.random.default_rng(0).dirichlet(np.full(50_000, 0.05), 2).astype(np.float32)
    level, law, count = map(np.asarray, choose(p, q, 5))
    masses = np.bincount(level + 16, np.float64(q))
    up_to = np.cumsum(masses)
    chosen = (up_to**count - np.append(0, up_to[:-1]) ** count) / np.where(masses > 0, masses, 1)
    assert count > 1
    np.testing.assert_allclose(law, q * chosen[level + 16], rtol=1e-4, atol=1e-30)


@pytest.mark.parametrize("name", ["recursive_rejection", "multi_step", "k_seq", "traversal", "greedy_block"])
def test_acceptance_is_that_of_the_papers_loops(name):
    slow = simulated(name, *world("random"), 10_000)
    _, mean, error = outcome(RULES[name], DRAWN[name], "random")
    assert abs(mean - slow.mean()) < 4 * (error**2 + slow.var() / slow.size) ** 0.5, (mean, slow.mean())


def test_better_rules_accept_more():
    rates = {name: outcome(RULES[name], drawn, "random")[1:] for name, drawn in DRAWN.items()}
    gap = lambda a, b: (rates[a][0] - rates[b][0]) / (rates[a][1] ** 2 + rates[b][1] ** 2) ** 0.5
    assert gap("traversal", "recursive_rejection") > -3
    assert min(gap("greedy_block", "multi_step"), gap("greedy_block", "k_seq")) > 10
    assert gap("recursive_rejection", "multi_step") > 10  # without replacement nothing is drawn twice


@pytest.mark.parametrize(
    ("tree_rule", "chain_rule"),
    [
        ("recursive_rejection", rejection),
        ("traversal", block_verification),
        ("greedy_block", block_verification),
        pytest.param("multi_step", rejection, marks=pytest.mark.slow),
    ],
)
def test_on_a_chain_it_is_the_chain_rule(tree_rule, chain_rule):
    p, q = (np.random.default_rng(3).dirichlet(np.ones(4), 4) for _ in range(2))
    q = np.concatenate([np.random.default_rng(4).dirichlet(np.ones(4), 3), np.zeros((1, 4))])

    def once(rule, key):
        draw_key, rule_key = random.split(key)
        drafted = random.categorical(draw_key, jnp.log(jnp.float32(q[:3])))
        tree = Tree(jnp.append(0, drafted), jnp.array([0, 0, 1, 2]), jnp.ones(4, bool), jnp.float32(q), max_depth=3)
        return rule(jnp.float32(p), tree, random.split(rule_key, 4)).length

    many = lambda rule, seed: jax.jit(jax.vmap(partial(once, rule)))(random.split(random.key(seed), DRAWS))
    lengths = [np.bincount(many(r, i), minlength=5)[1:] for i, r in enumerate(
        (RULES[tree_rule], chain_rule))]  # fmt: skip
    share = sum(lengths) / sum(map(sum, lengths))
    assert min(p_value(n, share) for n in lengths) > 1e-3


def test_typical_keeps_what_is_likely_enough_and_says_it_is_lossy():
    """Two drafts of 0.5 and 0.06 under a target of 0.5, 0.44, 0.06: min(0.09, 0.3 exp(-0.88)) = 0.09 keeps the first only."""
    typical = jax.jit(RULES["typical"])
    p = jnp.tile(jnp.array([0.5, 0.44, 0.06]), (3, 1))
    tree = lambda a, b: Tree(jnp.array([0, a, b]), jnp.array([0, 0, 1]), jnp.ones(3, bool), max_depth=2)
    assert typical(p, tree(0, 2), random.split(random.key(0), 3)).length == 2
    assert typical(p, tree(2, 0), random.split(random.key(0), 3)).length == 1
    flat = jnp.full((3, 100), 0.01)  # exp(-H) = 0.01, so 0.003 is enough
    assert typical(flat, tree(5, 6), random.split(random.key(0), 3)).length == 3


N, WIDE = 7, 5
CHAINS = {Drawn.CHAIN, Drawn.CHAIN_OR_CHOSEN}

verify = {
    name: jax.jit(rule)
    for name, rule in RULES.items()
    if name != "argmax_walk" and not (rule.exact_for and CHAINS.issuperset(rule.exact_for))
}
DISTRIBUTIONS = st.sampled_from(["dirichlet", "zeros", "one-hot", "ties"])


def distribution(rng, kind: str) -> np.ndarray:
    if kind == "one-hot":
        return np.eye(WIDE)[rng.integers(WIDE)]
    weights = {
        "dirichlet": rng.dirichlet(np.full(WIDE, 0.3)),
        "zeros": rng.dirichlet(np.ones(WIDE)) * (rng.random(WIDE) < 0.5),
        "ties": np.ones(WIDE),
    }
    total = weights[kind].sum()
    return weights[kind] / total if total else np.eye(WIDE)[0]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if RULES[name].lossy else ()) for name in verify]
)
@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31 - 1), p_kind=DISTRIBUTIONS, q_kind=DISTRIBUTIONS, same=st.booleans())
def test_verdicts_are_paths_to_possible_tokens(name, seed, p_kind, q_kind, same):
    rng = np.random.default_rng(seed)
    parent = np.array([0] + [rng.integers(0, i) for i in range(1, N)])
    p = np.stack([distribution(rng, p_kind) for _ in range(N)])
    q = p.copy() if same else np.stack([distribution(rng, q_kind) for _ in range(N)])
    valid = rng.random(N) < 0.8
    valid[0] = True
    tokens, texts, first = np.zeros(N, int), [()], {(): 0}
    for i in range(1, N):
        tokens[i] = rng.choice(WIDE, p=q[parent[i]])
        texts.append((*texts[parent[i]], tokens[i]))
        same_text = first.setdefault(texts[i], i)  # the models give equal texts equal distributions
        p[i], q[i] = p[same_text], q[same_text]
    q[~np.isin(np.arange(N), parent[1:])] = 0
    tree = Tree(jnp.asarray(tokens), jnp.asarray(parent), jnp.asarray(valid), jnp.float32(q), max_depth=N - 1)
    verdict = jax.tree.map(np.asarray, verify[name](jnp.float32(p), tree, random.split(random.key(seed), N)))
    path, length = verdict.path, int(verdict.length)
    assert 1 <= length <= N and path[0] == 0 and np.all(path[length:] == path[length - 1])
    assert np.array_equal(parent[path[1:length]], path[: length - 1]) and valid[path[:length]].all()
    assert np.all(p[path[: length - 1], tokens[path[1:length]]] > 0), "an impossible draft was kept"
    assert p[path[length - 1], verdict.bonus] > 0, "an impossible bonus"
