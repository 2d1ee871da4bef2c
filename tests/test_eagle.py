"""What is drafted from features against plain Python that reads every text from its beginning: no cache, no levels, no replay.

Which node was accepted is chosen by the tests, so that rounds keep all drafts, none, or any path of the tree.
"""

import dataclasses
import heapq
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY, language_model, random_prompts, tiny_head, tiny_model
from test_decode import decoded, start
from test_structure import compilations
from test_tree_drafts import log_softmax, spelled, texts

from specjax import Eagle, Eagle2, Eagle3, Generator, Mtp, Plain, RequestError, decode
from specjax.drafters import make_drafter
from specjax.heads import Eagle3Config, Eagle3Head, EagleConfig, EagleHead, Head, MtpConfig, MtpHead
from specjax.tree import ancestors, expansion
from specjax.verify import _verdict_at, resolve

TARGET = tiny_model(0, 8.0)
LAYERS = TINY.replace(num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16)
PROMPTS = [[7], [5, 9], *random_prompts(3, 30, seed=4)]
KNOWN = np.sort(np.random.default_rng(1).choice(TINY.vocab_size, 40, replace=False))
LONGEST = 64

EAGLE = tiny_head(EagleHead, EagleConfig(LAYERS, target_layers=2))
EAGLE3 = tiny_head(Eagle3Head, Eagle3Config(LAYERS, 32, 2, taps=(0, 1, 2), draft_vocab_size=KNOWN.size))
EAGLE3.draft_to_target[...] = jnp.asarray(KNOWN - np.arange(KNOWN.size), jnp.int32)
MTP = tiny_head(MtpHead, MtpConfig(LAYERS, target_layers=2))


@jax.jit
def features_of(target, head, tokens):
    """Features [T, E] of a text [1, T], by a forward without a cache."""
    T = tokens.shape[1]
    out = target(tokens, jnp.arange(T)[None], jnp.tril(jnp.ones((T, T), bool)), taps=head.config.taps)
    return head.fuse(target, out.taps)[0]


@jax.jit
def said_after(target, head, tokens, features, count):
    """The hidden state [E] and logits [V] after the first ``count`` pairs of [1, T], by a forward without a cache."""
    T = tokens.shape[1]
    out = head(target, tokens, features, jnp.arange(T)[None], jnp.tril(jnp.ones((T, T), bool)))
    hidden = out.hidden[0, count - 1]
    return hidden, head.logits(target, hidden)


