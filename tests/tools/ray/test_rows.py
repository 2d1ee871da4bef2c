"""Rows of a table against calls with one prompt each; a row that is refused leaves the others alone."""

import dataclasses

import numpy as np
import pytest
from support.models import byte_tokenizer, random_prompts

from specjax import Generator
from specjax.errors import NumericsError, RequestError
from specjax.tools.ray.rows import check_columns, check_defaults, check_options, decode_rows, plain

PROMPTS = random_prompts(8, 12)
DEFAULTS = {"max_new_tokens": 10, "stop": "!!"}  # with stop strings in all rows, few programs are compiled
OWN_OPTIONS = [
    {},
    {"temperature": 0.8, "seed": 3},
    {"temperature": 0.8, "seed": 4, "max_new_tokens": 3},
    {"stop_token_ids": [5, 9, 11]},
    {"logit_bias": {"7": 4.0, "8": -4.0}, "repetition_penalty": 1.3},
    {"stop": "+"},  # other rows contain this text
    {"stop": "%", "ignore_eos": True},
    {"temperature": 1.0, "top_k": 4, "seed": 2**32 - 1, "suppressed_tokens": [0]},
]


@pytest.fixture(scope="module")
def generator(target) -> Generator:
    return Generator(target, "ngram", num_speculative_tokens=2)


def make_rows(prompts=PROMPTS, options=OWN_OPTIONS) -> list[dict]:
    """Rows as Ray makes them: all rows have all columns, and values are missing."""
    names = {name for one in options for name in one}
    return [
        {"prompt_token_ids": prompt} | {name: one.get(name) for name in names} for prompt, one in zip(prompts, options)
    ]


def tokens_of(results) -> list[list[int]]:
    return [result.token_ids for result in results]


def test_a_row_gives_the_text_of_a_call_with_its_prompt_and_options(generator):
    results = decode_rows(generator, make_rows(), "prompt_token_ids", DEFAULTS)
    alone = [generator(p, **DEFAULTS | options) for p, options in zip(PROMPTS, OWN_OPTIONS)]
    assert tokens_of(results) == tokens_of(alone)
    assert [(r.text, r.finish_reason, r.stats.accepted) for r in results] == [
        (r.text, r.finish_reason, r.stats.accepted) for r in alone
    ]
    assert len({tuple(tokens) for tokens in tokens_of(results)}) == len(PROMPTS)
    assert results[5].stop_reason == "+" and "+" in results[0].text


REFUSED = [
    ("prompt_token_ids", [], "the prompt is empty"),
    ("prompt_token_ids", None, "prompt_token_ids must be a list of token ids, not None"),
    ("prompt_token_ids", 5, "must be a list"),
    ("prompt_token_ids", [1, 61], "outside the vocabulary"),
    ("prompt_token_ids", [1] * 257, "the model's context is 256"),
    ("temperature", -1.0, "temperature must be"),
    ("seed", 2**32, "seed must be"),
    ("max_new_tokens", 2.5, "max_new_tokens must be"),
    ("stop_token_ids", 5, "stop_token_ids must be a list"),
    ("choices", "yes", "choices must be a list of strings"),
    ("json_schema", {"type": "object"}, "JSON text"),
]


def test_refused_rows_have_one_line_and_leave_the_others_alone(generator):
    rows = [row | {name: value} for row, (name, value, _) in zip(make_rows(PROMPTS * 2, OWN_OPTIONS * 2), REFUSED)]
    mixed = [row for pair in zip(rows, make_rows()) for row in pair]
    results = decode_rows(generator, mixed, "prompt_token_ids", DEFAULTS)
    for error, (_, _, message) in zip(results[::2], REFUSED):
        assert isinstance(error, RequestError) and message in str(error) and "\n" not in str(error)
    good = decode_rows(generator, make_rows(), "prompt_token_ids", DEFAULTS)
    assert tokens_of(results[1::2]) == tokens_of(good)
    assert all(isinstance(one, RequestError) for one in decode_rows(generator, rows, "prompt_token_ids", {}))


def test_a_row_that_fails_in_the_model_fails_alone(target):
    class Failing:
        """A generator whose model makes NaN for token 60. It returns the prompts."""

        def __call__(self, prompts, **options):
            if [60] in prompts:
                raise NumericsError("NaN")
            return prompts

    generator = Failing()
    generator.target = target
    rows = [{"prompt_token_ids": [token]} for token in (1, 2, 60, 3, 4)]
    *results, last = decode_rows(generator, rows, "prompt_token_ids", {})
    assert results[:2] + results[3:] + [last] == [[1], [2], [3], [4]]
    assert isinstance(results[2], NumericsError)


def test_batches_share_the_program_of_the_next_power_of_two(generator):
    rows = make_rows()
    decode = lambda count: decode_rows(generator, rows[-count:], "prompt_token_ids", DEFAULTS)
    decode(8)
    for count in (5, 6, 8):
        assert [result.stats.compile_seconds for result in decode(count)] == [0] * count


def test_no_rows_give_no_results(generator):
    assert decode_rows(generator, [], "prompt", {}) == []


def test_text_and_conversations(target):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
    generator = Generator(dataclasses.replace(target, tokenizer=tokenizer), "none")
    texts = ["AB", "HELLO"]
    turns = [[{"role": "user", "content": text}] for text in texts]
    defaults = {"max_new_tokens": 4}
    cells = np.empty(2, object)
    cells[:] = [np.array([one[0] | {"name": None}], object) for one in turns]  # as Ray reads them
    for column, values, wanted in (("prompt", texts, texts), ("messages", cells, ["[AB]", "[HELLO]"])):
        results = decode_rows(generator, [{column: value} for value in values], column, defaults)
        assert tokens_of(results) == tokens_of(generator(wanted, **defaults))
    (error,) = decode_rows(generator, [{"messages": turns[0][0]}], "messages", defaults)
    assert "messages must be a list of turns" in str(error)


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        (np.float64("nan"), None),
        (np.float64(16), 16),
        (0.5, 0.5),
        (float("-inf"), float("-inf")),
        (np.array([1, 2]), [1, 2]),
        (np.bool_(True), True),
        ({"5": 1.5, "6": None}, {"5": 1.5}),
        (np.array([{"role": "user", "name": None}], object), [{"role": "user"}]),
        ("text", "text"),
    ],
)
def test_cells_of_arrow_and_numpy_become_plain_values(cell, value):
    assert plain(cell) == value and type(plain(cell)) is type(value)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["id"], "has 0 columns of prompts; name one prompt, messages, prompt_token_ids"),
        (["prompt", "messages"], "has 2 columns of prompts; drop all but one of prompt, messages"),
        (["prompt", "text"], "has a column 'text', which the stage adds; rename it"),
        (["prompt", "logprobs"], "logprobs is no option of a row"),
    ],
)
def test_columns_that_do_not_fit(names, message):
    with pytest.raises(RequestError, match=message):
        check_columns(names, ["text"])


def test_defaults_are_checked_by_name_and_by_value(generator):
    assert check_defaults({"max_tokens": 3}) == {"max_new_tokens": 3}
    for options, message in (
        ({"max_new_token": 3}, "did you mean max_new_tokens"),
        ({"n": 2}, "n is no option of a row"),
    ):
        with pytest.raises(RequestError, match=message):
            check_defaults(options)
    check_options(generator, {"min_new_tokens": 200})
    with pytest.raises(RequestError, match="top_p must be"):
        check_options(generator, {"top_p": 2})
