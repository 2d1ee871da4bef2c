"""Each rule reproduces the target's law over sequences of four tokens, for context-dependent p and q, and accepts as often as its paper says."""

import itertools
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from jax import random
from support.models import p_value

from specjax import RequestError
from specjax.core.tree import Tree, chain
from specjax.core.verdict import Verdict
from specjax.rules import RULES, Rule, walks
from specjax.rules.acceptance import Drawn, accept, resolve
from specjax.rules.chains import block_verification, rejection
from specjax.rules.walks import argmax_walk, sample_and_walk

V, DRAFTS, DRAWS = 3, 3, 120_000
LENGTH = DRAFTS + 1
UNLIKELY = 1e-4  # a lossless rule gives a smaller p-value in one of 10,000 runs; the seeds are fixed


@struct.dataclass
class World:
    """What target and draft say after every sequence of tokens: ``p[i]`` and ``q[i]`` are [V] * i + [V], indexed by what came before."""

    p: tuple
    q: tuple

    @property
    def law(self) -> np.ndarray:
        """Probability of each sequence of four tokens, [V, V, V, V]."""
        law = np.ones(())
        for p in self.p:
            law = law[..., None] * np.asarray(p, np.float64)
        return law


def make_world(kind: str) -> World:
    rng = np.random.default_rng(5)
    table = lambda i, sharpness: rng.dirichlet(np.full(V, sharpness), (V,) * i)
    p, q = ([table(i, 0.2 if kind == "sharp" else 1.0) for i in range(n)] for n in (LENGTH, DRAFTS))
    if kind == "sparse":  # as after top-k: every distribution loses a token, not always the same
        lose = lambda x: np.where(np.arange(V) == rng.integers(V, size=(*x.shape[:-1], 1)), 0, x)
        p, q = ([lose(x) for x in xs] for xs in (p, q))
    if kind == "close":
        q = [x * np.exp(0.1 * rng.normal(size=x.shape)) for x in p[:DRAFTS]]
    if kind == "equal":
        q = p[:DRAFTS]
    return World(*(tuple(jnp.asarray(x / x.sum(-1, keepdims=True), jnp.float32) for x in xs) for xs in (p, q)))


WORLDS = {kind: make_world(kind) for kind in ("random", "sharp", "sparse", "close", "equal")}


def sampled_chain(world: World, kept, key):
    """A chain drawn from q of which ``kept`` drafts are valid, and p after each node."""
    drafted = []
    for q, noise in zip(world.q, random.gumbel(key, (DRAFTS, V))):
        drafted.append(jnp.argmax(jnp.log(q[tuple(drafted)]) + noise))
    p, q = (jnp.stack([x[tuple(drafted[:i])] for i, x in enumerate(xs)]) for xs in (world.p, world.q))
    tokens = jnp.stack([jnp.zeros_like(drafted[0]), *drafted])
    return chain(tokens, jnp.concatenate([q, jnp.zeros((1, V))]), jnp.arange(LENGTH) <= kept), p


def greedy_chain(world: World, kept, key):
    drafted = []
    for q in world.q:
        drafted.append(q[tuple(drafted)].argmax())
    p = jnp.stack([x[tuple(drafted[:i])] for i, x in enumerate(world.p)])
    return chain(jnp.stack([jnp.zeros_like(drafted[0]), *drafted]), valid=jnp.arange(LENGTH) <= kept), p


def top_two_tree(world: World, kept, key):
    """The two likeliest drafts, the two likeliest after the first of them, the likeliest after the second, and one at the third level."""
    a, b = jnp.argsort(-world.q[0])[:2]
    aa, ab = jnp.argsort(-world.q[1][a])[:2]
    ba = world.q[1][b].argmax()
    aba = world.q[2][a, ab].argmax()
    p = [
        world.p[0],
        world.p[1][a],
        world.p[1][b],
        world.p[2][a, aa],
        world.p[2][a, ab],
        world.p[2][b, ba],
        world.p[3][a, ab, aba],
    ]
    tokens = jnp.stack([jnp.zeros_like(a), a, b, aa, ab, ba, aba])
    return Tree(tokens, jnp.array([0, 0, 0, 1, 1, 2, 4]), jnp.arange(7) <= kept, None, max_depth=3), jnp.stack(p)


