"""Scores of prompts and the routes about tokens, over HTTP, against plain forwards and the tokenizer."""

import json

import httpx
import numpy as np
import openai
import pytest
from support.chat import CHATML, chat_tokenizer, turns
from support.models import TINY, tiny_model
from support.reference import log_softmax, logits_of
from support.serving import served

from specjax import Engine, LanguageModel, __version__
from specjax.serve.app import make_app

TEXTS = ("def mean(values): return", "héllo wörld")


@pytest.fixture(scope="module")
def target():
    tokenizer = chat_tokenizer(CHATML)
    eos = tokenizer.convert_tokens_to_ids("<|end|>")
    config = TINY.replace(vocab_size=len(tokenizer), eos_token_ids=(eos,))
    model = tiny_model(0, config=config, num_layers=1)
    return LanguageModel(model, model.config, tokenizer, "bytes")


@pytest.fixture(scope="module")
def url(target):
    with Engine(target, method="none", slots=2, chunk=16, logprobs=3) as engine, served(make_app(engine)) as url:
        yield url


@pytest.fixture(scope="module")
def complete(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield lambda prompt, **fields: client.completions.create(model="bytes", prompt=prompt, **fields)


def after(target, ids) -> np.ndarray:
    """The log-probabilities [N, V] after each of N tokens, of one plain forward."""
    return np.array([log_softmax(row) for row in logits_of(target.model, ids)])


@pytest.mark.parametrize("as_ids", [False, True])
def test_echo_with_logprobs_scores_prompts(complete, target, as_ids):
    """A batch, of texts or token ids, as lm-eval asks for it."""
    ids = [target.tokenizer.encode(text) for text in TEXTS]
    found = complete(ids if as_ids else [*TEXTS], echo=True, logprobs=2, max_tokens=0, temperature=0)
    assert found.usage.completion_tokens == 0
    for choice, text, prompt in zip(found.choices, TEXTS, ids):
        record, rows = choice.logprobs, after(target, prompt)
        assert choice.text == text and choice.finish_reason == "length"
        assert record.token_logprobs[0] is None and record.top_logprobs[0] is None
        assert record.token_logprobs[1:] == pytest.approx([*rows[np.arange(len(rows) - 1), prompt[1:]]], abs=1e-4)
        likeliest = [max(top.values()) for top in record.top_logprobs[1:]]
        assert likeliest == pytest.approx([*rows[:-1].max(-1)], abs=1e-4)
    first = found.choices[0].logprobs
    assert "".join(first.tokens) == TEXTS[0]
    assert all(TEXTS[0][at:].startswith(token) for token, at in zip(first.tokens, first.text_offset))


def test_scores_go_on_with_the_new_tokens(complete, target):
    prompt = target.tokenizer.encode(TEXTS[0])
    asked = dict(max_tokens=5, temperature=0, logprobs=1, extra_body=dict(ignore_eos=True))
    (plain,), (found,) = complete(prompt, **asked).choices, complete(prompt, echo=True, **asked).choices
    assert found.text == TEXTS[0] + plain.text and len(found.logprobs.tokens) == len(prompt) + 5
    assert found.logprobs.token_logprobs[-5:] == pytest.approx(plain.logprobs.token_logprobs, abs=1e-5)
    assert found.logprobs.text_offset[-5] == len(TEXTS[0]) + plain.logprobs.text_offset[0]
    whole = after(target, prompt)[-1]
    assert found.logprobs.token_logprobs[len(prompt)] == pytest.approx(whole.max(), abs=1e-4)


def test_the_likeliest_of_two_tokens_with_one_text_counts(complete):
    """Halves of characters are all U+FFFD."""
    (choice,) = complete(TEXTS[1], echo=True, logprobs=3, max_tokens=1, temperature=0).choices
    for value, top in zip(choice.logprobs.token_logprobs[1:], choice.logprobs.top_logprobs[1:]):
        assert value <= max(top.values()) and [*top.values()] == sorted(top.values(), reverse=True)


def test_a_prompt_may_fill_the_context_but_no_named_length_is_cut(complete, target):
    room = target.config.context
    assert complete([5] * (room - 4), max_tokens=4, extra_body=dict(ignore_eos=True)).usage.total_tokens == room
    assert complete([5] * (room - 4), extra_body=dict(ignore_eos=True)).usage.total_tokens == room  # by default 16
    with pytest.raises(openai.BadRequestError, match="ask for 4 at most, or shorten the prompt") as error:
        complete([5] * (room - 4), max_tokens=5)
    assert (error.value.code, error.value.param) == ("context_length_exceeded", "max_tokens")


def test_continuous_usage_counts_the_tokens_so_far(complete):
    wanted = dict(include_usage=True, continuous_usage_stats=True)
    own = dict(max_tokens=40, stream=True, extra_body=dict(ignore_eos=True, min_tokens=2))
    *chunks, last = complete([7, 8, 9], stream_options=wanted, **own)
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == last.usage.completion_tokens == 40 and last.choices == []
    assert {chunk.usage.prompt_tokens for chunk in (*chunks, last)} == {3}
    *chunks, last = complete([7, 8, 9], stream_options=dict(include_usage=True), **own)
    assert all(chunk.usage is None for chunk in chunks) and last.usage.completion_tokens == 40


def test_texts_have_the_format_that_the_client_asks_for(complete, url):
    form = {"type": "json_schema", "json_schema": {"name": "one", "schema": {"enum": [123, 456]}}}
    (choice,) = complete("n", max_tokens=9, extra_body=dict(response_format=form)).choices
    body = dict(model="bytes", messages=[{"role": "user", "content": "n"}], max_tokens=9, response_format=form)
    chat = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()["choices"][0]
    assert json.loads(choice.text) in (123, 456) and json.loads(chat["message"]["content"]) in (123, 456)
    assert choice.finish_reason == chat["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "fields",
    [
        dict(guided_regex="[0-9]{3}"),
        dict(structured_outputs={"regex": "[0-9]{3}"}),
        dict(guided_choice=["123", "456"]),
        dict(structured_outputs={"choice": ["123", "456"]}),
        dict(guided_json={"enum": [123, 456]}),
        dict(structured_outputs={"json": '{"enum": [123, 456]}'}),
    ],
)
def test_constraints_under_vllms_names(complete, fields):
    (choice,) = complete("n", max_tokens=9, extra_body=fields).choices
    assert choice.text.strip().isdecimal() and len(choice.text.strip()) == 3 and choice.finish_reason == "stop"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(guided_regex="a", structured_outputs={"regex": "a"}), "regex is given under two names"),
        (dict(guided_json={}, response_format={"type": "json_object"}), "json_schema is given under two names"),
        (dict(structured_outputs={"xml": "a"}), "structured_outputs.xml: Extra inputs are not permitted"),
        (dict(skip_special_tokens=False), "skip_special_tokens is not supported"),
        (dict(echo=True, logprobs=9), "logprobs is 9 and the engine records 3"),
    ],
)
def test_bad_input_is_one_line(complete, fields, message):
    with pytest.raises(openai.BadRequestError, match=message) as error:
        complete("n", extra_body=fields)
    assert "\n" not in error.value.body["message"]


