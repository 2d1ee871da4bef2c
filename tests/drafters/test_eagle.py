"""Drafts from features against plain Python that reads every text from its beginning.

The tests choose the accepted node, so that rounds keep all drafts, none, or any path of the tree.
"""

import dataclasses
import heapq
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.decoding import judge_round, spell_paths, start, texts
from support.models import TINY, language_model, on_mesh, random_head, random_prompts, tiny_model
from support.program import count_compilations
from support.reference import log_softmax, rank_tokens, take_best_sequences

from specjax import Generator, RequestError, make_mesh
from specjax.core.tree import ancestors, expansion
from specjax.core.verdict import verdict_at
from specjax.drafters import Eagle, Eagle2, Eagle3, Mtp
from specjax.heads import Eagle3Config, Eagle3Head, EagleConfig, EagleHead, Head, MtpConfig, MtpHead
from specjax.loop import decode
from specjax.rules.acceptance import Drawn, resolve
from specjax.training.losses import scores
from specjax.training.run import cast

TARGET = tiny_model(0, 8.0)
LAYERS = TINY.replace(num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16)
PROMPTS = [[7], [5, 9], *random_prompts(6, 30, seed=4)]
KNOWN = np.sort(np.random.default_rng(1).choice(TINY.vocab_size, 40, replace=False))
LONGEST, LIMIT = 64, 56
AS_THE_RULE = np.full(len(PROMPTS), -1, np.float32)

EAGLE = random_head(EagleHead, EagleConfig(LAYERS, target_layers=2))
EAGLE3 = random_head(
    Eagle3Head, Eagle3Config(LAYERS, 32, 2, taps=(0, 1, 2), draft_vocab_size=KNOWN.size), seed=5, scale=0.4
)
EAGLE3.draft_to_target[...] = jnp.asarray(KNOWN - np.arange(KNOWN.size), jnp.int32)
PARALLEL = random_head(Eagle3Head, dataclasses.replace(EAGLE3.config, mask_token=3), seed=1, scale=0.4)
PARALLEL.draft_to_target[...], PARALLEL.mask_hidden[...] = (
    EAGLE3.draft_to_target[...],
    jax.random.normal(jax.random.key(2), (1, 1, 96)),
)
MTP, MODULES = (random_head(MtpHead, MtpConfig(LAYERS, target_layers=2, modules=n)) for n in (1, 3))


@jax.jit
def features_of(target, head, tokens):
    """Features [T, E] of a text [1, T], by a forward without a cache."""
    T = tokens.shape[1]
    out = target(tokens, jnp.arange(T)[None], jnp.tril(jnp.ones((T, T), bool)), taps=head.config.taps)
    return head.fuse(target, out.taps)[0]


@jax.jit
def logits_of(target, tokens):
    return scores(target, tokens)[0]


def is_greedy(text: list[int], prompt: list[int], limit: int) -> bool:
    """Whether the text continues its prompt up to ``limit`` greedily, by a forward without a cache."""
    padded = np.zeros((1, LONGEST), np.int32)
    padded[0, : len(text)] = text
    wanted = np.argmax(logits_of(TARGET, padded), -1)[len(prompt) - 1 : limit - 1]
    return len(text) == limit and text[: len(prompt)] == prompt and text[len(prompt) :] == wanted.tolist()


@jax.jit
def read(target, module, tokens, features):
    """The hidden states [T, E] and logits [T, V] of pairs [1, T], by a forward without a cache."""
    T = tokens.shape[1]
    out = module(target, tokens, features, jnp.arange(T)[None], jnp.tril(jnp.ones((T, T), bool)))
    return out.hidden[0], module.logits(target, out.hidden)[0]