@partial(
    jax.jit, static_argnums=(0, 1), compiler_options={"xla_backend_optimization_level": 2}
)  # it runs for longer than it compiles
def draw(rule, draft, world: World, kept, keys):
    """Four tokens [DRAWS, 4], those after the verdict's drawn from the target, and accepted drafts [DRAWS]."""

    def once(key):
        draft_key, rule_key, rest_key = random.split(key, 3)
        tree, p = draft(world, kept, draft_key)
        verdict = rule(p, tree, random.split(rule_key, LENGTH))
        tokens = jnp.append(tree.tokens[verdict.path[1:]], 0).at[verdict.length - 1].set(verdict.bonus)
        emitted = []
        for i, noise in enumerate(random.gumbel(rest_key, (LENGTH, V))):
            further = jnp.argmax(jnp.log(world.p[i][tuple(emitted)]) + noise)
            emitted.append(jnp.where(i < verdict.length, tokens[i], further))
        return jnp.stack(emitted), verdict.length - 1

    return jax.vmap(once)(keys)


@cache
def outcome(rule, draft, kind: str, kept: int = 99) -> tuple[np.ndarray, np.ndarray]:
    """How often each sequence came out, and how often 0, 1, ... drafts were accepted."""
    tokens, accepted = draw(rule, draft, WORLDS[kind], kept, random.split(random.key(7), DRAWS))
    codes = np.ravel_multi_index(np.asarray(tokens).T, (V,) * LENGTH)
    return np.bincount(codes, minlength=V**LENGTH), np.bincount(accepted, minlength=DRAFTS + 1)


PAIRS = [
    (rejection, sampled_chain),
    (block_verification, sampled_chain),
    (sample_and_walk, sampled_chain),
    (sample_and_walk, greedy_chain),
    (sample_and_walk, top_two_tree),
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORLDS)
@pytest.mark.parametrize(("rule", "draft"), PAIRS)
def test_law_is_the_targets(rule, draft, kind):
    counts, _ = outcome(rule, draft, kind)
    assert p_value(counts, WORLDS[kind].law) > UNLIKELY


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 1, 2])
@pytest.mark.parametrize(("rule", "draft"), PAIRS)
def test_law_is_the_targets_where_drafts_are_cut_off(rule, draft, kept):
    counts, accepted = outcome(rule, draft, "random", kept)
    assert p_value(counts, WORLDS["random"].law) > UNLIKELY
    assert accepted[kept + 1 :].sum() == 0 and (accepted[kept] > 0 or draft is top_two_tree)


def equality_then_residual(p, tree, key):
    """Keeps a draft that equals a draw from p, and still corrects by max(p - q, 0) as if by rejection."""
    bonus_key = random.fold_in(key[0], 0)
    verdict = sample_and_walk(p, tree, key)
    last = verdict.path[-1]
    residual = jnp.maximum(p[last] - tree.q[last], 0)
    return verdict.replace(bonus=random.categorical(bonus_key, jnp.log(residual)))


def q_before_warping(p, tree, key):
    """Judges by the q of temperature 2 what was drawn from q."""
    q = jnp.sqrt(tree.q)
    return rejection(p, tree.replace(q=q / jnp.maximum(q.sum(-1, keepdims=True), 1e-9)), key)


def bonus_from_p(p, tree, key):
    """Corrects a refused draft by a draw from p itself."""
    bonus_key = random.fold_in(key[0], 0)
    verdict = rejection(p, tree, key)
    return verdict.replace(bonus=random.categorical(bonus_key, jnp.log(p[verdict.path[-1]])))


def rejection_but_longest(p, tree, key):
    """Takes the longest prefix whose last draft passes, as block verification does, by the test of rejection."""
    accept_key, bonus_key = random.split(key[0])
    ratio = [p[i, tree.tokens[i + 1]] / tree.q[i, tree.tokens[i + 1]] for i in range(DRAFTS)]
    passed = random.uniform(accept_key, (DRAFTS,)) < jnp.stack(ratio)
    last = jnp.max(jnp.where(passed, jnp.arange(1, LENGTH), 0))
    bonus = random.categorical(bonus_key, jnp.log(jnp.maximum(p[last] - tree.q[last], 0)))
    return Verdict(jnp.minimum(jnp.arange(LENGTH), last), last + 1, bonus)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [equality_then_residual, q_before_warping, bonus_from_p, rejection_but_longest])
