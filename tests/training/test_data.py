"""Batches cover each source once an epoch, in the sources' shares; held-out modules are not trained on; learnt tokens."""

import numpy as np
import pytest
from support.chat import CHATML, GENERATION, REASONING, chat_tokenizer, turns

from specjax import RequestError
from specjax.requests.chat import render_answers
from specjax.training import data
from specjax.training.data import Mixture, Stream
from specjax.training.sources import Document


def stream(size: int, first: int = 0) -> Stream:
    """Ascending tokens, of which every third is learnt."""
    tokens = np.arange(first, first + size, dtype=np.int32)
    return Stream(tokens, tokens % 3 == 0)


def test_an_epoch_covers_the_stream_once():
    mixture, length, batch = Mixture.join([stream(1000)]), 10, 7
    rows = (1000 - 1) // length - 1
    steps = [mixture.cut(3, s * batch, batch, length) for s in range(rows // batch)]
    windows = np.concatenate([windows for windows, _ in steps])
    assert windows.shape[1] == length + 1
    assert (np.diff(windows, axis=1) == 1).all()
    assert np.unique(windows[:, 0]).size == len(windows)  # no window twice
    assert (mixture.cut(3, 5 * batch, batch, length)[0] == steps[5][0]).all()
    assert (mixture.cut(4, 5 * batch, batch, length)[0] != steps[5][0]).any()


def test_windows_have_the_learnt_tokens_and_the_one_after_them():
    for first in range(0, 90, 9):
        windows, learnt = Mixture.join([stream(101)]).cut(0, first, 9, 10)
        after = windows[:, :1] + np.arange(12)
        assert (learnt == (after % 3 == 0)).all()


def test_epochs_differ():
    mixture = Mixture.join([stream(101)])
    first, second = (np.sort(mixture.cut(0, 9 * epoch, 9, 10)[0][:, 0]) for epoch in (0, 1))
    assert (first != second).any()


@pytest.mark.parametrize("weights", [(70, 30), (0.5, 0.3, 0.2), (1, 1, 1), (1, 0.001)])
def test_batches_keep_the_shares_and_cover_each_source(weights):
    """Any part of the windows equals that part of all windows, so a resumed training reads the same."""
    mixture = Mixture.join([stream(401, 1000 * k) for k in range(len(weights))], weights)
    shares, count = np.array(weights) / sum(weights), 300
    windows, _ = mixture.cut(1, 0, count, 10)
    sources = windows[:, 0] // 1000
    for n in range(1, count + 1):
        counts = np.bincount(sources[:n], minlength=len(weights))
        assert (np.abs(counts - n * shares) <= (len(weights) + 1) / 2).all()
    for k in range(len(weights)):
        mine = windows[sources == k]
        assert np.unique(mine[:39], axis=0).shape[0] == min(len(mine), 39)  # an epoch has 39 windows
    for first, part in ((0, 7), (7, 8), (123, 40), (299, 1)):
        assert (mixture.cut(1, first, part, 10)[0] == windows[first : first + part]).all()


def test_prompts_come_from_each_source_by_its_share():
    mixture = Mixture.join([stream(200), stream(100, 1000)], (3, 1))
    prompts = np.array(mixture.cut_prompts(8, 5))
    assert (np.diff(prompts, axis=1) == 1).all()
    assert np.bincount(prompts[:, 0] // 1000).tolist() == [6, 2]


def test_held_out_modules_are_not_trained_on():
    trained, held = (set(data.standard_library(held_out=h)) for h in (False, True))
    assert trained and held and not trained & held
    assert 0.02 < len(held) / len(trained | held) < 0.1


@pytest.mark.parametrize("template", [CHATML, GENERATION, REASONING])
def test_the_learnt_tokens_are_those_of_the_answers(template):
    """The oracle encodes the prompt of each turn and the conversation up to its end: an answer is the tokens between.

    A template that drops earlier reasoning gives a document for each answer.
    """
    tokenizer = chat_tokenizer(template)
    messages = [
        {"role": "system", "content": "s é"},
        *turns("a ü\n", "<think>t</think> ö b", "c", "<think>u</think>d é"),
    ]
    documents = [Document(*found) for found in render_answers(tokenizer, messages)]
    assert len(documents) == (2 if template == REASONING else 1)
    found = data.token_stream(documents, tokenizer, separator=0)
    right = []
    for i in (2, 4):
        encode = lambda end, ask: tokenizer.encode(
            tokenizer.apply_chat_template(messages[:end], tokenize=False, add_generation_prompt=ask)
        )
        asked, answered = encode(i, True), encode(i + 1, False)
        assert answered[: len(asked)] == asked
        right += answered[len(asked) : answered.index(tokenizer.convert_tokens_to_ids("<|im_end|>"), len(asked)) + 1]
    assert found.tokens[found.learnt].tolist() == right
    assert tokenizer.decode(right).count("<|im_end|>") == 2
    if template == GENERATION:
        whole = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
        assert found.tokens[1:].tolist() == whole["input_ids"]
        assert found.learnt[1:].tolist() == [bool(value) for value in whole["assistant_masks"]]


def test_a_token_of_the_prompt_and_the_answer_is_not_learnt():
    """The template ends its prompt with a space, which the tokenizer joins with the answer's first letter."""
    tokenizer = chat_tokenizer("{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
                               "{% if add_generation_prompt %}[assistant] {% endif %}", (("Ġ", "b"),))  # fmt: skip
    documents = [Document(*found) for found in render_answers(tokenizer, turns("a", "bc b"))]
    found = data.token_stream(documents, tokenizer, separator=0)
    assert tokenizer.convert_ids_to_tokens(found.tokens[found.learnt].tolist()) == ["c", "Ġb"]


def test_the_bytes_of_a_prompts_last_letter_are_not_learnt():
    tokenizer = chat_tokenizer("{% for m in messages %}{{ m.role }}→{{ m.content }}{% endfor %}"
                               "{% if add_generation_prompt %}assistant→{% endif %}")  # fmt: skip
    ((text, spans),) = render_answers(tokenizer, turns("a", "bé"))
    found = data.token_stream([Document(text, spans)], tokenizer, separator=0)
    assert tokenizer.decode(found.tokens[found.learnt]) == "bé" and found.learnt.sum() == 3


@pytest.mark.parametrize("together", [1, 2, 1000])
def test_texts_are_learnt_whole_and_conversations_in_part(together, monkeypatch):
    monkeypatch.setattr(data, "_TOGETHER", together)
    tokenizer = chat_tokenizer(CHATML)
    documents = [Document("abc"), Document("xyz", [(1, 2)]), Document("d")]
    found = data.token_stream(documents, tokenizer, separator=5)
    assert found.learnt.tolist() == [True] * 4 + [False, False, True, False] + [True] * 2
    assert (found.tokens == 5).tolist() == [True, *[False] * 3] * 2 + [True, False]


def test_a_tokenizer_that_knows_no_characters_is_refused():
    def slow(texts, add_special_tokens, return_offsets_mapping):
        raise NotImplementedError

    with pytest.raises(RequestError, match="conversations need a fast tokenizer"):
        data.token_stream([Document("a", [(0, 1)])], slow, 0)
