"""Controlled draft lengths against plain Python that keeps lists: the same lengths round by round, and the target's own text."""

import dataclasses
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import disturbed, random_prompts, tiny_model
from test_decode import new_tokens, start
from test_tree_drafts import log_softmax, logits_after

from specjax import Adaptive, DraftModel, DraftTree, Ngram, Plain, RequestError, Suffix, decode
from specjax.drafters import make_drafter
from specjax.tree import chain
from specjax.verify import LOSSY, RULES, resolve

TARGET = tiny_model(0, 8.0, num_layers=1)
DRAFT = disturbed(TARGET, 0.1)
PROMPTS = [[7], *random_prompts(7, 30, seed=4)]
SMALL = dict(capacity=64, chunk=32)


def heuristic(rounds: list[tuple[int, int]], most: int) -> int:
    """transformers' schedule, from (drafted, kept) of all rounds so far."""
    length = most
    for drafted, kept in rounds:
        if drafted:
            length = min(length + 2, most) if kept == drafted else max(length - 1, 1)
    return length


def ema(rounds: list[tuple[int, int]], lengths: list[int], cost: float) -> int:
    """The length with the most tokens for its time, at the rate of kept to tested drafts; a round counts nine tenths of the next."""
    kept, tested = 1.0, 2.0
    for drafted, n in rounds:
        if drafted:
            kept, tested = 0.9 * kept + n, 0.9 * tested + min(n + 1, drafted)
    value = lambda k: sum((kept / tested) ** i for i in range(k + 1)) / (1 + k * cost)
    chosen = max(lengths, key=lambda k: (round(value(k), 5), -k))
    return lengths[1] if chosen == 0 and len(rounds) % 16 == 0 else chosen


class Fields(SimpleNamespace):
    """As much of a ``DecodeState`` as a test needs."""

    def replace(self, **changes):
        return Fields(**vars(self) | changes)


@dataclasses.dataclass(frozen=True)
class Pretended:
    """A chain drafter of which only the length counts."""

    num_speculative_tokens: int
    needs_draft: bool
    sampled = ""
    can_rest = True

    @property
    def depth(self):
        return self.num_speculative_tokens

    def init(self, *args, **options):
        return ()

    def commit(self, *args):
        return ()


CONTROLS = {
    "heuristic": (Adaptive(Pretended(8, True), "heuristic"), lambda rounds: heuristic(rounds, 8), range(1, 9)),
    "ema": (Adaptive(Pretended(8, True), draft_cost=0.2), lambda rounds: ema(rounds, [0, 2, 4, 8], 0.22), (0, 2, 4, 8)),
    "ema without a model": (Adaptive(Pretended(6, False), verify_cost=0.1), lambda rounds: ema(rounds, [0, 1, 3, 6], 0.1), (0, 1, 3, 6)),
}


@pytest.mark.parametrize("control", CONTROLS)
def test_lengths_are_those_of_plain_python(control):
    """Rows whose drafts are kept at rates that change, from never to always."""
    drafter, wanted, all_lengths = CONTROLS[control]
    rng, B, N = np.random.default_rng(0), 60, drafter.depth + 1

    @jax.jit
    def after(own, step, valid, kept):
        tree = SimpleNamespace(tokens=jnp.zeros((B, N)), valid=valid)
        state = Fields(drafter=own, step=step)
        return drafter.commit(None, None, state, tree, None, SimpleNamespace(length=kept + 1))

    own = drafter.init(None, None, None, jnp.zeros(B), (), chunk=1, dtype=None)
    rounds, seen = [[] for _ in range(B)], set()
    for step in range(60):
        lengths = own.wanted.tolist()
        assert lengths == [wanted(row) for row in rounds], step
        rate = np.clip(np.linspace(-0.3, 1.3, B) + 0.4 * np.sin(step / 8), 0, 1)
        drafted = np.where(rng.random(B) < 0.1, 0, lengths)  # where there was nothing to propose
        kept = np.minimum((rng.random((B, N)) < rate[:, None]).cumprod(1).sum(1), drafted)
        own = after(own, jnp.int32(step), jnp.arange(N) <= drafted[:, None], jnp.asarray(kept, jnp.int32))
        seen |= set(lengths)
        for row, *counts in zip(rounds, drafted.tolist(), kept.tolist()):
            row.append(counts)
    assert seen == set(all_lengths)