def test_wrong_rules_are_noticed(rule):
    counts, _ = outcome(rule, sampled_chain, "random")
    assert p_value(counts, WORLDS["random"].law) < 1e-20


def rejection_law(p, q, drafted) -> list[float]:
    """P(i drafts are accepted), i = 0, 1, ...: each by min(1, p / q), up to the first refusal (Leviathan et al., Algorithm 1)."""
    passes = [min(1, p[i][drafted[i]] / q[i][drafted[i]]) for i in range(len(drafted))]
    return [np.prod(passes[:i]) * (1 - passes[i] if i < len(passes) else 1) for i in range(len(passes) + 1)]


def block_law(p, q, drafted) -> list[float]:
    """P(i drafts are accepted): the last i whose own test h_i passes (Sun et al., Algorithm 2)."""
    w, h = 1.0, [1.0]
    for i, x in enumerate(drafted, 1):
        w = min(1, w * p[i - 1][x] / q[i - 1][x])
        surplus = sum(max(w * p[i][v] - q[i][v], 0) for v in range(V)) if i < len(drafted) else 0
        h.append(w if i == len(drafted) else surplus / (surplus + 1 - w) if surplus + 1 > w else 0.0)
    return [h[i] * np.prod([1 - x for x in h[i + 1 :]]) for i in range(len(h))]


def expected(formula, world: World, drafts: int = DRAFTS) -> np.ndarray:
    """P(i drafts are accepted), summed over everything the draft can say."""
    P, Q = ([np.asarray(x, np.float64) for x in xs] for xs in (world.p, world.q))
    total = np.zeros(DRAFTS + 1)
    for drafted in itertools.product(range(V), repeat=drafts):
        p, q = ([x[drafted[:i]] for i, x in enumerate(xs[: drafts + 1])] for xs in (P, Q))
        weight = np.prod([q[i][x] for i, x in enumerate(drafted)])
        if weight > 0:
            total[: drafts + 1] += weight * np.array(formula(p, q, drafted))
    return total


@pytest.mark.slow
@pytest.mark.parametrize("kept", [1, 2, 3])
@pytest.mark.parametrize("kind", ["random", "sharp", "sparse"])
@pytest.mark.parametrize(("rule", "formula"), [(rejection, rejection_law), (block_verification, block_law)])
def test_acceptance_is_that_of_the_paper(rule, formula, kind, kept):
    _, accepted = outcome(rule, sampled_chain, kind, kept)
    assert p_value(accepted, expected(formula, WORLDS[kind], kept)) > UNLIKELY


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORLDS)
def test_the_first_draft_passes_rejection_with_the_overlap_of_p_and_q(kind):
    world = WORLDS[kind]
    _, accepted = outcome(rejection, sampled_chain, kind)
    overlap = float(jnp.minimum(world.p[0], world.q[0]).sum())
    assert abs(1 - accepted[0] / DRAWS - overlap) <= 4.5 * np.sqrt(overlap * abs(1 - overlap) / DRAWS) + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["random", "sharp", "sparse", "close"])
def test_block_accepts_at_least_as_much_as_rejection(kind):
    mean = lambda law: law @ np.arange(DRAFTS + 1)
    by_block, by_token = (mean(expected(f, WORLDS[kind])) for f in (block_law, rejection_law))
    assert by_block >= by_token - 1e-9 and (kind != "random" or by_block > by_token + 0.01)
    blocks, tokens = (mean(outcome(rule, sampled_chain, kind)[1]) / DRAWS for rule in (block_verification, rejection))
    assert blocks - tokens > by_block - by_token - 4.5 * DRAFTS * np.sqrt(0.5 / DRAWS)


@pytest.mark.slow
def test_a_walk_goes_on_with_the_mass_of_the_children():
    world = WORLDS["random"]
    (p0, p1, p2, _), (q0, q1, q2) = ([np.asarray(x, np.float64) for x in xs] for xs in (world.p, world.q))
    a, b = np.argsort(-q0)[:2]
    aa, ab = np.argsort(-q1[a])[:2]
    ba, aba = q1[b].argmax(), q2[a, ab].argmax()
    first = p0[a] + p0[b]
    second = p0[a] * (p1[a, aa] + p1[a, ab]) + p0[b] * p1[b, ba]
    third = p0[a] * p1[a, ab] * p2[a, ab, aba]
    _, accepted = outcome(sample_and_walk, top_two_tree, "random")
    assert p_value(accepted, [1 - first, first - second, second - third, third]) > UNLIKELY


