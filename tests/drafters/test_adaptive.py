"""Draft lengths against schedules in plain Python, and texts against greedy decoding."""

import dataclasses
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.decoding import new_tokens, start
from support.models import disturbed, random_prompts, tiny_model
from support.reference import is_greedy, log_softmax, logits_after

from specjax import RequestError
from specjax.core.tree import chain
from specjax.drafters import Adaptive, DraftModel, DraftTree, Ngram, Suffix, make_drafter
from specjax.drafters.parts.member import Member
from specjax.loop import decode
from specjax.loop.drafter import Models
from specjax.rules import RULES
from specjax.rules.acceptance import Drawn, resolve

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
    """The length with the most tokens for its time, at the rate of accepted to tested drafts.

    A round counts nine tenths of the round after it.
    """
    kept, tested = 1.0, 2.0
    for drafted, n in rounds:
        if drafted:
            kept, tested = 0.9 * kept + n, 0.9 * tested + min(n + 1, drafted)
    value = lambda k: sum((kept / tested) ** i for i in range(k + 1)) / (1 + k * cost)
    chosen = max(lengths, key=lambda k: (round(value(k), 5), -k))
    return lengths[1] if chosen == 0 and len(rounds) % 16 == 0 else chosen


class Fields(SimpleNamespace):
    """The fields of a ``DecodeState`` that a test needs."""

    def replace(self, **changes):
        return Fields(**vars(self) | changes)


@dataclasses.dataclass(frozen=True)
class LengthOnly(Member):
    """A chain drafter that proposes nothing; only its length matters."""

    num_speculative_tokens: int

    @property
    def depth(self):
        return self.num_speculative_tokens


@dataclasses.dataclass(frozen=True)
class LengthWithModel(LengthOnly):
    """The same, with a draft model whose tokens cost time."""

    needs = Models()


CONTROLS = {
    "heuristic": (Adaptive(LengthWithModel(8), "heuristic"), lambda rounds: heuristic(rounds, 8), range(1, 9)),
    "ema": (Adaptive(LengthWithModel(8), draft_cost=0.2), lambda rounds: ema(rounds, [0, 2, 4, 8], 0.22), (0, 2, 4, 8)),
    "ema without a model": (
        Adaptive(LengthOnly(6), verify_cost=0.1),
        lambda rounds: ema(rounds, [0, 1, 3, 6], 0.1),
        (0, 1, 3, 6),
    ),
}


@pytest.mark.parametrize("control", CONTROLS)
def test_lengths_equal_the_schedules_in_plain_python(control):
    """Acceptance rates differ by row and change over time, from never to always."""
    drafter, wanted, all_lengths = CONTROLS[control]
    rng, B, N = np.random.default_rng(0), 60, drafter.depth + 1

    @jax.jit
    def after(own, round, valid, kept):
        tree = SimpleNamespace(tokens=jnp.zeros((B, N)), valid=valid)
        state = Fields(drafter=own, counters=Fields(calls=round))
        return drafter.commit(None, None, state, tree, None, SimpleNamespace(length=kept + 1))

    own = drafter.init(None, None, None, jnp.zeros(B), (), chunk=1, dtype=None)
    rounds, seen = [[] for _ in range(B)], set()
    for step in range(60):
        lengths = own.wanted.tolist()
        assert lengths == [wanted(row) for row in rounds], step
        rate = np.clip(np.linspace(-0.3, 1.3, B) + 0.4 * np.sin(step / 8), 0, 1)
        drafted = np.where(rng.random(B) < 0.1, 0, lengths)  # a tenth of the drafts is empty
        kept = np.minimum((rng.random((B, N)) < rate[:, None]).cumprod(1).sum(1), drafted)
        own = after(own, jnp.int32(step), jnp.arange(N) <= drafted[:, None], jnp.asarray(kept, jnp.int32))
        seen |= set(lengths)
        for row, *counts in zip(rounds, drafted.tolist(), kept.tolist()):
            row.append(counts)
    assert seen == set(all_lengths)


EMA = Adaptive(DraftModel(2), draft_cost=0.3)
STEP = jax.jit(
    lambda *state: decode.run(*state, state[-1].round + 1, drafter=EMA, rule=resolve("auto", Drawn.CHAIN)),
    compiler_options={"xla_backend_optimization_level": 0},
)  # compiles in half the time


def decode_with_lengths(prompts, **options):
    """The state when all rows are done, and the lengths wanted in every round, [rounds, B]."""
    limit = [len(prompt) + 24 for prompt in prompts]
    state, wanted = start(TARGET, DRAFT, EMA, prompts, limit=limit, **SMALL, **options), []
    while not np.all(state.done):
        wanted.append(np.asarray(state.drafter.wanted))
        state = STEP(TARGET, DRAFT, state)
    assert not np.any(state.failed)
    return state, np.array(wanted)