EMA = Adaptive(DraftModel(2), draft_cost=0.3)
STEP = jax.jit(
    partial(decode.step, drafter=EMA, rule=resolve("auto", "chain")), compiler_options={"xla_backend_optimization_level": 0}
)  # so it compiles in half the time


def decoded(drafter, prompts=PROMPTS, **options):
    """The text of every row, and the lengths wanted in every round, [rounds, B]."""
    draft, step = (DRAFT, STEP) if drafter is EMA else (None, jax.jit(partial(decode.step, drafter=drafter, rule=resolve("auto", ""))))
    state, wanted = start(TARGET, draft, drafter, prompts, limit=[len(prompt) + 24 for prompt in prompts], **SMALL, **options), []
    while not np.all(state.done):
        wanted.append(np.asarray(state.drafter.wanted if drafter is EMA else state.done))
        state = step(TARGET, draft, state)
    assert not np.any(state.failed)
    return new_tokens(state, prompts), np.array(wanted)


def test_the_text_is_plain_and_that_of_the_row_alone():
    """At any lengths, in one program for each size of batch; rounds that drafted nothing are caught up with."""
    text, lengths = decoded(EMA)
    assert text == decoded(Plain())[0]
    assert set(lengths.ravel()) == {0, 1, 2}
    seeds = np.arange(len(PROMPTS))
    sampled, sampled_lengths = decoded(EMA, seeds=seeds, temperature=1.0)
    for b in (0, 7):
        for options, together, wanted in (({}, text, lengths), (dict(seeds=seeds[b], temperature=1.0), sampled, sampled_lengths)):
            alone, alone_lengths = decoded(EMA, [PROMPTS[b]], **options)
            assert alone == [together[b]]
            np.testing.assert_array_equal(alone_lengths[:, 0], wanted[: len(alone_lengths), b])
            assert len(set(alone_lengths[:, 0])) > 1
    assert STEP._cache_size() == 2


SURE = 0.085
CONFIDENT = Adaptive(DraftModel(4), "confidence", draft_confidence=SURE)
DRAW = jax.jit(partial(CONFIDENT.draft, TARGET, DRAFT))


def test_confidence_ends_after_the_first_token_that_was_unlikely():
    state = start(TARGET, DRAFT, CONFIDENT, PROMPTS, **SMALL)
    tree, _ = DRAW(state, state.key)
    counts = []
    for b, text in enumerate(PROMPTS):
        sure, drafted = True, []
        while sure and len(drafted) < 4:
            logits = logits_after(DRAFT, text + drafted)
            sure = np.exp(log_softmax(logits).max()) >= SURE
            drafted.append(int(logits.argmax()))
        assert tree.valid[b].tolist() == [True] * (1 + len(drafted)) + [False] * (4 - len(drafted))
        assert tree.tokens[b, 1 : 1 + len(drafted)].tolist() == drafted
        counts.append(len(drafted))
    assert len(set(counts)) > 1
    assert not np.any(tree.q[:, max(counts) :])  # the loop ended with its last row