@partial(jax.jit, static_argnums=0)
def verify(rule, p, tree: Tree) -> Verdict:
    """The verdicts on a batch of trees."""
    return jax.vmap(rule)(jnp.asarray(p), tree, random.split(random.key(3), (len(p), tree.max_depth + 1)))


def repeated(row, count: int):
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), row)


@pytest.mark.parametrize("rule", [rejection, block_verification])
def test_equal_p_and_q_accept_everything(rule):
    p = np.random.default_rng(0).dirichlet(np.full(8, 0.3), (2000, 5)).astype(np.float32)
    q = np.where(np.arange(5)[:, None] < 4, p, 0)
    tokens = jnp.pad(random.categorical(random.key(2), jnp.log(q[:, :-1])), ((0, 0), (1, 0)))
    verdict = verify(rule, p, jax.vmap(chain)(tokens, q))
    assert np.all(verdict.length == 5)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [rejection, block_verification])
def test_disjoint_supports_accept_nothing_and_draw_from_p(rule):
    p = jnp.array([0.0, 0.2, 0.0, 0.5, 0.3])
    q = jnp.array([0.9, 0.0, 0.1, 0.0, 0.0])
    tree = chain(jnp.array([1, 0, 2]), jnp.stack([q, q, jnp.zeros(5)]))
    verdict = verify(rule, *repeated((jnp.tile(p, (3, 1)), tree), DRAWS))
    assert np.all(verdict.length == 1)
    assert p_value(np.bincount(verdict.bonus, minlength=5), p) > UNLIKELY


N, WORDS, TREES = 10, 12, 1500
WALKS = {rule.name for rule in walks.RULES}
"""The rules that get random trees without q. The others get chains with q, which every rule takes."""


@cache
def random_trees(seed: int, branching: bool) -> Tree:
    """Trees with siblings that differ and nodes that are not valid, or chains with a cut; without q."""
    rng = np.random.default_rng(seed)
    parent = np.maximum(np.arange(N) - 1, 0) * np.ones((TREES, 1), int)
    if branching:
        parent = np.where(rng.random((TREES, N)) < 0.6, (rng.random((TREES, N)) * np.arange(N)).astype(int), parent)
    tokens = rng.integers(WORDS, size=(TREES, N))
    for tree, words in zip(parent, tokens):
        for node in range(1, N):
            elder = [i for i in range(1, node) if tree[i] == tree[node]]
            words[node] = (words[elder[0]] + len(elder)) % WORDS if elder else words[node]
    valid = (rng.random((TREES, N)) < 0.85) | (np.arange(N) == 0)
    return Tree(*map(jnp.asarray, (tokens, parent, valid)), max_depth=N - 1)


def wanted_tokens(tree: Tree, seed: int) -> np.ndarray:
    """A token after each node, most often one of its children's."""
    rng = np.random.default_rng(seed)
    wanted = rng.integers(WORDS, size=tree.tokens.shape)
    for b, (parent, tokens) in enumerate(zip(np.asarray(tree.parent), np.asarray(tree.tokens))):
        for node in rng.permutation(np.arange(1, N)):
            if rng.random() < 0.8:
                wanted[b, parent[node]] = tokens[node]
    return wanted


def followed(tokens, parent, valid, wanted) -> list[int]:
    """Nodes from the root down, each the valid child that its parent wants (SpecInfer, VerifyGreedy)."""
    path = [0]
    while True:
        children = [i for i in range(1, N) if parent[i] == path[-1] and valid[i] and tokens[i] == wanted[path[-1]]]
        if not children:
            return path
        path.append(children[0])


@cache
def greedy_walks(branching: bool) -> tuple[Tree, np.ndarray, Verdict]:
    """Random trees, a token after each node, and the verdicts that follow these tokens."""
    tree = random_trees(1, branching)
    wanted = wanted_tokens(tree, 2)
    rows = zip(*map(np.asarray, (tree.tokens, tree.parent, tree.valid)), wanted)
    paths = [followed(*row) for row in rows]
    last = [path[-1] for path in paths]
    filled = [path + path[-1:] * (N - len(path)) for path in paths]
    return tree, wanted, Verdict(np.array(filled), np.array(list(map(len, paths))), wanted[np.arange(len(last)), last])