class Drafting:
    """A head after a text t_0 ... t_n and drafts.

    The features f_0 ... f_(n - 1) are the target's; the head computes those after them.

    Of several modules, module k reads in row i < n the hidden state that module k - 1 computed in
    row i, and the token t_(i + 1 + k). Drafts follow the text. The last module continues from its
    own hidden states.
    """

    def __init__(self, head, text: list[int]):
        self.modules, self.said = head.modules, {}
        padded = np.zeros((1, LONGEST), np.int32)
        padded[0, : len(text)] = text
        features = np.asarray(features_of(TARGET, head, padded))
        self.features = list(features[: len(text) - 1]) or [
            np.zeros_like(features[0])
        ]  # a text of one token has no feature
        self.tokens = text[1:] or text

    def after(self, path: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """The hidden state [E] and logits [V] after the drafts of a path."""
        if path not in self.said:
            k = min(len(path), len(self.modules) - 1)
            own = [self.after(path[:d])[0] for d in range(k, len(path))]
            hidden, logits = self.rows(k, path, own)
            self.said[path] = hidden[-1], np.float64(logits[-1])
        return self.said[path]

    def rows(self, k: int, path: tuple[int, ...], own=()) -> tuple[np.ndarray, np.ndarray]:
        """Hidden states and logits of module k, for the text's rows and then for its ``own`` hidden
        states.
        """
        features = [*(self.features if k == 0 else self.rows(k - 1, path)[0]), *own]
        tokens = [*self.tokens, *path][k:][: len(features)]
        padded = np.zeros((1, LONGEST), np.int32), np.zeros((1, LONGEST, len(features[0])), np.float32)
        padded[0][0, : len(tokens)], padded[1][0, : len(features)] = tokens, features
        return tuple(np.asarray(x)[: len(features)] for x in read(TARGET, self.modules[k], *padded))

    def best(self, path, k: int) -> list[int]:
        return rank_tokens(self.after(path)[1], k)


class Masked(Drafting):
    """A P-EAGLE head: after the text it reads masks instead of drafts."""

    def after(self, path):
        hidden = (np.float64(PARALLEL.fc[...]) @ np.float64(PARALLEL.mask_hidden[0, 0])).astype(np.float32)
        self.features, features = [*self.features, *[hidden] * len(path)], self.features
        found = [x[-1] for x in self.rows(0, (3,) * len(path))]
        self.features = features
        return found


def expand_tree(drafting: Drafting, shape) -> list[tuple[int, ...]]:
    """A tree of fixed shape: every node's i-th child is the i-th likeliest token after it."""
    found = {(): ()}
    for path in shape.paths[1:]:
        above = found[path[:-1]]
        found[path] = (*above, drafting.best(above, path[-1] + 1)[-1])
    return list(found.values())


def grow_best_first(drafting: Drafting, nodes: int, depth: int, top_k: int) -> set[tuple[int, ...]]:
    """EAGLE-2, section 4: expand the top_k likeliest nodes of each level; then take the likeliest
    off a heap and push its children.
    """
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
def force_round(target, head, state, luck, drafter, rule):
    """The tree of a round, and the state after it.

    Row b accepts the root where ``luck[b]`` is 0, the deepest node where it is 1, and a node
    between for values between. Below 0 the rule decides.
    """

    def accepted(tree, luck):
        lineage = ancestors(tree)
        deepest = jnp.argsort(
            jnp.where(tree.valid, lineage.sum(-1), 0), descending=True
        )  # the root is the last valid node
        last = deepest[jnp.int32((1 - luck) * (tree.valid.sum() - 1).astype(jnp.float32))]
        return verdict_at(last, jnp.int32(3 + 50 * luck), tree, lineage)

    found = judge_round(target, head, state, drafter, rule)
    forced = jax.vmap(accepted)(found.tree, luck)
    verdict = jax.tree.map(
        lambda own, given: jnp.where((luck < 0).reshape(-1, *(1,) * (own.ndim - 1)), own, given), found.verdict, forced
    )
    return found.tree, decode.commit(target, head, state, found.replace(verdict=verdict), drafter=drafter)


def rounds(head, drafter, count: int = 4, prompts=PROMPTS, **options):
    """For each round the state before it and its tree.

    In every round one row accepts the deepest node and another accepts nothing.
    """
    state = start(TARGET, head, drafter, prompts, limit=LIMIT, chunk=16, **options)
    lengths, luck = [], np.float32(np.random.default_rng(0).random((count, len(PROMPTS))))
    for i in range(count):
        luck[i, i % len(PROMPTS)], luck[i, (i + 1) % len(PROMPTS)] = 1, 0
        tree, after = force_round(TARGET, head, state, luck[i], drafter, resolve("auto", drafter.drawn))
        yield state, jax.device_get(tree)
        lengths.extend(np.asarray(after.cache.length - state.cache.length))
        state = after
    assert min(lengths) == 1 and max(lengths) == drafter.depth + 1  # rounds that accepted nothing, and all


SHAPE = expansion((3, 2, 1))
DYNAMIC = (14, 3, 4)  # nodes, depth, nodes expanded in a level
METHODS = {
    "eagle": (EAGLE, Eagle(SHAPE, head=EAGLE.config)),
    "eagle3": (EAGLE3, Eagle3(*DYNAMIC, head=EAGLE3.config)),
    "parallel": (PARALLEL, Eagle3(*DYNAMIC, head=PARALLEL.config)),
    "mtp": (MTP, Mtp(4, head=MTP.config)),
    "modules": (MODULES, Mtp(4, head=MODULES.config)),
}
SLOW_MTP = pytest.param("mtp", marks=pytest.mark.slow)


def test_trees_of_fixed_shape_equal_plain_python():
    """Greedy rows choose the likeliest tokens instead of drawing."""
    for state, tree in rounds(*METHODS["eagle"]):
        for b, text in enumerate(texts(state)):
            assert spell_paths(tree, b) == expand_tree(Drafting(EAGLE, text), SHAPE)


def test_dynamic_trees_equal_those_of_a_heap():
    for state, tree in rounds(*METHODS["eagle3"]):
        for b, text in enumerate(texts(state)):
            found = set(spell_paths(tree, b)[1:])
            assert found == grow_best_first(Drafting(EAGLE3, text), *DYNAMIC) and {
                token for path in found for token in path
            } <= set(KNOWN)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "depth"),
    [(MODULES, 4), (MTP, 4), (MODULES, 2)],
    ids=["three modules", "one module", "two of three modules"],
)
def test_chains_equal_plain_python(head, depth):
    for state, tree in rounds(head, Mtp(depth, head=head.config)):
        for b, text in enumerate(texts(state)):
            drafting, path = Drafting(head, text), ()
            for _ in range(depth):
                path += tuple(drafting.best(path, 1))
            assert tree.tokens[b, 1:].tolist() == list(path)