def test_a_draft_catches_up_with_what_it_missed():
    """Its cache cut back by some tokens and the rest made void, it drafts what it would have drafted."""
    state = start(TARGET, DRAFT, CONFIDENT, PROMPTS, **SMALL)
    tree, pending = DRAW(state, state.key)
    cache = state.drafter.inner.cache
    length = jnp.maximum(cache.length - jnp.array([0, 1, 3, 4, 5, 9, 13, 30]), 0)
    void = jnp.arange(cache.capacity) >= length[:, None]
    layers = jax.tree.map(lambda leaf: jnp.where(void[:, None, :, None], 7.0, leaf), cache.layers)
    inner = state.drafter.inner.replace(cache=cache.replace(layers=layers, length=length))
    after, caught_up = DRAW(state.replace(drafter=state.drafter.replace(inner=inner)), state.key)
    np.testing.assert_array_equal(after.tokens, tree.tokens)
    np.testing.assert_array_equal(caught_up.inner.cache.length, cache.length)
    for ours, theirs in zip(jax.tree.leaves(caught_up.inner.rows), jax.tree.leaves(pending.inner.rows)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    assert DRAW._cache_size() == 1


def test_chains_without_a_model_are_cut_alike_whatever_the_batch_needs():
    """All lengths that hold what a row wants give the same chain."""
    inner = Suffix(4)  # what it proposes depends on how far it looks
    drafter = Adaptive(inner, "heuristic")
    tokens = jnp.pad(jnp.array([[5, 6, 7, 8] * 5, [5, 6, 9, 5, 6, 9, 5] + [0] * 13]), ((0, 0), (0, 12)))
    own = drafter.init(None, None, None, jnp.zeros(2), (), chunk=1, dtype=None).replace(wanted=jnp.array([1, 2]))
    state = Fields(tokens=tokens, cache=Fields(length=jnp.array([19, 6])), root=jnp.array([8, 5]), drafter=own, done=jnp.zeros(2, bool))
    trees = jax.jit(lambda: [d.draft(TARGET, None, state, None, *k)[0] for d, *k in ((drafter, 2), (drafter, 4), (inner,))])()
    for k, tree in zip((2, 4), trees):
        assert tree.valid.sum(1).tolist() == [2, 3] and tree.tokens.shape == (2, k + 1)
        np.testing.assert_array_equal(tree.tokens, trees[-1].tokens[:, : k + 1])
    assert drafter.lengths == (1, 2, 4) and int(drafter.choose(state)) == 1


@pytest.mark.parametrize("rule", [name for name in RULES if name not in LOSSY])
def test_nodes_that_are_not_valid_leave_a_verdict_as_it_is(rule):
    """Random numbers of a node do not depend on how many follow: the verdict is that of the shorter chain."""
    rng, V, rows, short, long = np.random.default_rng(0), 6, 300, 3, 7
    p, q = rng.dirichlet(np.ones(V), (2, rows, long)).astype(np.float32)
    tokens = rng.integers(0, V, (rows, long)).astype(np.int32)

    def verdicts(n):
        chained = lambda tokens, q: chain(tokens, q.at[short - 1 :].set(0), jnp.arange(n) < short)
        trees = jax.vmap(chained)(jnp.asarray(tokens[:, :n]), jnp.asarray(q[:, :n]))
        return jax.vmap(RULES[rule])(jnp.asarray(p[:, :n]), trees, jax.random.split(jax.random.key(1), (rows, long)))

    few, many = jax.jit(verdicts, static_argnums=0)(short), jax.jit(verdicts, static_argnums=0)(long)
    np.testing.assert_array_equal(few.length, many.length)
    np.testing.assert_array_equal(few.bonus, many.bonus)
    assert len(set(few.length.tolist())) == short


def test_options_that_do_not_fit_are_refused_in_one_line():
    for make, named in (
        (lambda: Adaptive(DraftModel(), "often"), "draft_length 'often'"),
        (lambda: Adaptive(DraftTree()), "draft chains"),
        (lambda: Adaptive(Ngram(), "confidence"), "method 'draft_model'"),
        (lambda: Adaptive(DraftModel(), "confidence", draft_confidence=1.5), "draft_confidence"),
        (lambda: Adaptive(DraftModel(), draft_cost=-1), "draft_cost"),
        (lambda: make_drafter("draft_model", draft_length="often"), "draft_length 'often'"),
    ):
        with pytest.raises(RequestError) as error:
            make()
        assert named in str(error.value) and "\n" not in str(error.value)
    assert make_drafter("draft_model", draft_length="ema", num_speculative_tokens=7) == Adaptive(DraftModel(7))
    assert make_drafter("draft_model", draft_length="fixed") == DraftModel()
