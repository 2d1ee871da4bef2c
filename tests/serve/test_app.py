"""The server over HTTP, through the official client, against a Generator's calls."""

import dataclasses
import gc
import json
import time
from types import SimpleNamespace

import httpx
import jax.numpy as jnp
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.models import byte_tokenizer, disturbed, language_model, tiny_model
from support.serving import served, wait_until

from specjax import Engine, Generator, LanguageModel, RequestError
from specjax.serve.app import make_app

NAN = 59
"""A prompt that begins with this token gets NaN instead of logits."""

PROMPT, KEY = [7, 8, 9], "secret"
LONG = dict(max_tokens=200, extra_body=dict(ignore_eos=True))
SLOTS, QUEUE = 3, 4


def break_marked_rows(logits, context):
    return jnp.where((context.tokens[:, 0] == NAN)[:, None, None], jnp.nan, logits)


@pytest.fixture(scope="module")
def setting():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}[{{ message['content'] }}]{% endfor %}"
    model = tiny_model(0)
    target = LanguageModel(model, model.config, tokenizer, "target")
    drafting = dict(draft=language_model(disturbed(model)), num_speculative_tokens=2)
    return dict(target=target, **drafting, processors=(break_marked_rows,))


@pytest.fixture(scope="module")
def alone(both):
    """The first of two samples of a Generator. All calls use one program."""
    return lambda *prompt, **options: both(*prompt, **options)[0]


@pytest.fixture(scope="module")
def both(setting):
    """Two samples of a Generator."""
    generator = Generator(**setting, capacity=256)
    return lambda prompt=None, **options: generator(prompt, **dict(n=2, logprobs=2, stop="never") | options)


@pytest.fixture(scope="module")
def engine(setting):
    with Engine(**setting, slots=SLOTS, chunk=16, rounds=2, logprobs=3) as engine:
        yield engine


@pytest.fixture(scope="module")
def app(engine):
    return make_app(engine, name="tiny", api_key=KEY, queue=QUEUE, largest_body=4096)


@pytest.fixture(scope="module")
def url(app):
    with served(app) as url:
        yield url


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
def post(url):
    """Sends a body to ``/v1/completions``: bytes, or the fields that differ from a good request's."""

    def post(body, path="/v1/completions", **headers) -> httpx.Response:
        if isinstance(body, dict):
            body = json.dumps({"model": "tiny", "prompt": PROMPT, "max_tokens": 4} | body)
        return httpx.post(url + path, content=body, headers={"Authorization": f"Bearer {KEY}"} | headers, timeout=60)

    return post


@pytest.fixture
def submitted(engine, monkeypatch):
    """The handles of all requests that the test submits."""
    handles, submit = [], engine.submit

    def remember(*args, **options):
        handles.append(submit(*args, **options))
        return handles[-1]

    monkeypatch.setattr(engine, "submit", remember)
    return handles


def test_completions_are_the_texts_of_a_generator(client, alone):
    options = dict(max_tokens=20, temperature=0.8, seed=5)
    expected = alone(PROMPT, max_new_tokens=20, temperature=0.8, seed=5)
    found = client.completions.create(model="tiny", prompt=PROMPT, logprobs=2, **options)
    (choice,) = found.choices
    assert (choice.text, choice.finish_reason) == (expected.text, expected.finish_reason)
    assert choice.logprobs.token_logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert [len(top) for top in choice.logprobs.top_logprobs] == [2] * len(expected.token_ids)
    assert found.usage.prompt_tokens == 3 and found.usage.completion_tokens == len(expected.token_ids)
    figures = found.specjax
    assert figures["target_calls"] == expected.stats.target_calls and figures["seed"] == 5
    assert (figures["drafted"], figures["accepted"]) == (expected.stats.drafted, expected.stats.accepted)
    assert figures["accepted_by_position"] == list(expected.stats.accepted_at)