def test_trees_of_one_pass_equal_those_of_a_heap():
    for state, tree in rounds(*METHODS["parallel"]):
        for b, text in enumerate(texts(state)):
            drafting = Masked(PARALLEL, text)
            nodes, depth, top_k = DYNAMIC
            logs = np.array([log_softmax(drafting.after((0,) * d)[1]) for d in range(depth)])
            assert set(spell_paths(tree, b)) == take_best_sequences(logs, nodes, top_k)


@pytest.mark.slow
def test_chains_of_one_pass_equal_plain_python():
    for state, tree in rounds(PARALLEL, Eagle3(num_speculative_tokens=3, head=PARALLEL.config)):
        for b, text in enumerate(texts(state)):
            drafting = Masked(PARALLEL, text)
            assert tree.tokens[b, 1:].tolist() == [drafting.best((0,) * d, 1)[0] for d in range(3)]


@pytest.mark.parametrize("name", ["eagle", "modules", SLOW_MTP])
def test_q_equals_the_heads_distribution_after_each_node(name):
    head, drafter = METHODS[name]
    for state, tree in rounds(head, drafter, temperature=1.3):
        for b, text in enumerate(texts(state)):
            drafting, parents = Drafting(head, text), np.asarray(tree.parent[b]).tolist()
            for node, path in enumerate(spell_paths(tree, b)):
                if node in parents[1:]:
                    wanted = np.exp(log_softmax(drafting.after(path)[1] / 1.3))
                    np.testing.assert_allclose(tree.q[b, node], wanted, rtol=2e-3, atol=1e-6)
                else:
                    assert not np.any(tree.q[b, node])


@pytest.mark.parametrize(
    "name", ["eagle", "eagle3", "modules", SLOW_MTP, pytest.param("parallel", marks=pytest.mark.slow)]
)
def test_the_text_of_a_ragged_batch_is_greedy(name):
    """The oracle is the argmax of a forward without a cache."""
    head, drafter = METHODS[name]
    state = start(TARGET, head, drafter, PROMPTS, limit=LIMIT, chunk=16)
    while not np.all(state.done):
        _, state = force_round(TARGET, head, state, AS_THE_RULE, drafter, resolve("auto", drafter.drawn))
    for text, prompt in zip(texts(state), PROMPTS):
        assert is_greedy(text, prompt, LIMIT)
    assert name in ("mtp", "modules") or state.counters.accepted_at.sum() > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "head", "options"),
    [
        ("eagle2", EAGLE, dict(zip(("tree_nodes", "tree_depth", "tree_top_k"), DYNAMIC))),
        ("eagle3", EAGLE3, dict(num_speculative_tokens=2)),
        ("mtp", MODULES, dict(num_speculative_tokens=3)),
    ],
)
def test_generators_draft_with_heads_and_compile_once(method, head, options):
    """The greedy text of one prompt equals the argmax of a forward without a cache."""
    generator = Generator(language_model(TARGET), method, Head(head, head.config, "random"), **options)
    assert generator.drafter.head == head.config and generator.drafter.taps == head.config.taps
    for i, prompt in enumerate(PROMPTS[:2]):
        count = count_compilations(generator, prompt, max_new_tokens=1, temperature=0.8, top_k=5, seed=3)
        assert (count > 0) == (i == 0)
        new = generator(prompt, max_new_tokens=20, ignore_eos=True).token_ids
        assert is_greedy([*prompt, *new], prompt, len(prompt) + 20)