@pytest.mark.parametrize("name", RULES)
def test_without_randomness_every_rule_is_the_greedy_walk(name):
    tree, wanted, expected = greedy_walks(branching=name in WALKS)
    if name not in WALKS:
        tree = tree.replace(q=jnp.pad(jax.nn.one_hot(tree.tokens[:, 1:], WORDS), ((0, 0), (0, 1), (0, 0))))
    p = jax.nn.one_hot(wanted, WORDS)
    assert_equal(verify(RULES[name], p, tree), expected)


def test_ties_go_to_the_lower_token():
    p = jnp.array([[0.1, 0.45, 0.45, 0.0], [0.25, 0.25, 0.25, 0.25]])
    taken, missed = jax.jit(lambda: [argmax_walk(p, chain(jnp.array([3, draft]))) for draft in (1, 2)])()
    assert (taken.length, taken.bonus) == (2, 0) and (missed.length, missed.bonus) == (1, 1)


HARD = np.array([0.0, 0.0, 1e-45, 1e-40, 2e-38, 1e-30, 1e-7, 0.3], np.float32)


@cache
def hard_distributions(seed: int) -> np.ndarray:
    """[TREES, N, WORDS], most of each zero, denormal or tiny."""
    rng = np.random.default_rng(seed)
    p = rng.choice(HARD, (TREES, N, WORDS))
    np.put_along_axis(p, rng.integers(WORDS, size=(TREES, N, 1)), 0.5, -1)
    return (p / p.sum(-1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("name", RULES)
def test_verdicts_keep_to_the_tree_and_to_possible_tokens(name):
    tree, p = random_trees(3, branching=name in WALKS), hard_distributions(4)
    if name not in WALKS:
        q = np.where(np.arange(N)[:, None] < N - 1, hard_distributions(5), 0)
        tokens = random.categorical(random.key(1), jnp.log(q[:, :-1]))
        tree = tree.replace(q=jnp.asarray(q), tokens=jnp.pad(tokens, ((0, 0), (1, 0))))
    verdict = verify(RULES[name], p, tree)
    tokens, parent, valid = map(np.asarray, (tree.tokens, tree.parent, tree.valid))
    assert np.ptp(verdict.length) > 1
    for b, (path, length, bonus) in enumerate(zip(*map(np.asarray, (verdict.path, verdict.length, verdict.bonus)))):
        assert 1 <= length <= N and path[0] == 0 and np.all(path[length:] == path[length - 1])
        for above, node in itertools.pairwise(path[:length]):
            assert parent[b, node] == above and valid[b, node] and p[b, above, tokens[b, node]] > 0
        assert p[b, path[-1], bonus] > 0


@pytest.mark.parametrize("rule", [rejection, block_verification])
def test_a_draft_that_the_target_rules_out_is_refused_whatever_is_drawn(rule, monkeypatch):
    monkeypatch.setattr(random, "uniform", lambda key, shape: jnp.zeros(shape))  # the draw that passes every other test
    q = jnp.array([[0.5, 0.5], [0.5, 0.5], [0.0, 0.0]])
    p = jnp.array([[0.5, 0.5], [1.0, 0.0], [0.5, 0.5]])
    verdict = jax.jit(lambda: rule(p, chain(jnp.array([0, 1, 1]), q), random.split(random.key(0), 3)))()
    assert verdict.length == 2 and verdict.bonus == 0


@pytest.mark.parametrize("rule", [rejection, block_verification])
def test_a_draft_of_nan_is_refused(rule):
    tree = chain(jnp.array([1, 0, 0]), jnp.full((3, 4), jnp.nan).at[-1].set(0))
    p = jnp.tile(jnp.array([0.0, 0.5, 0.5, 0.0]), (3, 1))
    verdict = verify(rule, *repeated((p, tree), 100))
    assert np.all(verdict.length == 1) and set(verdict.bonus.tolist()) == {1, 2}


@jax.jit
def sampled_batch() -> tuple[jax.Array, Tree, jax.Array]:
    """p, chains drawn from q, and keys of eight rows."""
    keys = random.split(random.key(4), (8, 2))
    trees, p = jax.vmap(lambda key: sampled_chain(WORLDS["random"], DRAFTS, key))(keys[:, 0])
    return p, trees, jax.vmap(lambda key: random.split(key, LENGTH))(keys[:, 1])


accept_batch = jax.jit(accept, static_argnums=0)


def assert_equal(verdict: Verdict, wanted: Verdict):
    jax.tree.map(np.testing.assert_array_equal, verdict, wanted)


def test_a_users_rule_is_a_function_or_a_record():
    p, trees, keys = sampled_batch()
    half = jnp.arange(8) % 2 == 0

    def first_draft(p, tree, key, greedy=False):
        """Accepts one draft, and none in a greedy row."""
        last = jnp.where(greedy, 0, 1)
        return Verdict(jnp.minimum(jnp.arange(LENGTH), last), last + 1, jnp.argmax(p[last]))

    record = Rule("first_draft", first_draft, lossy=True, judges_greedy=True, reads=("greedy",))
    by_function = accept_batch(first_draft, p, trees, keys, jnp.ones(8))
    assert_equal(by_function, accept_batch(Rule("first_draft", first_draft), p, trees, keys, jnp.ones(8)))
    np.testing.assert_array_equal(by_function.bonus, p[:, 1].argmax(-1))
    assert accept_batch(record, p, trees, keys, jnp.float32(half)).length.tolist() == [2, 1] * 4
    assert accept_batch(record, p, trees, keys, jnp.zeros(8)).length.tolist() == [1] * 8
    with pytest.raises(RequestError, match="reads 'colour'; a rule can read greedy, rate, seeded and cosines"):
        accept(Rule("first_draft", first_draft, reads=("colour",)), p, trees, keys, jnp.ones(8))


def test_a_batch_of_greedy_rows_gets_the_greedy_walk():
    p, trees, keys = sampled_batch()
    refuse = lambda p, tree, key: Verdict(jnp.zeros(LENGTH, int), jnp.int32(1), jnp.int32(0))
    assert_equal(accept_batch(refuse, p, trees, keys, jnp.zeros(8)), jax.jit(jax.vmap(argmax_walk))(p, trees))
    assert accept_batch(refuse, p, trees, keys, jnp.zeros(8).at[3].set(1)).length.tolist() == [1] * 8


@jax.jit
def walk_and_block(p, trees, keys) -> list[Verdict]:
    return [jax.vmap(rule)(p, trees, keys) for rule in (sample_and_walk, block_verification)]


@pytest.mark.parametrize("seeds", ["all", "none", "some"])
def test_rows_with_a_seed_walk(seeds):
    p, trees, keys = sampled_batch()
    seeded = {"all": jnp.ones(8, bool), "none": jnp.zeros(8, bool), "some": jnp.arange(8) % 2 == 0}[seeds]
    verdict = accept_batch(RULES["walk_if_seeded"], p, trees, keys, jnp.ones(8), seeded=seeded)
    walk, block = walk_and_block(p, trees, keys)
    for b in range(8):
        assert_equal(*(jax.tree.map(lambda x: x[b], v) for v in (verdict, walk if seeded[b] else block)))


def test_auto_takes_the_rule_that_fits_the_draft():
    wanted = {
        Drawn.CHOSEN: "sample_and_walk",
        Drawn.CHAIN: "block",
        Drawn.CHAIN_OR_CHOSEN: "walk_if_seeded",
        Drawn.WITHOUT_REPLACEMENT: "recursive_rejection",
        Drawn.INDEPENDENT: "greedy_block",
        Drawn.FROM_SEVERAL: "multi_step",
    }
    assert {drawn: resolve("auto", drawn) for drawn in Drawn} == {drawn: RULES[name] for drawn, name in wanted.items()}
    assert all(resolve(name, Drawn.CHAIN) is rule for name, rule in RULES.items())
    for name, drawn in [
        ("rejection", Drawn.CHOSEN), ("block", Drawn.INDEPENDENT), ("traversal", Drawn.INDEPENDENT),
        ("k_seq", Drawn.WITHOUT_REPLACEMENT), ("multi_step", Drawn.CHOSEN), ("k_seq", Drawn.FROM_SEVERAL),
    ]:  # fmt: skip
        with pytest.raises(RequestError, match=f"'{name}' needs"):
            resolve(name, drawn)
    with pytest.raises(RequestError, match="argmax_walk"):
        resolve("no_such_rule", Drawn.CHAIN)