@pytest.mark.parametrize("rows", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_rows_write_their_own_text_at_any_length(rows):
    """Repeated to fill a batch, or alone, a row has the text and lengths that it has beside others.

    Greedy text equals the argmax of a forward without a cache. Greedy rows draft 0, 1 and 2
    tokens; the draft reads the tokens of rounds in which it drafted nothing. One program serves all batches of
    a size.
    """
    seeds = np.arange(len(PROMPTS))
    for options in (dict(), dict(temperature=1.0)):
        state, lengths = decode_with_lengths(PROMPTS, seeds=seeds, **options)
        together = new_tokens(state, PROMPTS)
        if not options:
            assert set(lengths.ravel()) == {0, 1, 2} and all(is_greedy(TARGET, state, PROMPTS, 24))
        for b in (7,) if options else (0,):
            alone, alone_lengths = decode_with_lengths([PROMPTS[b]] * rows, seeds=seeds[b], **options)
            assert new_tokens(alone, [PROMPTS[b]] * rows) == [together[b]] * rows
            np.testing.assert_array_equal(alone_lengths[:, 0], lengths[: len(alone_lengths), b])
            assert len(set(alone_lengths[:, 0])) > 1
    assert STEP._cache_size() == (1 if rows == 8 else 2)


SURE = 0.085
CONFIDENT = Adaptive(DraftModel(4), "confidence", draft_confidence=SURE)
DRAW = jax.jit(partial(CONFIDENT.propose, TARGET, DRAFT))


def test_a_chain_ends_after_the_first_token_below_the_confidence():
    state = start(TARGET, DRAFT, CONFIDENT, PROMPTS, **SMALL)
    tree, _ = DRAW(state, state.request.keys)
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


def test_a_draft_that_lost_the_end_of_its_cache_reads_it_again():
    """The test cuts the cache back and overwrites the rest; the draft then draws the same chain."""
    state = start(TARGET, DRAFT, CONFIDENT, PROMPTS, **SMALL)
    tree, pending = DRAW(state, state.request.keys)
    cache = state.drafter.inner.cache
    length = jnp.maximum(cache.length - jnp.array([0, 1, 3, 4, 5, 9, 13, 30]), 0)
    void = jnp.arange(cache.capacity) >= length[:, None]
    layers = jax.tree.map(lambda leaf: jnp.where(void[:, None, :, None], 7.0, leaf), cache.layers)
    inner = state.drafter.inner.replace(cache=cache.replace(layers=layers, length=length))
    after, caught_up = DRAW(state.replace(drafter=state.drafter.replace(inner=inner)), state.request.keys)
    np.testing.assert_array_equal(after.tokens, tree.tokens)
    np.testing.assert_array_equal(caught_up.inner.cache.length, cache.length)
    for ours, theirs in zip(jax.tree.leaves(caught_up.inner.rows), jax.tree.leaves(pending.inner.rows)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    assert DRAW._cache_size() == 1


def test_the_chain_of_a_row_does_not_depend_on_the_length_that_the_batch_needs():
    """Every length that suffices for a row gives the row the same chain."""
    inner = Suffix(4)  # its proposal depends on its longest continuation
    drafter = Adaptive(inner, "heuristic")
    tokens = jnp.pad(jnp.array([[5, 6, 7, 8] * 5, [5, 6, 9, 5, 6, 9, 5] + [0] * 13]), ((0, 0), (0, 12)))
    own = drafter.init(None, None, None, jnp.zeros(2), (), chunk=1, dtype=None).replace(wanted=jnp.array([1, 2]))
    state = Fields(
        tokens=tokens,
        cache=Fields(length=jnp.array([19, 6])),
        root=jnp.array([8, 5]),
        drafter=own,
        done=jnp.zeros(2, bool),
    )
    trees = jax.jit(
        lambda: [
            d.propose(TARGET, None, s, None)[0]
            for d, s in ((drafter.at_shape(2), state), (drafter.at_shape(4), state), (inner, state))
        ]
    )()
    for k, tree in zip((2, 4), trees):
        assert tree.valid.sum(1).tolist() == [2, 3] and tree.tokens.shape == (2, k + 1)
        np.testing.assert_array_equal(tree.tokens, trees[-1].tokens[:, : k + 1])
    assert drafter.shapes == (1, 2, 4) and int(drafter.choose(None, None, state)[2]) == 1


CHAIN_RULES = ("sample_and_walk", "block")


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(name, marks=() if name in CHAIN_RULES else pytest.mark.slow)
        for name, rule in RULES.items()
        if not rule.lossy
    ],
)
def test_invalid_nodes_do_not_change_a_verdict(rule):
    """A chain with invalid nodes at its end gets the verdict of the shorter chain without them."""
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