class Drafting:
    """What a head says after a text t_0 ... t_n and drafts: the features f_0 ... f_(n - 1) are the target's, those after them its own."""

    def __init__(self, head, text: list[int]):
        self.head, self.said = head, {}
        padded = np.zeros((1, LONGEST), np.int32)
        padded[0, : len(text)] = text
        features = np.asarray(features_of(TARGET, head, padded))
        self.features = list(features[: len(text) - 1]) or [np.zeros_like(features[0])]  # before the first token there is none
        self.tokens = text[1:] or text

    def after(self, path: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Its hidden state and its logits after the drafts of a path."""
        if path not in self.said:
            features = self.features + [self.after(path[:d])[0] for d in range(len(path))]
            tokens = self.tokens + list(path)
            padded = np.zeros((1, LONGEST), np.int32), np.zeros((1, LONGEST, len(features[0])), np.float32)
            padded[0][0, : len(tokens)], padded[1][0, : len(features)] = tokens, features
            hidden, logits = said_after(TARGET, self.head, *padded, len(tokens))
            self.said[path] = np.asarray(hidden), np.asarray(logits, np.float64)
        return self.said[path]

    def best(self, path, k: int) -> list[int]:
        return np.argsort(-self.after(path)[1], kind="stable")[:k].tolist()


def expanded(drafting: Drafting, shape) -> list[tuple[int, ...]]:
    """A tree of fixed shape: every node's i-th child is the i-th likeliest token after it."""
    found = {(): ()}
    for path in shape.paths[1:]:
        above = found[path[:-1]]
        found[path] = (*above, drafting.best(above, path[-1] + 1)[-1])
    return list(found.values())


def best_first(drafting: Drafting, nodes: int, depth: int, top_k: int) -> set[tuple[int, ...]]:
    """EAGLE-2, section 4: expand the top_k likeliest nodes of each level; then take the likeliest off a heap, and their children in."""
    children, frontier = {}, [(0.0, ())]
    for _ in range(depth):
        for value, path in frontier:
            logs = log_softmax(drafting.after(path)[1])
            children[path] = [(value + logs[token], (*path, token)) for token in drafting.best(path, top_k)]
        frontier = heapq.nlargest(top_k, [child for _, path in frontier for child in children[path]])
    heap, kept = [(-value, path) for value, path in children[()]], set()
    heapq.heapify(heap)
    while len(kept) < nodes:
        _, path = heapq.heappop(heap)
        kept.add(path)
        for value, child in children.get(path, ()):
            heapq.heappush(heap, (-value, child))
    return kept


@partial(jax.jit, static_argnames=("drafter", "rule"))
def turn(target, head, state, luck, drafter, rule):
    """The tree of a round, and the state after it if row b accepts a node so deep: the root where ``luck[b]`` is 0, the deepest where it is 1."""

    def accepted(tree, luck):
        lineage = ancestors(tree)
        deepest = jnp.argsort(jnp.where(tree.valid, lineage.sum(-1), 0), descending=True)  # the root last of the valid ones
        last = deepest[jnp.int32((1 - luck) * (tree.valid.sum() - 1).astype(jnp.float32))]
        return _verdict_at(last, jnp.int32(3 + 50 * luck), tree, lineage)

    found = decode.judge(target, head, state, drafter=drafter, rule=rule)
    verdict = jax.vmap(accepted)(found.tree, luck)
    return found.tree, decode.settle(target, head, state, dataclasses.replace(found, verdict=verdict), drafter=drafter)


def rounds(head, drafter, count: int = 4, **options):
    """For each round the state before it and its tree. Of the rows, one accepts all that can be, one nothing, and they take turns."""
    drafter = dataclasses.replace(drafter, head=head.config)
    state = start(TARGET, head, drafter, PROMPTS, limit=60, chunk=16, **options)
    lengths, luck = [], np.random.default_rng(0).random((count, len(PROMPTS)))
    for i in range(count):
        luck[i, i % len(PROMPTS)], luck[i, (i + 1) % len(PROMPTS)] = 1, 0
        tree, after = turn(TARGET, head, state, jnp.float32(luck[i]), drafter, resolve("auto", drafter.sampled))
        yield state, tree
        lengths.extend(np.asarray(after.cache.length - state.cache.length))
        state = after
    assert min(lengths) == 1 and max(lengths) == drafter.depth + 1  # after a round that kept nothing, and one that kept all


SHAPE = expansion((3, 2, 1, 1))
STATIC = {"eagle": (EAGLE, Eagle(SHAPE, "top_k")), "eagle3": (EAGLE3, Eagle3(tree=SHAPE, siblings="top_k"))}


@pytest.mark.parametrize("name", STATIC)
def test_static_trees_are_those_of_plain_python(name):
    head, drafter = STATIC[name]
    for state, tree in rounds(head, drafter):
        for b, text in enumerate(texts(state)):
            assert spelled(tree, b) == expanded(Drafting(head, text), SHAPE)


DYNAMIC = {"eagle2": (EAGLE, Eagle2(20, 4, 4)), "eagle3": (EAGLE3, Eagle3(20, 4, 4))}


@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_trees_are_those_of_a_heap(name):
    head, drafter = DYNAMIC[name]
    for state, tree in rounds(head, drafter):
        for b, text in enumerate(texts(state)):
            assert set(spelled(tree, b)[1:]) == best_first(Drafting(head, text), 20, 4, 4)


DRAWN = {"eagle": (EAGLE, Eagle(expansion((2, 1, 2)))), "eagle3": (EAGLE3, Eagle3(num_speculative_tokens=4)), "mtp": (MTP, Mtp())}


@pytest.mark.parametrize("name", DRAWN)
def test_q_is_what_the_head_says_after_each_node(name):
    head, drafter = DRAWN[name]
    drawn = set()
    for state, tree in rounds(head, drafter, temperature=1.3):
        for b, text in enumerate(texts(state)):
            drafting, parents = Drafting(head, text), np.asarray(tree.parent[b]).tolist()
            for node, path in enumerate(spelled(tree, b)):
                drawn.update(path)
                if node in parents[1:]:
                    wanted = np.exp(log_softmax(drafting.after(path)[1] / 1.3))
                    np.testing.assert_allclose(tree.q[b, node], wanted, rtol=2e-3, atol=1e-6)
                else:
                    assert not np.any(tree.q[b, node])
    assert len(drawn) > 15 and (name != "eagle3" or drawn <= set(KNOWN.tolist()))


def test_a_chain_of_the_likeliest_is_that_of_plain_python():
    for state, tree in rounds(MTP, Mtp(4)):
        for b, text in enumerate(texts(state)):
            drafting, path = Drafting(MTP, text), ()
            for _ in range(4):
                path += tuple(drafting.best(path, 1))
            assert tree.tokens[b, 1:].tolist() == list(path)


METHODS = {
    "eagle": (EAGLE, {}), "eagle2": (EAGLE, dict(tree_nodes=12, tree_depth=3, tree_top_k=4)),
    "eagle3": (EAGLE3, dict(tree_nodes=12, tree_depth=3, tree_top_k=4)), "mtp": (MTP, {}),
}  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_greedy_output_is_that_of_plain_decoding(method):
    head, options = METHODS[method]
    prompts = [[7], *random_prompts(7, 30, seed=5)]
    plain = decoded(TARGET, None, Plain(), prompts)[1]
    drafter = dataclasses.replace(make_drafter(method, **options), head=head.config)
    state, found = decoded(TARGET, head, drafter, prompts)
    assert found == plain and (method == "mtp" or state.counters.accepted_at.sum() > 0)


@pytest.mark.parametrize("method", ["eagle", "mtp"])
def test_generators_take_heads_and_compile_once(method):
    head, options = METHODS[method]
    target = language_model(TARGET)
    generator = Generator(target, method, Head(head, head.config, "random"), capacity=256, **options)
    assert generator.drafter.head == head.config and generator.drafter.taps == (2,)
    options = dict(max_new_tokens=12, ignore_eos=True)
    assert generator([5, 9, 3], **options).token_ids == Generator(target, capacity=256)([5, 9, 3], **options).token_ids
    assert compilations(generator, [5] * 9, max_new_tokens=20, temperature=0.8, top_k=5, seed=3) == 0


def test_rows_do_not_depend_on_their_neighbours():
    """Not even one without a past, whose features are those of no token."""
    drafter = Mtp(head=MTP.config)
    together, _ = turn(TARGET, MTP, start(TARGET, MTP, drafter, PROMPTS, temperature=1.0), jnp.zeros(5), drafter, resolve("auto", "chain"))
    alone, _ = turn(TARGET, MTP, start(TARGET, MTP, drafter, [[7]] * 5, temperature=1.0), jnp.zeros(5), drafter, resolve("auto", "chain"))
    assert together.tokens[0].tolist() == alone.tokens[0].tolist()
    np.testing.assert_allclose(together.q[0], alone.q[0], atol=1e-6)


def test_options_that_do_not_fit_are_refused():
    with pytest.raises(RequestError, match="tree_nodes must be"):
        Eagle3(tree_nodes=3, tree_depth=4)
    with pytest.raises(RequestError, match="siblings 'beam'"):
        Eagle(siblings="beam")
    with pytest.raises(RequestError, match="drafts with a trained head of kind eagle3"):
        Generator(language_model(TARGET), "eagle3", Head(MTP, MTP.config, "random"))


def test_shapes_are_the_published_ones():
    depths = Eagle().tree.depths
    assert [depths.count(d) for d in range(6)] == [1, 4, 8, 8, 3, 2] and Eagle().sampled == "without_replacement"
    assert Eagle2().depth == Eagle3().depth == 6 and Eagle3().sampled == ""
    assert Eagle3(tree=SHAPE).depth == 4 and Eagle3(num_speculative_tokens=5).sampled == "chain"