def test_samples_and_lists_of_prompts_are_those_of_a_generator(client, both):
    prompts = [PROMPT, [20, 21]]
    found = client.completions.create(model="tiny", prompt=prompts, n=2, max_tokens=10, seed=9)
    expected = [one for prompt in prompts for one in both(prompt, max_new_tokens=10, temperature=1.0, seed=9)]
    assert [choice.text for choice in found.choices] == [result.text for result in expected]
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    assert found.usage.prompt_tokens == 5


def test_a_stream_has_the_text_its_rounds_and_its_usage(client, alone):
    expected = alone(PROMPT, max_new_tokens=30, temperature=0.7, seed=2, ignore_eos=True)
    extra = dict(ignore_eos=True, specjax_rounds=True)
    options = dict(max_tokens=30, temperature=0.7, seed=2, logprobs=1, stream_options={"include_usage": True})
    *chunks, last = client.completions.create(model="tiny", prompt=PROMPT, stream=True, extra_body=extra, **options)
    assert len(chunks) > 3 and "".join(chunk.choices[0].text for chunk in chunks) == expected.text
    assert chunks[-1].choices[0].finish_reason == "length"
    assert last.choices == [] and last.usage.completion_tokens == 30
    rounds = [tuple(one) for chunk in chunks for one in chunk.specjax["rounds"]]
    assert len(rounds) == expected.stats.target_calls
    assert [sum(column) for column in zip(*rounds)] == [expected.stats.drafted, expected.stats.accepted, 30]
    assert chunks[-1].specjax["accepted_by_position"] == list(expected.stats.accepted_at)
    assert sum(len(chunk.specjax["tokens"]) for chunk in chunks) == 30
    streamed = [value for chunk in chunks if (own := chunk.choices[0].logprobs) for value in own.token_logprobs]
    assert streamed == pytest.approx(expected.logprobs, abs=1e-4)


def test_a_stream_of_several_texts(client, alone):
    options = dict(max_tokens=12, temperature=1.0, seed=4)
    texts = ["", ""]
    for chunk in client.completions.create(model="tiny", prompt=PROMPT, n=2, echo=True, stream=True, **options):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    whole = client.completions.create(model="tiny", prompt=PROMPT, n=2, echo=True, **options)
    assert texts == [choice.text for choice in whole.choices] and texts[0] != texts[1]
    first = alone(PROMPT, max_new_tokens=12, temperature=1.0, seed=4)
    assert texts[0].endswith(first.text) and len(texts[0]) > len(first.text)


