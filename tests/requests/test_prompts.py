"""Prompts of all kinds against the token ids that they name, and one line about everything else."""

import array
import re

import jax.numpy as jnp
import numpy as np
import pytest
from support.models import TINY, byte_tokenizer
from tokenizers import processors

from specjax.errors import RequestError
from specjax.requests.prompts import encode_prompts, is_single

TOKENIZER = byte_tokenizer(61)


def encode(prompts):
    return encode_prompts(prompts, TOKENIZER, TINY)


@pytest.mark.parametrize(
    "prompt",
    [[5, 6], (5, 6), np.array([5, 6]), np.array([5, 6], np.uint8), jnp.array([5, 6]), [np.int64(5), 6], range(5, 7)],
)
def test_token_ids_of_all_kinds(prompt):
    assert is_single(prompt) and encode(prompt) == [[5, 6]] and all(type(id) is int for id in encode(prompt)[0])
    assert not is_single([prompt]) and encode([prompt, prompt]) == [[5, 6], [5, 6]]


def test_texts_and_mixed_lists():
    ids = TOKENIZER.encode("AB")
    assert is_single("AB") and encode("AB") == [ids]
    assert not is_single(["AB"]) and encode(("AB", [7])) == [ids, [7]]


@pytest.mark.parametrize(
    ("prompts", "named"),
    [
        (None, "prompts must be a string, token ids or a list of them, not None"),
        (7, "prompts must be"),
        (b"AB", "prompts must be"),
        ({5, 6}, "prompts must be"),
        (array.array("f", [5.0]), "the prompt holds 5.0"),
        (iter([5]), "prompts must be"),
        ({"input_ids": [5]}, "prompts is a mapping"),
        (np.array([[5, 6], [7, 8]]), "prompts is an array of 2 axes"),
        (np.array(5), "prompts is an array of 0 axes"),
        ([], "the list of prompts is empty"),
        ("", "the prompt is empty"),
        (np.array([], np.int32), "the prompt is empty"),
        ([[]], "the prompt is empty"),
        ([[5], []], "prompt 1 is empty"),
        ([5, "AB"], "the prompt holds 'AB'; token ids are whole numbers"),
        ([5, [6]], "the prompt holds [6]"),
        (["AB", 5], "prompt 1 must be a string or a list of token ids, not 5"),
        (["AB", None], "prompt 1 must be"),
        (["AB", {5}], "prompt 1 must be"),
        (["AB", {"role": "user"}], "prompt 1 must be"),
        ([{"role": "user", "content": "AB"}], "the prompt must be"),
        (["AB", b"AB"], "prompt 1 is made of bytes"),
        (["AB", [[5]]], "prompt 1 holds [5]"),
        (["AB", np.array([[5]])], "prompt 1 must be"),
        ([5.0, 6.0], "the prompt holds 5.0"),
        ([5, True], "the prompt holds True"),
        (np.array([5.0]), "the prompt holds 5.0"),
        (np.array([True]), "the prompt holds True"),
        ([5, None], "the prompt holds None"),
        ([5, 61], "outside the vocabulary of 61: 61"),
        ([5, -1], "outside the vocabulary of 61: -1"),
        ([5, 2**40], "outside the vocabulary of 61"),
        ([5, 10**30], "outside the vocabulary of 61"),
        ([5] * 257, "257 tokens and the model's context is 256"),
        (["AB"] * 4097, "the number of 4,097 prompts is above the limit of 4,096 (MOST_PROMPTS)"),
        ("\ud800", "surrogates"),
    ],
    ids=lambda value: re.sub(" at 0x.*", "", repr(value))[:40],  # workers must agree on the names
)
def test_everything_else_is_refused_on_one_line(prompts, named):
    with pytest.raises(RequestError) as error:
        encode(prompts)
    assert named in str(error.value) and "\n" not in str(error.value)


def test_an_empty_text_begins_with_the_tokenizers_first_token():
    begins = byte_tokenizer(61)
    begins.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<end> $A", special_tokens=[("<end>", 0)]
    )
    assert encode_prompts(["", "A"], begins, TINY) == [[0], [0, *TOKENIZER.encode("A")]]


def test_a_prompt_leaves_room_for_a_token():
    longest = TINY.context - 1
    assert len(encode([5] * longest)[0]) == longest
    with pytest.raises(RequestError, match=f"has {longest + 1} tokens .* shorten it to {longest} at most"):
        encode([5] * TINY.context)
