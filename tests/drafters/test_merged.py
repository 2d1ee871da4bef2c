"""Merged trees against a trie of nested dictionaries, and SpecInfer's loop over it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from support.decoding import NEW, rounds, texts
from support.models import disturbed, p_value, random_prompts, tiny_model, warped
from support.reference import is_greedy, logits_after

from specjax import Generator, RequestError, generate
from specjax.cli.main import make_parser
from specjax.core.selection import draw
from specjax.drafters import Merged, default_method
from specjax.drafters.merged import merge
from specjax.rules import RULES

V, M, D, DRAWS, UNLIKELY = 5, 3, 2, 60_000, 1e-4
NODES = 1 + M * D


def trie(chains: list[list[int]]) -> dict:
    """{token: (drafts that propose it here, in their order, children)}."""
    root = {}
    for m, chain in enumerate(chains):
        children = root
        for token in chain:
            proposers, below = children.setdefault(token, ([], {}))
            proposers.append(m)
            children = below
    return root


def trie_of(tree, b: int) -> dict:
    """The trie of row b of a batched tree."""
    found = [{} for _ in range(tree.tokens.shape[1])]
    root, *_ = found
    for node in range(1, len(found)):
        above, token = found[int(tree.parent[b, node])], int(tree.tokens[b, node])
        proposers, below = above.setdefault(token, ([], found[node]))
        proposers.append(int(tree.source[b, node]))
        assert below is found[node] or node not in np.asarray(tree.parent[b, 1:])  # children hang below the first alone
    return root


def world(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Distributions of the target [1 + V, V] and the drafts [M, 1 + V, V], after the root and after
    each first token.
    """
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(V), 1 + V), rng.dirichlet(np.ones(V), (M, 1 + V))
    if kind == "identical":
        q[:] = q[0]
    if kind == "disjoint":
        q *= (np.arange(V) % M == np.arange(M)[:, None])[:, None]
    if kind == "overlapping":
        q *= (np.arange(V) != np.arange(M)[:, None])[:, None]
    return p, q / q.sum(-1, keepdims=True)


def draw_chains(q, key):
    """The chains int32 [M, D] of all drafts, and the tree that merges them."""
    keys = random.split(key, (M, D))
    first = jax.vmap(random.categorical)(keys[:, 0], jnp.log(q[:, 0]))
    after = jnp.take_along_axis(q, first[:, None, None] + 1, 1)[:, 0]
    second = jax.vmap(random.categorical)(keys[:, 1], jnp.log(after))
    tokens = jnp.stack([first, second], 1)
    return tokens, merge(jnp.int32(0), tokens, jnp.stack([q[:, 0], after], 1))


def without_repeats(tree):
    """A wrong tree: it tests a token once, even if several drafts proposed it."""
    again = (jnp.tril(tree.tokens[:, None] == tree.tokens, -1) & (tree.parent[:, None] == tree.parent))[:, 1:].any(1)
    return tree.replace(valid=~again.at[0].set(False))


def in_order_of_tokens(tree):
    """A wrong tree: it tests all proposals of a token before the next token, so that the order
    depends on the draws.
    """
    order = jnp.argsort(jnp.where(jnp.arange(NODES) == 0, -1, (tree.parent * V + tree.tokens) * M + tree.source))
    parent = jnp.argsort(order)[tree.parent[order]]
    return tree.replace(tokens=tree.tokens[order], parent=parent, source=tree.source[order], q=tree.q[:, order])


@jax.jit
def play(p, q, keys, kind):
    """For each draw the chains, their tree, the verdict, and the first two tokens [2].

    ``kind`` 1 and 2 make the tree wrong.

    The target draws the second token where the rule emits one token only.
    """

    def once(key):
        tree_key, rule_key, fill_key = random.split(key, 3)
        tokens, tree = draw_chains(q, tree_key)
        wrong = tree, without_repeats(tree), in_order_of_tokens(tree)
        tree = jax.tree.map(lambda *leaves: jnp.stack(leaves)[kind], *wrong)
        path = jnp.where(jnp.arange(NODES) == 0, 0, tree.tokens + 1)
        after = jnp.where((tree.parent > 0)[:, None], 1 / V, p[path])  # uniform after the last level
        verdict = RULES["multi_step"](after, tree, random.split(rule_key, tree.max_depth + 1))
        emitted = jnp.append(tree.tokens[verdict.path[1:]], 0).at[verdict.length - 1].set(verdict.bonus)
        fill = random.categorical(fill_key, jnp.log(p[emitted[0] + 1]))
        return tokens, tree, verdict, jnp.stack([emitted[0], jnp.where(verdict.length > 1, emitted[1], fill)])

    return jax.vmap(once)(keys)


def outcome(kind: str, wrong: int = 0) -> tuple[float, float]:
    """The p-value of the two tokens, and the mean accepted length."""
    p, q = world(kind)
    *_, verdict, emitted = play(jnp.float32(p), jnp.float32(q), random.split(random.key(0), DRAWS), wrong)
    counts = np.bincount(np.ravel_multi_index(np.asarray(emitted).T, (V, V)), minlength=V * V)
    return p_value(counts, p[0][:, None] * p[1:]), float(verdict.length.mean())