def test_chat_is_a_generators_answer_to_the_messages(client, alone):
    messages = [{"role": "user", "content": [{"type": "text", "text": "!"}, {"type": "text", "text": "#$"}]}]
    plain = [{"role": "user", "content": "!#$"}]
    options = dict(model="tiny", messages=messages, max_completion_tokens=15, temperature=0.9, seed=1)
    expected = alone(messages=plain, max_new_tokens=15, temperature=0.9, seed=1)
    found = client.chat.completions.create(**options, logprobs=True, top_logprobs=2)
    (choice,) = found.choices
    assert choice.message.role == "assistant" and choice.message.content == expected.text
    assert [one.logprob for one in choice.logprobs.content] == pytest.approx(expected.logprobs, abs=1e-4)
    assert all(len(one.top_logprobs) == 2 for one in choice.logprobs.content)
    chunks = list(client.chat.completions.create(**options, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected.text
    assert chunks[-1].choices[0].finish_reason == expected.finish_reason


@pytest.mark.slow
def test_texts_have_the_format_that_the_client_asks_for(client, post, url):
    """The tokens of the tiny vocabulary spell no braces, so the schema is a list of values."""
    values = ["AB", "CD", 17]
    form = {"type": "json_schema", "json_schema": {"name": "one", "schema": {"enum": values}}}
    own = dict(model="tiny", response_format=form, temperature=1.0, seed=2)
    chat = client.chat.completions.create(messages=[{"role": "user", "content": "!"}], **own)
    text = client.completions.create(prompt=PROMPT, model="tiny", extra_body=dict(response_format=form)).choices[0]
    for found in (chat.choices[0].message.content, text.text):
        assert json.loads(found) in values
    assert (chat.choices[0].finish_reason, text.finish_reason) == ("stop", "stop")
    number = client.completions.create(model="tiny", prompt=PROMPT, extra_body=dict(regex="[0-9]{3}"))
    assert number.choices[0].text.isdecimal() and len(number.choices[0].text) == 3
    with pytest.raises(openai.BadRequestError, match="json_schema cannot match over this vocabulary"):
        client.completions.create(model="tiny", prompt=PROMPT, extra_body={"response_format": {"type": "json_object"}})


def test_samples_share_the_reading_of_their_prompt(client, url):
    before, prompt = scrape(url), [9, *range(2, 51)]
    found = client.completions.create(model="tiny", prompt=prompt, n=3, max_tokens=4)
    again = client.completions.create(model="tiny", prompt=prompt, max_tokens=4)
    assert found.usage.prompt_tokens_details.cached_tokens == 0
    assert again.usage.prompt_tokens_details.cached_tokens == 48
    grown = {name: value - before.get(name, 0) for name, value in scrape(url).items()}
    assert grown["prefix_cache_queries_total[]"] == 4 * 50 and grown["prefix_cache_hits_total[]"] == 3 * 48


def test_without_a_length_a_chat_may_fill_the_slot(client, engine):
    messages = [{"role": "user", "content": "!"}]
    found = client.chat.completions.create(model="tiny", messages=messages, extra_body=dict(ignore_eos=True))
    assert found.choices[0].finish_reason == "length"
    assert found.usage.total_tokens == engine.target.config.context


def test_stop_bias_penalties_and_own_options_reach_the_engine(client, alone):
    text = alone(PROMPT, max_new_tokens=40, ignore_eos=True).text
    own = dict(ignore_eos=True)
    stopped = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=40, temperature=0, stop=[text[9:12]], extra_body=own
    )
    assert stopped.choices[0].text == text[: text.index(text[9:12])] and stopped.choices[0].finish_reason == "stop"
    options = dict(presence_penalty=0.5, frequency_penalty=0.7, logit_bias={"20": 5.0}, seed=3)
    found = client.completions.create(model="tiny", prompt=PROMPT, **options, extra_body=own | dict(top_k=9))
    expected = alone(PROMPT, max_new_tokens=16, temperature=1.0, top_k=9, **own, **options)
    assert found.choices[0].text == expected.text


def test_policy_logprobs_are_those_of_the_sampling_policy(client, alone):
    options = dict(temperature=0.7, seed=5)
    own = dict(policy_logprobs=True, top_k=5, ignore_eos=True)
    expected = alone(PROMPT, max_new_tokens=12, **options, **own)
    ask = dict(model="tiny", max_tokens=12, extra_body=own, **options)
    (whole,) = client.completions.create(prompt=PROMPT, **ask).choices
    assert whole.text == expected.text and whole.logprobs is None
    assert whole.policy_logprobs == pytest.approx(expected.policy_logprobs, abs=1e-4)
    chunks = client.completions.create(prompt=PROMPT, stream=True, **ask)
    streamed = [value for chunk in chunks for value in getattr(chunk.choices[0], "policy_logprobs", [])]
    assert streamed == whole.policy_logprobs and len(streamed) == 12 and min(streamed) < -0.1
    (plain,) = client.completions.create(prompt=PROMPT, model="tiny", max_tokens=2).choices
    assert not hasattr(plain, "policy_logprobs")


def test_without_a_seed_texts_differ_and_the_answer_names_the_seed(client):
    ask = lambda **given: client.completions.create(model="tiny", prompt=PROMPT, max_tokens=30, **given)
    first, second = ask(), ask()
    assert first.choices[0].text != second.choices[0].text
    assert ask(seed=first.specjax["seed"]).choices[0].text == first.choices[0].text


def test_harmless_fields_are_accepted(client):
    harmless = dict(store=True, metadata={"a": "b"}, service_tier="auto", tools=[], tool_choice="none", best_of=1)
    ask = lambda **given: client.completions.create(model="tiny", prompt=PROMPT, seed=1, **given).choices[0].text
    assert ask(user="me", suffix=None, extra_body=harmless) == ask() != ""


def test_the_models_recommended_options_are_defaults(client, app, submitted):
    app.state.sampling = {"temperature": 0.0, "top_k": 5, "max_new_tokens": 7}
    try:
        ask = lambda **given: client.completions.create(model="tiny", prompt=PROMPT, **given)
        assert ask(extra_body=dict(ignore_eos=True)).usage.completion_tokens == 7
        ask(temperature=0.5, max_tokens=3, extra_body=dict(top_k=-1))
    finally:
        app.state.sampling = {}
    samplings = [handle.batch.requests.sampling for handle in submitted]
    assert [(float(s.temperature[0]), int(s.top_k[0])) for s in samplings] == [(0.0, 5), (0.5, -1)]


def test_the_recommended_options_may_be_ignored(engine):
    engine = SimpleNamespace(
        **{name: getattr(engine, name) for name in ("slots", "capacity", "target", "generator", "memory")}
    )
    engine.target = dataclasses.replace(engine.target, sampling={"temperature": 0.3})
    assert make_app(engine).state.sampling == {"temperature": 0.3}
    assert make_app(engine, generation_config="none").state.sampling == {}
    with pytest.raises(RequestError, match="generation_config is 'some'; it must be one of auto, none"):
        make_app(engine, generation_config="some")


def test_models_and_health(client, url):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="no model 'other'"):
        client.models.retrieve("other")
    assert httpx.get(f"{url}/health").json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("body", "status", "param", "message"),
    [
        (b"{", 400, None, "not JSON"),
        (b"\xff", 400, None, "not JSON"),
        (b"[" * 200 + b"]" * 200, 400, None, "nests too deeply"),
        (b"[1]", 400, None, "must be a JSON object"),
        (b"{}", 400, "model", "model: Field required"),
        (b" " * 5000, 413, None, "more than 4096 bytes"),
        ({"model": "other"}, 404, "model", "no model 'other'; this server has 'tiny'"),
        ({"model": 3}, 400, "model", "valid string"),
        ({"tools": [{"type": "function"}]}, 400, "tools", "tools is not supported"),
        ({"audio": {"voice": "a"}}, 400, "audio", "audio is not supported"),
        ({"best_of": 3}, 400, "best_of", "best_of is not supported"),
        ({"suffix": "x"}, 400, "suffix", "suffix is not supported"),
        ({"temprature": 1}, 400, "temprature", "temprature is unknown"),
        ({"temperature": -1}, 400, "temperature", "temperature must be"),
        ({"temperature": "hot"}, 400, "temperature", "temperature must be"),
        ({"top_p": 1.5}, 400, "top_p", "top_p must be"),
        ({"max_tokens": 0}, 400, "max_tokens", "only scores a prompt; add echo and logprobs"),
        ({"max_tokens": 4, "max_new_tokens": 5}, 400, "max_new_tokens", "names of one option"),
        ({"n": 0}, 400, "n", "greater than or equal to 1"),
        ({"n": SLOTS + QUEUE + 1}, 400, "n", "asks for 8 texts and the server holds 7"),
        ({"n": True}, 400, "n", "valid integer"),
        ({"seed": -1}, 400, "seed", "greater than or equal to 0"),
        ({"logprobs": 9}, 400, "logprobs", "the engine records 3"),
        ({"logprobs": 1, "echo": True, "stream": True}, 400, "echo", "echo with logprobs has no stream"),
        ({"max_tokens": 254}, 400, "max_tokens", "the prompt has 3; ask for 253 at most, or shorten the prompt"),
        ({"max_tokens": 100000, "prompt": [5] * 255}, 400, "max_tokens", "maximum context length is 256 tokens"),
        ({"max_tokens": None, "max_new_tokens": 9999}, 400, "max_new_tokens", "ask for 253 at most"),
        ({"priority": 2**31}, 400, "priority", "less than or equal to"),
        ({"priority": 0.5}, 400, "priority", "valid integer"),
        ({"user": 3}, 400, "user", "valid string"),
        ({"timeout": 0}, 400, "timeout", "greater than 0"),
        ({"timeout": "soon"}, 400, "timeout", "valid number"),
        ({"stream_options": {"include_usage": True}}, 400, "stream_options", "set stream to true"),
        ({"\ud800": 1}, 400, None, "the body: Input should be a valid string"),
        ({"model": "\ud800"}, 404, "model", "no model '\\ud800'"),
        ({"prompt": "\ud800", "echo": True}, 400, None, "characters that are no text"),
        ({"prompt": ""}, 400, None, "the prompt is empty"),
        ({"prompt": [[]]}, 400, "prompt", "prompt holds an empty list"),
        ({"prompt": []}, 400, "prompt", "prompt holds an empty list"),
        ({"prompt": [61]}, 400, None, "outside the vocabulary of 61"),
        ({"prompt": [5] * 300}, 400, None, "the model's context is 256"),
        ({"logit_bias": {"x": 1}}, 400, "logit_bias", "is no token id"),
        ({"response_format": {"type": "xml"}}, 400, None, "response_format must be"),
        ({"prompt": [NAN, 5], "ignore_eos": True}, 500, None, "NaN"),
    ],
)
def test_bad_input_gets_the_protocols_error(post, app, body, status, param, message):
    answer = post(body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), error
    assert message in error["message"] and "\n" not in error["message"] and set(error) >= {"type", "code"}
    assert app.state.gate.count == 0


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"messages": []}, None, "messages is empty"),
        ({"messages": [{"role": "user"}]}, "messages", "content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "part that is no text"),
        ({"messages": [{"role": "user", "content": "!", "tool_calls": [1]}]}, "messages", "tool_calls"),
        ({"max_tokens": 0}, "max_tokens", "ask for 1 at least"),
        ({"max_completion_tokens": 100000}, "max_completion_tokens", "maximum context length is 256 tokens here"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"modalities": ["audio"]}, "modalities", "not supported"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens", "one option"),
    ],
)
def test_bad_conversations_get_the_protocols_error(post, fields, param, message):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "!"}]} | fields
    answer = post(json.dumps(body).encode(), "/v1/chat/completions")
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param) and message in error["message"], error


