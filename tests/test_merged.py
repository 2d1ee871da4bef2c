"""Trees merged from several drafts, against a trie of nested dictionaries and SpecInfer's loop over them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import disturbed, p_value, random_prompts, tiny_model
from jax import random
from lossless_grid import DRAFTS, draws, p_values
from lossless_grid import model as small
from test_decode import NEW, decoded, score
from test_tree_drafts import log_softmax, logits_after, rounds, texts

from specjax import Generator, Merged, RequestError, Translated
from specjax.drafters.merged import merge
from specjax.verify import RULES

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
    """The same of row b of a batched tree."""
    found = [{} for _ in range(tree.tokens.shape[1])]
    root, *_ = found
    for node in range(1, len(found)):
        above, token = found[int(tree.parent[b, node])], int(tree.tokens[b, node])
        proposers, below = above.setdefault(token, ([], found[node]))
        proposers.append(int(tree.source[b, node]))
        assert below is found[node] or node not in np.asarray(tree.parent[b, 1:])  # children hang below the first alone
    return root


def world(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Target [1 + V, V] and drafts [M, 1 + V, V]: after the root, and after each first token; the drafts may propose a second token."""
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(V), 1 + V), rng.dirichlet(np.ones(V), (M, 1 + V))
    if kind == "identical":
        q[:] = q[0]
    if kind == "disjoint":
        q *= (np.arange(V) % M == np.arange(M)[:, None])[:, None]
    if kind == "overlapping":
        q *= (np.arange(V) != np.arange(M)[:, None])[:, None]
    return p, q / q.sum(-1, keepdims=True)


def drawn(q, key):
    """The chains of all drafts and the tree they make: tokens [M, D], Tree."""
    keys = random.split(key, (M, D))
    first = jax.vmap(random.categorical)(keys[:, 0], jnp.log(q[:, 0]))
    after = jnp.take_along_axis(q, first[:, None, None] + 1, 1)[:, 0]
    second = jax.vmap(random.categorical)(keys[:, 1], jnp.log(after))
    tokens = jnp.stack([first, second], 1)
    return tokens, merge(jnp.int32(0), tokens, jnp.stack([q[:, 0], after], 1))


def target_at(p, tree):
    """The target's distribution after each node: p [1 + V, V] above the last level, uniform after it."""
    path = jnp.where(jnp.arange(NODES) == 0, 0, tree.tokens + 1)
    second = (tree.parent > 0)[:, None]
    return jnp.where(second, 1 / V, p[path])


@partial(jax.jit, static_argnames="broken")
def play(p, q, keys, broken: str = ""):
    """First two tokens [n, 2] and accepted lengths [n]; what the rule leaves open is the target's."""

    def once(key):
        tree_key, rule_key, fill_key = random.split(key, 3)
        tokens, tree = drawn(q, tree_key)
        if broken == "repeats dropped":
            again = (jnp.tril(tree.tokens[:, None] == tree.tokens, -1) & (tree.parent[:, None] == tree.parent))[:, 1:].any(1)
            tree = tree.replace(valid=~again | (jnp.arange(NODES) == 0))
        if broken == "in the order of the trie":  # a third draft's repeat of the first is tested before the second's token
            order = jnp.argsort(jnp.where(jnp.arange(NODES) == 0, -1, tree.parent * V * M + tree.tokens * M + tree.source))
            place = jnp.argsort(order)
            parent = place[tree.parent[order]]
            tree = tree.replace(tokens=tree.tokens[order], parent=parent, source=tree.source[order], q=tree.q[:, order])
        verdict = RULES["multi_step"](target_at(p, tree), tree, rule_key)
        emitted = jnp.append(tree.tokens[verdict.path[1:]], 0).at[verdict.length - 1].set(verdict.bonus)
        fill = random.categorical(fill_key, jnp.log(p[emitted[0] + 1]))
        return emitted[0], jnp.where(verdict.length > 1, emitted[1], fill), verdict.length

    first, second, length = jax.vmap(once)(keys)
    return jnp.stack([first, second], 1), length


def outcome(kind: str, broken: str = "") -> tuple[float, float]:
    """The p-value of the two tokens, and the mean accepted length."""
    p, q = world(kind)
    tokens, length = play(jnp.float32(p), jnp.float32(q), random.split(random.key(0), DRAWS), broken)
    counts = np.bincount(np.ravel_multi_index(np.asarray(tokens).T, (V, V)), minlength=V * V)
    return p_value(counts, p[0][:, None] * p[1:]), float(length.mean())


@pytest.mark.parametrize("kind", ["random", "identical", "disjoint", "overlapping"])
def test_law_is_the_targets(kind):
    value, length = outcome(kind)
    assert value > UNLIKELY and length > 1.5


@pytest.mark.parametrize("broken", ["repeats dropped", "in the order of the trie"])
def test_a_trie_that_forgets_who_proposed_what_and_when_is_noticed(broken):
    assert outcome("random", broken)[0] < UNLIKELY


