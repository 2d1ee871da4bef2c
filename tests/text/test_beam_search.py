"""Beam search against lists in plain Python, against all texts, and against transformers."""

import numpy as np
import pytest
from support.models import TINY, language_model, random_prompts, tiny_model
from support.reference import log_softmax, logits_after

from specjax import RequestError
from specjax.checkpoints.tensors import save_model
from specjax.text.beam_search import beam_search

MODEL = tiny_model(3, sharpness=5.0)
TARGET = language_model(MODEL)
STOPS = (5, 11, 17, 23, 30, 41, 52)
PROMPTS = random_prompts(3, 9, seed=4)


def search_lists(prompt: list[int], k: int, L: int, penalty: float) -> list[tuple[float, list[int]]]:
    """The textbook's search: all continuations of the k running texts, of which the 2 k best count."""
    running, ended = [(0.0, [])], []
    for _ in range(L):
        every = []
        for log_p, text in running:
            after = log_softmax(logits_after(MODEL, prompt + text))
            every += [(log_p + after[x], [*text, x]) for x in range(TINY.vocab_size)]
        every = sorted(every, key=lambda one: -one[0])[: 2 * k]
        ends = [text[-1] in (0, *STOPS) or len(text) == L for _, text in every]
        ended += [(p / len(text) ** penalty, text) for (p, text), end in zip(every[:k], ends) if end]
        running = [one for one, end in zip(every, ends) if not end][:k]
    return sorted(ended, key=lambda one: -one[0])[:k]


@pytest.mark.parametrize("penalty", [1.0, 0.0])
def test_the_beams_are_those_of_lists(penalty):
    """Without an early end, which must change nothing. Prompts of several lengths share a batch."""
    found = beam_search(TARGET, PROMPTS, num_beams=3, max_new_tokens=5, length_penalty=penalty, stop_token_ids=STOPS)
    wanted = [search_lists(prompt, 3, 5, penalty) for prompt in PROMPTS]
    assert [[beam.token_ids for beam in beams] for beams in found] == [[text for _, text in row] for row in wanted]
    scores = [[beam.score for beam in beams] for beams in found]
    np.testing.assert_allclose(scores, [[score for score, _ in row] for row in wanted], rtol=1e-4)
    reasons = {beam.finish_reason for beams in found for beam in beams}
    assert reasons == {"stop", "length"}


def test_many_beams_find_the_likeliest_of_all_texts():
    """With 30 beams all first tokens with any weight run on, so the best of all texts is found."""
    best = max((sum(log_p), [first, second]) for first, second, log_p in _texts_of_two(PROMPTS[0]))
    ((found, *_),) = beam_search(TARGET, PROMPTS[0], num_beams=30, max_new_tokens=2, length_penalty=0.0)
    assert found.token_ids == best[1] and found.score == pytest.approx(best[0], rel=1e-4)


def _texts_of_two(prompt):
    after = log_softmax(logits_after(MODEL, prompt))
    for first in range(1, TINY.vocab_size):
        then = log_softmax(logits_after(MODEL, [*prompt, first]))
        yield from ((first, second, (after[first], then[second])) for second in range(TINY.vocab_size))


def test_one_beam_is_greedy_and_bad_input_gets_one_line():
    ((beam,),) = beam_search(TARGET, PROMPTS[0], num_beams=1, max_new_tokens=6)
    text = list(PROMPTS[0])
    for token in beam.token_ids:
        assert token == int(logits_after(MODEL, text).argmax())
        text.append(token)
    for options, words in (
        (dict(num_beams=31), "half of the vocabulary, 30, is the most"),
        (dict(num_beams=0), "num_beams must be"),
        (dict(max_new_tokens=300), "lower max_new_tokens to"),
    ):
        with pytest.raises(RequestError, match=words):
            beam_search(TARGET, PROMPTS[1], **options)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("k, penalty", [(2, 1.0), (4, 0.5)])
def test_the_best_beam_is_that_of_transformers(k, penalty, tmp_path):
    import torch
    import transformers

    save_model(MODEL, tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    (found,) = beam_search(TARGET, PROMPTS[2], num_beams=k, max_new_tokens=12, length_penalty=penalty)
    with torch.no_grad():
        out = theirs.generate(  # type: ignore[attr-defined]
            torch.tensor([PROMPTS[2]]), num_beams=k, max_new_tokens=12, length_penalty=penalty, do_sample=False,
            early_stopping="never", num_return_sequences=k, pad_token_id=0, return_dict_in_generate=True,
            output_scores=True,
        )  # fmt: skip
    texts = [row[len(PROMPTS[2]) :] for row in out.sequences.tolist()]
    assert [beam.token_ids for beam in found] == [text[: len(beam.token_ids)] for text, beam in zip(texts, found)]
    np.testing.assert_allclose([beam.score for beam in found], out.sequences_scores.numpy(), rtol=1e-4)
