"""Drafts of other vocabularies: which tokens are the same, and that any mapping leaves the output the target's."""

import jax
import numpy as np
import pytest
from flax import nnx
from support.decoding import finish, new_tokens, start
from support.grid import CONFIG, DRAFTS, count_draws, p_values, random_model
from support.models import TINY, byte_tokenizer, disturbed, language_model, random_prompts, tiny_model
from support.reference import is_greedy
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from specjax import Generator, LanguageModel, RequestError
from specjax.core.sampling import probabilities, sampling_params
from specjax.drafters import DraftModel
from specjax.models.draft_vocabulary import LACKING, Translated
from specjax.requests.shared_vocabulary import shared_tokens, translate_draft

UNLIKELY = 1e-4


def tokenizer(vocabulary: list[str], decoder, end: str, unknown: str | None = None) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(vocabulary)}, [], unk_token=unknown))
    backend.decoder = decoder
    special = {"eos_token": end} | ({"unk_token": unknown} if unknown else {})
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special, clean_up_tokenization_spaces=False)


def byte_level(*vocabulary: str, end: str = "<|end|>") -> PreTrainedTokenizerFast:
    return tokenizer([end, *vocabulary], decoders.ByteLevel(), end)


def sentencepiece(*vocabulary: str) -> PreTrainedTokenizerFast:
    return tokenizer(
        ["</s>", "<unk>", *vocabulary],
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()]),
        "</s>",
        "<unk>",
    )


def test_tokens_are_the_same_if_their_bytes_are():
    """ "é" is two bytes, which byte-level vocabularies spell Ã©; the last three places of each vocabulary have no token."""
    target = byte_level("Ġdef", "A", "Ã©", "Ã", "Ġundef", "xy", "Ċ", "<0x41>")
    draft = sentencepiece("<0x41>", "<0xC3>", "<0x0A>", "é", "A", "▁def", "def", "y", "▁")
    own, shared = shared_tokens(target, 12, draft, 14)
    spelled = {"<|end|>": "</s>", "Ġdef": "▁def", "A": "A", "Ã©": "é", "Ã": "<0xC3>", "Ċ": "<0x0A>"}
    read_as = {"Ġundef": "def", "xy": "y", "<0x41>": "<unk>"}  # six letters in a byte-level vocabulary
    for token, theirs in (spelled | read_as).items():
        id = target.get_vocab()[token]
        assert own[id] == draft.get_vocab()[theirs] and shared[id] == (token in spelled), token
    assert not shared[9:].any() and own[9:].tolist() == [1] * 3

    back, same = shared_tokens(draft, 14, target, 12)
    assert (
        same.sum() == shared.sum()
        and [back[own[id]] for id in np.flatnonzero(shared)] == np.flatnonzero(shared).tolist()
    )


def renamed(draft, order: np.ndarray) -> Translated:
    """``draft`` with its token i called order[i], seen through the old names."""
    graph, params = nnx.split(draft)
    rename = lambda leaf: leaf.at[order].set(leaf) if leaf.shape[0] == order.size else leaf
    return Translated(nnx.merge(graph, jax.tree.map(rename, params)), np.int32(order), np.ones(order.size, bool))


TARGET = tiny_model(0, 8.0, num_layers=1)
DRAFT = disturbed(TARGET)
PROMPTS = [[7], *random_prompts(7, 40, seed=3)]


def test_a_vocabulary_in_another_order_changes_nothing():
    states = []
    for order in np.arange(61), np.random.default_rng(0).permutation(61):
        draft, drafter = renamed(DRAFT, order), DraftModel(3)
        options = dict(temperature=[0.0, 1.0] * 4, top_p=0.9, seeds=np.arange(8))
        states.append(finish(TARGET, draft, drafter, start(TARGET, draft, drafter, PROMPTS, **options)))
    one, other = states
    assert new_tokens(one, PROMPTS) == new_tokens(other, PROMPTS) and is_greedy(TARGET, one, PROMPTS)[::2] == [True] * 4
    np.testing.assert_array_equal(one.counters.accepted_at, other.counters.accepted_at)
    assert one.counters.accepted_at.sum() > 0


def halved(draft) -> Translated:
    """A draft that has every other token, and reads the token before in place of one it lacks."""
    own = np.arange(draft.config.vocab_size, dtype=np.int32)
    return Translated(draft, own - own % 2, own % 2 == 0)


@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.slow), 8])
def test_greedy_text_is_that_of_plain_decoding(rows):
    prompts, draft = PROMPTS[-rows:], halved(DRAFT)
    state = finish(TARGET, draft, DraftModel(3), start(TARGET, draft, DraftModel(3), prompts))
    assert all(is_greedy(TARGET, state, prompts))
    assert state.counters.accepted_at.sum() > 0


@pytest.mark.slow
def test_sequences_have_the_targets_law():
    """Of five tokens the draft, which has seven, lacks one: after its prompt the expression allows only that one and the end."""
    draft = tiny_model(1, sharpness=15, config=CONFIG.replace(vocab_size=7))
    other = Translated(draft, np.array([6, 0, 3, 2, 4], np.int32), np.array([True, False, True, False, True]))
    counts, rate = count_draws(DraftModel(DRAFTS), "block", seed=1, rows=1_000, calls=1, draft=other)
    values = p_values(counts)
    assert rate > 0.05 and min(values.values()) > UNLIKELY, values


@pytest.mark.parametrize(
    "options", [dict(), dict(top_k=2), dict(top_p=0.5), dict(min_p=0.2), dict(temperature=0.0), dict(temperature=1e-6)]
)
def test_q_is_restricted_and_never_empty(options):
    """Row 0 may say anything, row 1 only what the draft lacks: there q is uniform, or as greedy as any."""
    draft = Translated(random_model(1), np.arange(5, dtype=np.int32), np.array([True, False, True, False, True]))
    bias = np.array([[0] * 5, [-np.inf, 0, -np.inf, 0, -np.inf]], np.float32)
    hidden = jax.random.normal(jax.random.key(0), (2, 1, CONFIG.hidden_size))
    logits = draft.logits(hidden)
    np.testing.assert_array_equal(logits[..., ::2], random_model(1).logits(hidden)[..., ::2])
    assert np.all(logits[..., 1::2] == LACKING)
    params = sampling_params(2, **{"temperature": 1.0} | options)
    free, bound = np.asarray(probabilities(logits + bias[:, None], params))[:, 0]
    assert free[[1, 3]].tolist() == [0, 0] and free.sum() == pytest.approx(1) and np.all(free[::2] >= 0)
    assert bound.tolist() == ([0, 1, 0, 0, 0] if options.get("temperature") == 0 else [0, 0.5, 0, 0.5, 0])


def test_generators_translate_where_vocabularies_differ(target):
    draft = language_model(tiny_model(5, vocab_size=50), "fewer letters")
    assert Generator(target, "draft_model", language_model(DRAFT)).session.parameters is DRAFT
    through = Generator(target, "draft_model", draft).session.parameters
    assert isinstance(through, Translated) and through.shared[...].sum() == 50
    padded = LanguageModel(tiny_model(5, vocab_size=64), TINY.replace(vocab_size=64), target.tokenizer, "padded")
    assert translate_draft(padded, target).shared[...].all()
    with pytest.raises(RequestError, match="'other letters' and target 'target' share 0 of 59 tokens of text") as error:
        Generator(target, draft=LanguageModel(DRAFT, TINY, byte_tokenizer(first=100), "other letters"))
    assert "\n" not in str(error.value)