def test_trees_and_verdicts_are_those_of_nested_dictionaries():
    p, q = (jnp.float32(x) for x in world("random"))
    keys = random.split(random.key(1), 300)
    tokens, tree = jax.jit(jax.vmap(partial(drawn, q)))(keys)
    verdict = jax.jit(jax.vmap(lambda tree, key: RULES["multi_step"](target_at(p, tree), tree, key)))(tree, keys)
    accept_keys, bonus_keys = jax.vmap(random.split)(keys).T
    luck = jax.vmap(lambda key: random.uniform(key, (NODES,)))(accept_keys)
    tree, luck, tokens, verdict = jax.device_get((tree, luck, tokens, verdict))
    shapes = set()
    for b, chains in enumerate(tokens.tolist()):
        wanted = trie(chains)
        assert trie_of(tree, b) == wanted
        shapes.add(str(wanted))
        path, residual = specinfer(wanted, np.asarray(p, np.float64), np.asarray(q, np.float64), luck[b].reshape(-1)[1:].reshape(M, D))
        assert [int(tree.tokens[b, node]) for node in verdict.path[b, 1 : verdict.length[b]]] == path
        assert verdict.bonus[b] == random.categorical(bonus_keys[b], jnp.log(jnp.float32(residual)))
    assert len(shapes) > 50


def specinfer(root: dict, p, q, luck) -> tuple[list[int], np.ndarray]:
    """VerifyStochastic: the tokens accepted, and what the next one is drawn from."""
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


TARGET = tiny_model(0, 8.0)
DRAFTERS = disturbed(TARGET), disturbed(TARGET, 0.1)


def test_every_draft_reads_what_was_emitted_whoever_proposed_it():
    """Round after round, q is what each draft says after each of its tokens, by a forward without a cache."""
    foreign = 0
    for state, tree in rounds(TARGET, DRAFTERS, Merged(3), 4, temperature=1.3):
        for b, text in enumerate(texts(state)):
            for m, draft in enumerate(DRAFTERS):
                path = []
                for node in range(1 + m * 3, 4 + m * 3):
                    at = int(tree.parent[b, node])
                    foreign += at > 0 and int(tree.source[b, at]) != m
                    wanted = np.exp(log_softmax(logits_after(draft, text + path) / 1.3))
                    np.testing.assert_allclose(tree.q[m, at] if tree.q.ndim == 3 else tree.q[b, m, at], wanted, rtol=1e-3, atol=1e-6)
                    path.append(int(tree.tokens[b, node]))
                assert np.count_nonzero(np.asarray(tree.q[b, m]).any(-1)) == 3
    assert foreign and np.asarray(state.counters.accepted_at).sum() > 0


def greedy_text(target, draft, drafter, prompts):
    """The state of a greedy run whose every token is the argmax of a forward without a cache, as that of plain decoding is."""
    state, new = decoded(target, draft, drafter, prompts)
    wanted = np.asarray(score(target, state.tokens).argmax(-1))
    for b, (prompt, tokens) in enumerate(zip(prompts, new)):
        assert len(tokens) == NEW and tokens == wanted[b, len(prompt) - 1 : len(prompt) - 1 + NEW].tolist()
    return state


@pytest.mark.parametrize("rows", [1, 8])
def test_greedy_text_is_that_of_plain_decoding(rows):
    prompts = [[7], *random_prompts(7, 40, seed=3)][-rows:]
    state = greedy_text(TARGET, DRAFTERS, Merged(3), prompts)
    assert int(state.counters.calls.max()) < NEW


@pytest.mark.slow
def test_sequences_have_the_targets_law_whatever_the_drafts_share():
    """The whole loop under every option. One draft speaks tokens 0, 1 and 2, the other 2, 3 and 4; both all; or none of the same."""
    everything = np.arange(5)
    for first, second in (([0, 1, 2], [2, 3, 4]), ([0, 1], [2, 3, 4]), (everything, everything)):
        pair = tuple(Translated(small(1), np.int32(everything), np.isin(everything, tokens)) for tokens in (first, second))
        counts, rate = draws(Merged(DRAFTS), "multi_step", seed=1, rows=500, calls=1, draft=pair)
        values = p_values(counts)
        assert rate > 0.05 and min(values.values()) > UNLIKELY, values


def test_it_takes_two_drafts_or_more(target, draft):
    for given in (None, draft, [draft]):
        with pytest.raises(RequestError, match="needs 2 drafts and (none|1) is given"):
            Generator(target, "merged", given)
    generator = Generator(target, draft=[draft, target, draft])
    assert generator.method == "merged" and generator.drafts == (draft, target, draft) and generator.draft is draft
    assert Generator(target, "tree", [draft, target]).drafts == (draft,)
    with pytest.raises(RequestError, match="takes no draft"):
        Generator(target, "ngram", [draft, draft])
    with pytest.raises(RequestError, match="num_speculative_tokens"):
        Merged(0)
    with pytest.raises(RequestError, match="chain or independent, and this method draws from several"):
        Generator(target, "merged", [draft, draft], rule="k_seq")
