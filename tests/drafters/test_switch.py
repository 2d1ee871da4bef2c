"""Choices between drafters against plain Python, and texts against greedy decoding."""

import dataclasses
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.decoding import new_tokens, start, texts
from support.models import disturbed, p_value, random_prompts, tiny_model
from support.reference import is_greedy, look_up

from specjax import Generator, RequestError
from specjax.core.tree import chain
from specjax.drafters import DraftModel, DraftTree, Ngram, Suffix, Switch, make_drafter
from specjax.loop import decode
from specjax.loop.drafter import Models, Nothing
from specjax.rules import RULES
from specjax.rules.acceptance import Drawn, resolve

V, DRAFTS, COST = 61, 2, 0.3
TARGET = tiny_model(0, 8.0, num_layers=1)
DRAFT = disturbed(TARGET, 0.1)
PROMPTS = [[7], *random_prompts(3, 20, vocab_size=6, seed=4), *([*p[:4]] * 5 for p in random_prompts(4, 9, seed=5))]


@dataclasses.dataclass(frozen=True)
class Watched(Switch):
    """Keeps the proposals of the last round in its state."""

    def init(self, target, draft, tokens, lengths, taps, **sizes):
        B, M = lengths.size, len(self.drafters)
        drafts, count, chosen = (jnp.zeros(shape, jnp.int32) for shape in ((B, M, self.depth), (B, M), B))
        return (
            super()
            .init(target, draft, tokens, lengths, taps, **sizes)
            .replace(drafts=drafts, count=count, chosen=chosen, ran=jnp.zeros(len(self._models), bool))
        )

    def commit(self, target, draft, state, tree, scored, verdict):
        last = {name: getattr(state.drafter, name) for name in ("drafts", "count", "chosen", "ran")}
        return super().commit(target, draft, state, tree, scored, verdict).replace(**last)


SWITCH = Watched((Ngram(3, 3, 1), DraftModel(DRAFTS)), COST)
STEP = jax.jit(
    partial(decode.step, drafter=SWITCH, rule=resolve("auto", Drawn.CHAIN)),
    compiler_options={"xla_backend_optimization_level": 0},
)


def decode_by_round(prompts, **options):
    """Every state from the prefill until all rows are done."""
    draft = SWITCH.parameters(DRAFT, V)
    states = [
        start(
            TARGET,
            draft,
            SWITCH,
            prompts,
            limit=[len(prompt) + 24 for prompt in prompts],
            capacity=64,
            chunk=32,
            **options,
        )
    ]
    while not np.all(states[-1].done):
        states.append(STEP(TARGET, draft, states[-1]))
    assert not np.any(states[-1].failed)
    return states


class Row:
    """The choice of one row in plain Python, from accepted and tested drafts of each drafter.

    Older rounds count nine tenths.
    """

    def __init__(self):
        self.counts = [(1.0, 2.0), (1.0, 2.0)]

    def choose(self, found: list[int]) -> int:
        value = lambda i, k, cost: (
            sum((self.counts[i][0] / self.counts[i][1]) ** j for j in range(k + 1)) / (1 + k * cost)
        )
        return 0 if found and value(0, len(found), 0) >= value(1, DRAFTS, COST) - 1e-6 else 1

    def learn(self, i: int, drafts: list[int], said: list[int]) -> None:
        kept = next((k for k, (a, b) in enumerate(zip(drafts, said)) if a != b), min(len(drafts), len(said)))
        tested = min(kept + 1, len(drafts), len(said))
        if tested:
            self.counts[i] = 0.9 * self.counts[i][0] + kept, 0.9 * self.counts[i][1] + tested


