"""Cascades: what is drafted is the draft's own, whatever drafts for it, and costs fewer of its calls."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import disturbed, p_value, random_prompts, tiny_model, warped
from lossless_grid import CONFIG
from test_decode import NEW, start
from test_merged import is_argmax
from test_tree_drafts import logits_after, rounds, texts

from specjax import Cascade, Generator, RequestError
from specjax.training.losses import scores

DEEP = 4
TARGET = tiny_model(0, 8.0, num_layers=1)
DRAFT, SECOND = disturbed(TARGET), disturbed(TARGET, 0.1)
CASCADE = Cascade(DEEP, inner_speculative_tokens=3, prompt_lookup_max=2)
LOOPS = [[3, 4, 5, 6] * 8, [9, 8] * 15]


@pytest.mark.parametrize("drafts", [(DRAFT,), (DRAFT, SECOND)], ids=["n-grams", "a second draft"])
def test_chains_are_those_of_the_draft_alone(drafts):
    """Round after round, in ragged rows: q is what the draft says after each token by a forward without a cache, greedy chains are its
    argmax, greedy text is that of plain decoding, and each call of the draft gives one token at least."""
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
    assert is_argmax(TARGET, state, prompts)[::2] == [True] * 4
    assert np.asarray(state.counters.accepted_at).sum() > 0
    calls = np.asarray(state.drafter.calls) / np.asarray(state.counters.calls)
    assert np.all(calls <= DEEP + 1) and np.mean(calls) < (DEEP + 1) * (0.9 if len(drafts) == 1 else 0.7)


def test_text_that_repeats_saves_calls_of_the_draft():
    """With two tokens to choose from a greedy text soon repeats itself; a hot one over all tokens does not."""
    prompts, calls = [[7], *random_prompts(7, 30, seed=3)], {}
    two_tokens = np.where(np.isin(np.arange(61), (3, 4)), 0, -np.inf).astype(np.float32)
    for name, temperature, bias in (("loops", 0.0, two_tokens), ("noise", 2.5, np.zeros(61, np.float32))):
        *_, (state, _) = rounds(TARGET, (TARGET,), CASCADE, 8, prompts, temperature=temperature, bias=np.tile(bias, (8, 1)))
        calls[name] = np.asarray(state.drafter.calls).sum() / np.asarray(state.counters.calls).sum()
    assert calls["loops"] < 3 and 4.5 < calls["noise"] <= DEEP + 1


@pytest.mark.parametrize("second", [None, 3], ids=["n-grams", "a second draft"])
def test_chains_have_the_drafts_law(second):
    """Two tokens, counted against their probability under the draft."""
    V, rows, prompt = CONFIG.vocab_size, 4_000, [1, 2, 1, 2, 1]
    models = [tiny_model(seed, sharpness=15, config=CONFIG) for seed in (1, 2, *([second] if second else []))]
    target, *drafts = models
    drafter = Cascade(2, inner_speculative_tokens=2)
    state = start(target, tuple(drafts), drafter, [prompt] * rows, seeds=np.arange(rows), temperature=1.0, capacity=16, chunk=8)
    draw = jax.jit(lambda target, drafts, state: drafter.draft(target, drafts, state, state.key))
    tree, pending = draw(target, tuple(drafts), state)
    pairs = np.array(list(itertools.product(range(V), repeat=2)))
    logits = scores(drafts[0], jnp.asarray([prompt + [first, 0] for first in range(V)]))
    law = np.array([warped(logits[a, len(prompt) - 1])[a] * warped(logits[a, len(prompt)])[b] for a, b in pairs])
    counts = np.bincount(np.ravel_multi_index(np.asarray(tree.tokens[:, 1:]).T, (V, V)), minlength=V * V)
    assert p_value(counts, law) > 1e-4
    assert 0 < np.mean(pending.calls < 3) < 1


def test_options_that_make_no_cascade_are_refused(target, draft):
    for options in (dict(num_speculative_tokens=0), dict(inner_speculative_tokens=0), dict(prompt_lookup_min=9)):
        with pytest.raises(RequestError, match=next(iter(options))):
            Cascade(**options)
    with pytest.raises(RequestError, match="'cascade' needs a draft"):
        Generator(target, "cascade")
    assert Generator(target, "cascade", draft).drafts == (draft,)
    assert Generator(target, "cascade", [draft, target]).drafts == (draft, target)