def test_the_client_raises_the_protocols_exceptions(client, url):
    with pytest.raises(openai.BadRequestError, match="temperature must be"):
        client.completions.create(model="tiny", prompt=PROMPT, temperature=-1)
    with openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError, match="the API key is missing or wrong"):
            stranger.models.list()
    with pytest.raises(openai.APIError, match="NaN"):
        list(client.completions.create(model="tiny", prompt=[NAN, 5], stream=True))


def test_nan_ends_its_request_alone(client, post, alone, submitted):
    events = client.completions.create(model="tiny", prompt=PROMPT, temperature=0, stream=True, **LONG)
    text = next(events).choices[0].text
    assert post({"prompt": [NAN, 5], "max_tokens": 30}).status_code == 500
    assert not submitted[0].is_over  # the stream
    text += "".join(event.choices[0].text for event in events)
    assert text == alone(PROMPT, max_new_tokens=200, ignore_eos=True).text


def scrape(url) -> dict[str, float]:
    """The figures of ``/metrics``: name, and the label beside the model's name in brackets, to value."""
    found = {}
    for family in text_string_to_metric_families(httpx.get(f"{url}/metrics").text):
        for sample in family.samples:
            assert sample.labels.pop("model_name") == "tiny"
            found[sample.name.removeprefix("vllm:") + str([*sample.labels.values()])] = sample.value
    return found