def test_tokens_are_those_of_the_tokenizer(url, target):
    ask = lambda path, **body: httpx.post(url + path, json=body)
    ids = target.tokenizer.encode(TEXTS[1])
    found = ask("/tokenize", model="bytes", prompt=TEXTS[1], return_token_strs=True).json()
    assert found["tokens"] == ids and found["count"] == len(ids) and found["max_model_len"] == 256
    assert found["token_strs"] == target.tokenizer.convert_ids_to_tokens(ids)
    assert ask("/detokenize", tokens=ids).json() == {"prompt": TEXTS[1]}
    chat = ask("/tokenize", messages=turns("hi"), add_generation_prompt=False).json()["tokens"]
    assert target.tokenizer.decode(chat) == "<|im_start|>user\nhi<|im_end|>\n"
    info = httpx.get(f"{url}/tokenizer_info").json()
    assert info["eos_token"] == "<|end|>" and info["chat_template"] == CHATML
    for answer in (ask("/tokenize"), ask("/detokenize", tokens=[9999]), ask("/tokenize", prompt="a", messages=[])):
        assert answer.status_code == 400 and "\n" not in answer.json()["error"]["message"]


def test_the_description_has_the_fields_of_requests(url):
    found = httpx.get(f"{url}/openapi.json").json()
    fields = lambda name: found["components"]["schemas"][name]["properties"]
    assert {"echo", "prompt", "guided_json"} <= {*fields("CompletionRequest")}
    assert {"tools", "messages", "response_format"} <= {*fields("ChatRequest")} and "name" in fields("Function")
    body = found["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/ChatRequest"}
    references = {part.split('"')[0] for part in str(found).replace("'", '"').split("#/components/schemas/")[1:]}
    assert references <= {*found["components"]["schemas"]}
    assert httpx.get(f"{url}/docs").status_code == 200
    assert httpx.get(f"{url}/version").json() == {"version": __version__}
    (model,) = httpx.get(f"{url}/v1/models").json()["data"]
    assert model["id"] == model["root"] == "bytes" and model["max_model_len"] == 256
