"""Cascades against the draft alone: chains of the same law, in fewer calls of the draft."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.decoding import NEW, rounds, start, texts
from support.models import TINY, disturbed, language_model, p_value, random_prompts, tiny_model, warped
from support.reference import assert_greedy, is_greedy, logits_after, read_target, score

from specjax import Generator, RequestError
from specjax.drafters import Cascade
from specjax.models.draft_vocabulary import Translated

DEEP = 4
TARGET = tiny_model(0, 8.0, num_layers=1)
DRAFT, SECOND = disturbed(TARGET), disturbed(TARGET, 0.1)
CASCADE = Cascade(DEEP, inner_speculative_tokens=3, prompt_lookup_max=2)
FIVE_TOKENS = TINY.replace(
    vocab_size=5, hidden_size=16, intermediate_size=16, num_layers=1, num_heads=2, num_kv_heads=1
)
LOOPS = [[3, 4, 5, 6] * 8, [9, 8] * 15]


@pytest.mark.parametrize(
    "drafts", [(DRAFT,), pytest.param((DRAFT, SECOND), marks=pytest.mark.slow)], ids=["n-grams", "a second draft"]
)
def test_chains_equal_those_of_the_draft_alone(drafts):
    """q equals the draft's distribution after each token, by a forward without a cache, and greedy
    chains are its argmax.

    Greedy rows write the text of plain decoding. Every call of the draft yields at least one token.
    """
    prompts = [[7], *random_prompts(5, 30, seed=3), *LOOPS]
    temperature = np.array([0, 1.3] * 4)
    options = dict(temperature=temperature, bias=np.zeros((8, 61), np.float32))
    for i, (state, tree) in enumerate(rounds(TARGET, drafts, CASCADE, NEW + 1, prompts, **options)):
        for b, text in enumerate(texts(state) if i in (1, 4) else ()):
            for node in range(DEEP if not state.done[b] else 0):
                wanted = warped(logits_after(DRAFT, text + tree.tokens[b, 1 : node + 1].tolist()), temperature[b])
                np.testing.assert_allclose(tree.q[b, node], wanted, rtol=1e-3, atol=1e-6)
                assert wanted[tree.tokens[b, node + 1]] > 0
            assert np.all(tree.valid[b]) or state.done[b]
        if state.done.all():
            break
    assert is_greedy(TARGET, state, prompts)[::2] == [True] * 4
    assert np.asarray(state.counters.accepted_at).sum() > 0
    calls = np.asarray(state.drafter.calls) / np.asarray(state.counters.calls)
    assert np.all(calls <= DEEP + 1) and np.mean(calls) < (DEEP + 1) * (0.9 if len(drafts) == 1 else 0.7)


def test_repetitive_text_saves_calls_of_the_draft():
    """A greedy text of two tokens soon repeats itself; a hot text over all tokens does not."""
    prompts, calls = [[7], *random_prompts(7, 30, seed=3)], {}
    two_tokens = np.where(np.isin(np.arange(61), (3, 4)), 0, -np.inf).astype(np.float32)
    for name, temperature, bias in (("loops", 0.0, two_tokens), ("noise", 2.5, np.zeros(61, np.float32))):
        *_, (state, _) = rounds(
            TARGET, (TARGET,), CASCADE, 8, prompts, temperature=temperature, bias=np.tile(bias, (8, 1))
        )
        calls[name] = np.asarray(state.drafter.calls).sum() / np.asarray(state.counters.calls).sum()
    assert calls["loops"] < 3 and 4.5 < calls["noise"] <= DEEP + 1


OWN, SHARED = [6, 0, 3, 2, 4], [True, False, True, True, False]
"""For each of five target tokens the token of a draft of seven, and whether both are the same."""


OTHER_VOCABULARY = "a first draft of another vocabulary"
SLOW = [pytest.param(drafts, marks=pytest.mark.slow) for drafts in ("a second draft", OTHER_VOCABULARY)]


@pytest.mark.parametrize("drafts", ["n-grams", *SLOW])
def test_chains_have_the_drafts_law(drafts):
    """Counts of two tokens against the first draft's probabilities, by a forward without a cache.

    A draft of another vocabulary is restricted to the shared tokens.
    """
    V, rows, prompt = FIVE_TOKENS.vocab_size, 4_000, [1, 2, 1, 2, 1]
    target, first, second = (tiny_model(seed, sharpness=15, config=FIVE_TOKENS) for seed in (1, 2, 3))
    spell, score_first, shared = np.arange(V), partial(score, first), np.full(V, True)
    if drafts == OTHER_VOCABULARY:
        spell, shared = np.array(OWN), np.array(SHARED)
        seven = tiny_model(2, sharpness=15, config=FIVE_TOKENS.replace(vocab_size=7))
        first, score_first = Translated(seven, np.int32(OWN), shared), partial(score, seven)
    models, drafter = (first,) if drafts == "n-grams" else (first, second), Cascade(2, inner_speculative_tokens=2)
    state = start(
        target, models, drafter, [prompt] * rows, seeds=np.arange(rows), temperature=1.0, capacity=16, chunk=8
    )
    draw = jax.jit(lambda target, drafts, state: drafter.propose(target, drafts, state, state.request.keys))
    tree, pending = draw(target, models, state)
    pairs = np.array(list(itertools.product(range(V), repeat=2)))
    texts = spell[np.array([prompt + [token, 0] for token in range(V)])]
    logits = np.where(shared, np.asarray(score_first(jnp.asarray(texts)))[..., spell], -np.inf)
    law = np.array([warped(logits[a, len(prompt) - 1])[a] * warped(logits[a, len(prompt)])[b] for a, b in pairs])
    counts = np.bincount(np.ravel_multi_index(np.asarray(tree.tokens[:, 1:]).T, (V, V)), minlength=V * V)
    assert p_value(counts, law) > 1e-4
    assert 0 < np.mean(pending.calls < 3) < 1


@pytest.mark.slow
def test_a_first_draft_of_another_vocabulary_leaves_the_text_greedy(target, draft):
    """The draft has 50 of 61 letters. The text equals the argmax of a forward without a cache."""
    prompts = random_prompts(4, 20, vocab_size=50, seed=3)
    graph, params = nnx.split(draft.model)
    cut = nnx.merge(graph, jax.tree.map(lambda leaf: leaf[:50] if leaf.shape[0] == 61 else leaf, params))
    cut.config = cut.config.replace(vocab_size=50)
    generator = Generator(target, "cascade", [language_model(cut, "fewer letters"), draft], num_speculative_tokens=DEEP)
    results = generator(prompts, max_new_tokens=24, ignore_eos=True)
    rows = [[*prompt, *result.token_ids] for prompt, result in zip(prompts, results)]
    assert_greedy(prompts, rows, read_target(target.model, rows, (0,))[1])
    assert {len(result.token_ids) for result in results} == {24} and sum(
        result.stats.accepted for result in results
    ) > 10


def test_options_and_drafts_that_make_no_cascade_are_refused(target, draft):
    for options in (dict(num_speculative_tokens=0), dict(inner_speculative_tokens=0), dict(prompt_lookup_min=9)):
        with pytest.raises(RequestError, match=next(iter(options))):
            Cascade(**options)
    with pytest.raises(RequestError, match="'cascade' needs a draft"):
        Generator(target, "cascade")
    assert Generator(target, "cascade", draft).drafts == (draft,)
    assert Generator(target, "cascade", [draft, target]).drafts == (draft, target)