def test_metrics_grow_by_the_figures_of_the_answers(client, app, engine, post, url):
    before, began = scrape(url), time.monotonic()
    own = dict(max_tokens=20, seed=1, extra_body=dict(ignore_eos=True))
    found = client.completions.create(model="tiny", prompt=[PROMPT, [20, 21]], n=2, **own)
    with client.completions.create(model="tiny", prompt=PROMPT, stream=True, **LONG) as stream:
        next(iter(stream))
        during = scrape(url)
        assert during["num_requests_running[]"] == 1 and during["num_requests_waiting[]"] == 0
        assert during["generation_tokens_total[]"] > before.get("generation_tokens_total[]", 0) + 80
    wait_until(lambda: app.state.gate.count == 0 and not engine.has_work)
    post({"prompt": [NAN, 5]})
    grown = {name: value - before.get(name, 0) for name, value in scrape(url).items()}
    seconds = time.monotonic() - began

    ends = {name: grown[f"request_success_total['{name}']"] for name in ("length", "abort", "error")}
    assert ends == {"length": 4, "abort": 1, "error": 1}
    assert grown["num_requests_running[]"] == grown["num_requests_waiting[]"] == 0
    assert grown["prompt_tokens_total[]"] == 2 * (3 + 2) + 3
    drafts, drafted, accepted = (
        grown[f"spec_decode_num_{name}_total[]"] for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    by_position = [grown[f"spec_decode_num_accepted_tokens_per_pos_total['{i}']"] for i in range(2)]
    assert sum(by_position) == accepted >= sum(found.specjax["accepted_by_position"]) > 0
    assert drafts < drafted <= 2 * drafts and accepted <= drafted
    tokens = grown["generation_tokens_total[]"]
    assert 80 < tokens < 280 and drafts < tokens <= drafts + accepted + 6
    assert grown["time_to_first_token_seconds_count[]"] == 5
    assert 0 < grown["time_to_first_token_seconds_sum[]"] < grown["e2e_request_latency_seconds_sum[]"] < 6 * seconds
    assert grown["inter_token_latency_seconds_count[]"] < tokens


def test_metrics_after_one_answer_are_its_figures(client, url):
    before = scrape(url)
    found = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=20, seed=3, extra_body=dict(ignore_eos=True)
    )
    grown = {name: value - before[name] for name, value in scrape(url).items()}
    assert grown["generation_tokens_total[]"] == found.usage.completion_tokens == 20
    assert grown["spec_decode_num_draft_tokens_total[]"] == found.specjax["drafted"]
    assert grown["spec_decode_num_accepted_tokens_total[]"] == found.specjax["accepted"]
    by_position = [grown[f"spec_decode_num_accepted_tokens_per_pos_total['{i}']"] for i in range(2)]
    assert by_position == found.specjax["accepted_by_position"]
    assert grown["e2e_request_latency_seconds_count[]"] == grown["request_success_total['length']"] == 1