def count_kept(head, text: list[int], prompt: list[int], drafts: int) -> int:
    """How many drafted tokens plain Python accepts on the way to a greedy text, at most ``drafts``
    in a round.
    """
    root, kept = len(prompt) - 1, 0
    while root + 1 < len(text):
        drafting, path = Drafting(head, text[: root + 1]), ()
        while len(path) < drafts and root + len(path) + 1 < len(text):
            token = drafting.best(path, 1)[0]
            if token != text[root + len(path) + 1]:
                break
            path += (token,)
        kept, root = kept + len(path), root + len(path) + 1
    return kept


@pytest.mark.slow
@pytest.mark.parametrize("where", ["two devices", "bfloat16"])
def test_heads_in_bfloat16_or_on_two_devices_accept_as_many_drafts_as_plain_python(where):
    """The text is greedy too."""
    target = TARGET
    head = plain = cast(EAGLE3, "bfloat16") if where == "bfloat16" else EAGLE3
    if where == "two devices":
        target, head = (on_mesh(module, make_mesh(1, 2)) for module in (TARGET, EAGLE3))
        assert len(head.fc[...].sharding.device_set) == 2 and not head.layers[0].mixer.qkv[...].is_fully_replicated
    generator = Generator(language_model(target), "eagle3", Head(head, head.config, "random"), num_speculative_tokens=2)
    results, kept = generator(PROMPTS, max_new_tokens=24, ignore_eos=True), 0
    for prompt, result in zip(PROMPTS, results):
        text = [*prompt, *result.token_ids]
        assert is_greedy(text, prompt, len(prompt) + 24)
        kept += count_kept(plain, text, prompt, 2)
    assert sum(result.stats.accepted for result in results) == kept > 0


def test_rows_do_not_depend_on_their_neighbours():
    """Row 0 has a prompt of one token, hence no feature."""
    head, drafter = METHODS["modules"]
    first = lambda prompts: next(iter(rounds(head, drafter, prompts=prompts, temperature=1.0)))[1]
    together, alone = first(PROMPTS), first([PROMPTS[0]] * len(PROMPTS))
    assert together.tokens[0].tolist() == alone.tokens[0].tolist()
    np.testing.assert_allclose(together.q[0], alone.q[0], atol=1e-6)


def test_options_that_do_not_fit_the_head_are_refused():
    with pytest.raises(RequestError, match="tree_nodes must be"):
        Eagle3(tree_nodes=3, tree_depth=4, head=EAGLE3.config)
    with pytest.raises(RequestError, match="leave tree out"):
        Eagle3(tree=SHAPE, head=PARALLEL.config)
    with pytest.raises(RequestError, match="tree_nodes must be 5 to 30 for 4 drafted tokens and tree_top_k 2, not 31"):
        Eagle3(tree_nodes=31, tree_depth=4, tree_top_k=2, head=PARALLEL.config)
    with pytest.raises(RequestError, match="siblings 'beam'"):
        Eagle(siblings="beam", head=EAGLE.config)
    with pytest.raises(RequestError, match="drafts with a trained head of kind eagle3"):
        Generator(language_model(TARGET), "eagle3", Head(MTP, MTP.config, "random"))


def test_default_shapes_are_the_published_ones():
    eagle, three = Eagle(head=EAGLE.config), partial(Eagle3, head=EAGLE3.config)
    depths = eagle.tree.depths
    assert [depths.count(d) for d in range(6)] == [1, 4, 8, 8, 3, 2] and eagle.drawn is Drawn.WITHOUT_REPLACEMENT
    assert Eagle2(head=EAGLE.config).depth == three().depth == 6 and three().drawn is Drawn.CHOSEN
    assert three(tree=SHAPE).depth == 3 and three(num_speculative_tokens=5).drawn is Drawn.CHAIN