@pytest.mark.parametrize(
    "kind",
    ["random", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("disjoint", "identical", "overlapping"))],
)
def test_two_tokens_have_the_targets_law(kind):
    value, length = outcome(kind)
    assert value > UNLIKELY and length > 1.5


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [1, 2], ids=["repeats are dropped", "the order depends on the draws"])
def test_wrong_trees_change_the_law(wrong):
    assert outcome("random", wrong)[0] < UNLIKELY


def test_trees_and_verdicts_equal_specinfers_loop_over_dictionaries():
    p, q = world("random")
    keys = random.split(random.key(0), DRAWS)
    tokens, tree, verdict, _ = jax.device_get(
        jax.tree.map(lambda x: x[:300], play(jnp.float32(p), jnp.float32(q), keys, 0))
    )
    accept_keys, bonus_keys = jax.vmap(lambda key: random.split(random.split(random.split(key, 3)[1], D + 1)[0]))(
        keys[:300]
    ).T
    luck = np.asarray(jax.vmap(lambda key: random.uniform(key, (NODES,)))(accept_keys))
    shapes, residuals = set(), []
    for b, chains in enumerate(tokens.tolist()):
        wanted = trie(chains)
        assert trie_of(tree, b) == wanted
        shapes.add(str(wanted))
        path, residual = verify_stochastic(wanted, p, q, luck[b, 1:].reshape(M, D))
        assert tree.tokens[b, verdict.path[b, 1 : verdict.length[b]]].tolist() == path
        residuals.append(residual)
    assert verdict.bonus.tolist() == jax.vmap(draw)(bonus_keys, jnp.float32(np.array(residuals))).tolist()
    assert len(shapes) > 50


def verify_stochastic(root: dict, p, q, luck) -> tuple[list[int], np.ndarray]:
    """SpecInfer, VerifyStochastic: the accepted tokens, and the distribution of the next token."""
    children, path = root, []
    while True:
        at = path[-1] + 1 if path else 0
        r = p[at] if len(path) < D else np.full(V, 1 / V)
        proposals = sorted((m, token) for token, (proposers, _) in children.items() for m in proposers)
        for m, token in proposals:
            if luck[m, len(path)] * q[m, at, token] < r[token]:
                children = children[token][1]
                path.append(token)
                break
            r = np.maximum(r - q[m, at], 0)
            r /= r.sum()
        else:
            return path, r


TARGET = tiny_model(0, 8.0, num_layers=1)
DRAFTERS = disturbed(TARGET), disturbed(TARGET, 0.1)


@pytest.mark.parametrize("rows", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_every_draft_reads_the_emitted_tokens_of_all_drafts(rows):
    """q equals each draft's distribution after each of its tokens, by a forward without a cache.

    Greedy rows write greedy text.
    """
    prompts, deep, foreign = [[7], *random_prompts(7, 40, seed=3)][-rows:], 2, 0
    temperature = np.where(np.arange(rows) % 2, 1.3, 0)
    for i, (state, tree) in enumerate(
        rounds(TARGET, DRAFTERS, Merged(deep), NEW + 1, prompts, temperature=temperature)
    ):
        for b, text in enumerate(texts(state) if i in (1, 3) else ()):
            for m, draft in enumerate(DRAFTERS):
                nodes = 1 + m * deep + np.arange(deep)
                for node, at in zip(nodes, tree.parent[b, nodes].tolist()):
                    foreign += at > 0 and int(tree.source[b, at]) != m
                    path = tree.tokens[b, nodes[: node - nodes[0]]].tolist()
                    wanted = warped(logits_after(draft, text + path), temperature[b])
                    np.testing.assert_allclose(tree.q[b, m, at], wanted, rtol=1e-3, atol=1e-6)
                assert np.count_nonzero(np.asarray(tree.q[b, m]).any(-1)) == deep
        if state.done.all():
            break
    assert is_greedy(TARGET, state, prompts)[::2] == [True] * -(-rows // 2)
    assert foreign and np.all(state.counters.calls < NEW)


def test_merged_needs_two_drafts_and_other_methods_use_the_first(target, draft):
    for given in (None, draft, [draft]):
        with pytest.raises(RequestError, match="needs 2 drafts and (none|1) is given"):
            Generator(target, "merged", given)
    generator = Generator(target, draft=[draft, target, draft])
    assert generator.method == "merged" and generator.drafts == (draft, target, draft) and generator.draft is draft
    assert Generator(target, "tree", [draft, target]).drafts == (draft,)
    for given in (draft, [draft], (draft, target), (draft, target)):
        with pytest.raises(RequestError, match="prompt is empty"):
            generate(target, "", draft=given, num_speculative_tokens=2)
    assert [kept.method for kept in target.generators.values()][-2:] == ["draft_model", "merged"]
    with pytest.raises(RequestError, match="takes no draft"):
        Generator(target, "ngram", [draft, draft])
    args = make_parser().parse_args(["generate", "--prompt", "x", "--draft", "a", "--draft", "b"])
    assert args.draft == ["a", "b"] and default_method(args.draft) == "merged"
    with pytest.raises(RequestError, match="num_speculative_tokens"):
        Merged(0)
    with pytest.raises(RequestError, match="chain or independent, and this method draws from several"):
        Generator(target, "merged", [draft, draft], rule="k_seq")