def test_choices_equal_plain_python_and_the_text_is_greedy():
    rows, states, chosen = [Row() for _ in PROMPTS], decode_by_round(PROMPTS), []
    of_state = lambda state: (state.tokens, state.cache.length, state.done, state.drafter.replace(members=()))
    for before, after in itertools.pairwise(map(jax.device_get, map(of_state, states))):
        (_, lengths, done, _), (tokens, ends, _, last) = before, after
        for b in np.flatnonzero(~done):
            text, said = tokens[b, : lengths[b] + 1].tolist(), tokens[b, lengths[b] + 1 : ends[b] + 1].tolist()
            found = look_up(text, 3, 3, 1) or []
            assert last.chosen[b] == rows[b].choose(found)
            rows[b].learn(0, found, said)
            if last.chosen[b] == 1:
                rows[b].learn(1, last.drafts[b, 1, :DRAFTS].tolist(), said)
            chosen.append(last.chosen[b])
        assert last.ran == np.any(last.chosen[~done] == 1)
    assert 0.1 < np.mean(chosen) < 0.9
    assert all(is_greedy(TARGET, states[-1], PROMPTS, 24))


@pytest.mark.parametrize("rows", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_a_row_writes_its_own_text_and_an_unused_model_does_not_run(rows):
    """A row repeated to fill a batch, or alone, writes the text that it writes beside other rows."""
    seeds, ran = np.arange(len(PROMPTS)), []
    for options in (dict(), dict(temperature=1.0)):
        together = new_tokens(decode_by_round(PROMPTS, seeds=seeds, **options)[-1], PROMPTS)
        for b in (0, 6):
            alone = decode_by_round([PROMPTS[b]] * rows, seeds=seeds[b], **options)
            assert new_tokens(alone[-1], [PROMPTS[b]] * rows) == [together[b]] * rows
            ran += [bool(state.drafter.ran) for state in alone[1:]]
    assert 0 < np.mean(ran) < 1
    assert STEP._cache_size() == (1 if rows == 8 else 2)  # one program for each size of batch


@pytest.mark.parametrize("rule", ["block", "rejection", "traversal"])
def test_a_chosen_chain_with_a_one_hot_q_keeps_the_targets_law(rule):
    """Counts against the law by enumeration: the chain's tokens with the target's probabilities,
    then another token.
    """
    rng, draws, n = np.random.default_rng(0), 10_000, 4
    p = rng.dirichlet(np.ones(n), 3).astype(np.float32)
    tokens = jnp.array([0, 2, 1])
    tree = chain(tokens, jax.nn.one_hot(jnp.array([2, 1, n]), n))  # a leaf has no q
    verdicts = jax.jit(jax.vmap(partial(RULES[rule], jnp.asarray(p), tree)))(
        jax.random.split(jax.random.key(0), (draws, n))
    )
    law = np.stack([p[0], p[0, 2] * p[1], p[0, 2] * p[1, 1] * p[2]])
    law[0, 2] = law[1, 1] = 0  # these bonus tokens would be the chain's own
    counts = np.bincount(np.asarray((verdicts.length - 1) * n + verdicts.bonus), minlength=3 * n)
    assert p_value(counts, law) > 1e-3


def test_lists_of_methods_make_switches():
    assert (
        make_drafter("ngram,draft_model") == make_drafter(["ngram", "draft_model"]) == Switch((Ngram(), DraftModel()))
    )
    options = dict(num_speculative_tokens=3, prompt_lookup_max=6, draft_cost=0.2)
    assert make_drafter("switch", **options) == Switch((Ngram(3, 6, 2), DraftModel(3)), 0.2)
    assert (
        make_drafter("draft_model,draft_model").needs == Models(2, 2)
        and make_drafter("ngram,suffix").needs == Nothing()
    )
    assert make_drafter(["suffix"]) == Suffix() and make_drafter("suffix, ngram").drawn is Drawn.CHOSEN


DOMAINS = Watched((DraftModel(DRAFTS), DraftModel(DRAFTS)), COST)


def two_domains() -> tuple:
    """A target whose text stays in the half of the vocabulary that its prompt is from, and a draft for each half.

    A draft is nearly the target, but it takes the tokens of the other half for one another.
    """
    half = np.where(np.arange(V) < V // 2, 1.0, -1.0).astype(np.float32)
    target = tiny_model(0, 8.0, num_layers=1)
    target.embed[...] = target.embed[...].at[:, 0].set(0.6 * half)  # channel 0 says the half
    target.head[...] = target.head[...].at[:, 0].set(2.5 * half)
    for matrix in (target.layers[0].mixer.out, target.layers[0].mlp.down):
        matrix[...] = matrix[...].at[0].set(0)
    drafts = [nnx.clone(disturbed(target, 0.02)) for _ in range(2)]
    for other, draft in zip((-1, 1), drafts):
        rows = np.flatnonzero(half == other)
        draft.embed[...] = draft.embed[...].at[rows].set(draft.embed[...][np.roll(rows, 7)])
    return target, drafts


@pytest.mark.slow
def test_each_row_ends_with_the_draft_of_its_domain():
    """Choices against plain Python: estimates begin at 1 and return towards 1 while a draft is not used."""
    target, drafts = two_domains()
    prompts = [[3, 9, 4], [40, 55], [11, 2, 8, 5], [33, 58, 41, 36]]
    draft = DOMAINS.parameters(drafts, V)
    state = start(
        target, draft, DOMAINS, prompts, limit=[len(prompt) + 48 for prompt in prompts], capacity=96, chunk=32
    )
    counts, chosen = np.full((4, 2, 2), 2.0), []
    rule = resolve("auto", Drawn.CHAIN)
    step = jax.jit(partial(decode.step, drafter=DOMAINS, rule=rule))
    while not np.all(state.done):
        before, state = state, step(target, draft, state)
        last, live = jax.device_get(state.drafter.replace(members=())), np.flatnonzero(~np.asarray(before.done))
        for b in live:
            alpha = counts[b, :, 0] / counts[b, :, 1]
            value = sum(alpha**k for k in range(DRAFTS + 1))
            assert last.chosen[b] == (0 if value[0] >= value[1] - 1e-6 else 1)
            said = texts(state)[b][int(before.cache.length[b]) + 1 :]
            drafted = last.drafts[b, last.chosen[b]].tolist()
            kept = next((k for k, (x, y) in enumerate(zip(drafted, said)) if x != y), min(len(drafted), len(said)))
            used, other = last.chosen[b], 1 - last.chosen[b]
            counts[b, used] = 0.9 * counts[b, used] + (kept, min(kept + 1, DRAFTS, len(said)))
            counts[b, other] = 0.98 * counts[b, other] + 0.02 * 2
        assert last.ran.tolist() == [np.any(last.chosen[live] == m) for m in range(2)]
        chosen.append(last.chosen)
    assert all(is_greedy(target, state, prompts, 48))
    half = len(chosen) // 2
    assert (np.mean(chosen[half:], 0).round() == [0, 1, 0, 1]).all()
    assert np.abs(np.mean(chosen[half:], 0) - [0, 1, 0, 1]).max() < 0.3
    assert len(chosen) < 48 / (DRAFTS + 1) + 10  # nearly every draft is accepted, in both domains


def test_a_smaller_model_costs_less():
    switch = Switch((DraftModel(), Ngram(), DraftModel()), 0.4)
    models = tiny_model(0, num_layers=1), tiny_model(0, num_layers=2)
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(model)) for model in models]
    found = switch._costs(switch.parameters(models, V))
    np.testing.assert_allclose(found, [0.4 * sizes[0] / sizes[1], 0, 0.4], rtol=1e-6)


def test_impossible_lists_of_methods_are_refused_in_one_line(target):
    for make, named in (
        (lambda: Generator(target, []), "list of methods is empty"),
        (lambda: make_drafter(","), "list of methods is empty"),
        (lambda: make_drafter("ngram,magic"), "'magic'"),
        (lambda: make_drafter("ngram,tree"), "draft chains"),
        (lambda: Generator(target, "draft_model,draft_model", [target]), "needs 2 drafts and 1 is given"),
        (lambda: Switch((Ngram(), DraftTree())), "draft chains"),
        (lambda: Switch(()), "empty"),
        (lambda: Switch(draft_cost=-1), "draft_cost"),
        (lambda: Generator(target, ["ngram", "draft_model"]), "needs a draft"),
    ):
        with pytest.raises(RequestError) as error:
            make()
        assert named in str(error.value) and "\n" not in str(error.value)
