"""Draft models with a smaller output matrix: their logits, the tokens they draft, and that the output stays the target's."""

from collections import Counter

import jax
import numpy as np
import pytest
from support.decoding import finish, start
from support.grid import CONFIG, DRAFTS, count_draws, p_values, random_model
from support.models import byte_tokenizer, disturbed, language_model, random_head, random_prompts, tiny_model
from support.reference import is_greedy

import specjax
from specjax import Head, LanguageModel, RequestError, restrict_draft
from specjax.drafters import DraftModel
from specjax.heads import MedusaConfig, MedusaHeads
from specjax.models.draft_vocabulary import LACKING, DraftVocabulary, Translated
from specjax.training.frequency import frequent_tokens

UNLIKELY = 1e-4
TARGET = tiny_model(0, 8.0, num_layers=1)
DRAFT = disturbed(TARGET)
KNOWN = np.arange(1, 61, 2)
PROMPTS = random_prompts(8, 40, seed=3)


@pytest.mark.parametrize("tied", [False, True])
def test_known_tokens_keep_their_logits_and_others_have_none(tied):
    draft = tiny_model(tie_embeddings=tied)
    hidden = np.asarray(jax.random.normal(jax.random.key(0), (2, 3, 32)))
    found = np.asarray(DraftVocabulary(draft, KNOWN).logits(hidden))
    matrix = np.asarray((draft.embed if tied else draft.head)[...], np.float64)
    np.testing.assert_allclose(found[..., KNOWN], hidden @ matrix[KNOWN].T, rtol=1e-4, atol=1e-4)
    assert np.all(np.delete(found, KNOWN, -1) == np.float32(LACKING))


def test_greedy_text_is_that_of_plain_decoding_and_only_known_tokens_are_accepted():
    draft = DraftVocabulary(DRAFT, KNOWN)
    state = finish(TARGET, draft, DraftModel(3), start(TARGET, draft, DraftModel(3), PROMPTS))
    assert all(is_greedy(TARGET, state, PROMPTS)) and state.counters.accepted_at.sum() > 0
    drafts = np.asarray(state.tokens)[np.asarray(state.from_draft)]
    assert drafts.size and np.isin(drafts, KNOWN).all()


@pytest.mark.slow
def test_sequences_have_the_targets_law():
    """The draft knows three of the five tokens."""
    draft = DraftVocabulary(random_model(1), np.array([0, 2, 4]))
    counts, rate = count_draws(DraftModel(DRAFTS), "block", seed=1, rows=1_000, calls=1, draft=draft)
    values = p_values(counts)
    assert CONFIG.vocab_size == 5 and rate > 0.05 and min(values.values()) > UNLIKELY, values


def test_a_draft_of_another_vocabulary_keeps_the_tokens_that_it_has():
    target, draft = language_model(TARGET), LanguageModel(DRAFT, DRAFT.config, byte_tokenizer(first=3), "other")
    model = restrict_draft(draft, target, KNOWN).model
    assert isinstance(model.model, Translated)
    shared, own = np.asarray(model.model.shared[...]), np.asarray(model.model.own[...])
    tokens = np.arange(model.head.shape[0]) + np.asarray(model.draft_to_target[...])
    assert tokens.tolist() == [token for token in KNOWN if shared[token]] and 0 < tokens.size < KNOWN.size
    np.testing.assert_array_equal(model.head[...], DRAFT.head[...][own[tokens]])


@pytest.mark.parametrize("tokens", [[], [61], [-1]])
def test_tokens_outside_the_vocabulary_are_refused(tokens):
    with pytest.raises(RequestError, match="tokens from 0 to 60, and at least one"):
        restrict_draft(language_model(DRAFT), language_model(TARGET), tokens)


def test_a_head_is_refused():
    config = MedusaConfig(num_heads=1, num_layers=1, target_size=32, target_layers=1, vocab_size=61)
    head = Head(random_head(MedusaHeads, config), config, "heads")
    with pytest.raises(RequestError, match="only draft models take another vocabulary"):
        restrict_draft(head, language_model(TARGET), KNOWN)


def test_the_most_frequent_tokens_of_files_and_the_end(tmp_path):
    target = specjax.load("tiny-python")
    text = "def f(x):\n    return x\n" * 3 + "import os\n"
    (tmp_path / "a.txt").write_text(text)
    counts = Counter(target.tokenizer(text, add_special_tokens=False)["input_ids"])
    wanted = sorted(counts, key=lambda token: (-counts[token], token))[:5]
    found = frequent_tokens(target, 6, [tmp_path])
    assert set(found) == {*wanted, *target.config.eos_token_ids} and sorted(found) == found.tolist()
    assert frequent_tokens(target, 100).size == 100
    with pytest.raises(RequestError, match="draft_vocab"):
        frequent_tokens(target, 5000)