def test_unknown_routes(url):
    for found, status in ((httpx.get(f"{url}/v1/files"), 404), (httpx.get(f"{url}/v1/completions"), 405)):
        assert found.status_code == status and found.json()["error"]["type"] == "invalid_request_error"


def test_a_full_queue_refuses_and_a_client_that_goes_frees_its_rows(client, app, engine, post, alone, submitted):
    asked = dict(model="tiny", prompt=PROMPT, temperature=0, **LONG)
    streams = [
        client.completions.create(stream=True, n=SLOTS, **asked),
        client.completions.create(stream=True, n=QUEUE, **asked),
    ]
    assert app.state.gate.count == SLOTS + QUEUE
    refused = post({})
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
    assert "the queue is full, with 7 of 7 texts" in refused.json()["error"]["message"]
    for stream in streams:
        stream.close()
    wait_until(lambda: app.state.gate.count == 0 and not engine.has_work)
    assert len(submitted) == 7 and all(len(handle.token_ids) < 200 for handle in submitted)
    assert client.completions.create(**asked).choices[0].text == alone(PROMPT, max_new_tokens=200, ignore_eos=True).text


def test_a_client_that_does_not_wait_for_its_answer_frees_its_row(client, app, engine, submitted, caplog):
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.05).completions.create(model="tiny", prompt=PROMPT, n=7, **LONG)
    wait_until(lambda: app.state.gate.count == 0 and not engine.has_work)
    assert len(submitted) == 7 and all(len(handle.token_ids) < 200 for handle in submitted)
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]  # no error that nobody has read
