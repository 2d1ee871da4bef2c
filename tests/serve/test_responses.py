"""OpenAI's responses, through the official client, against the conversations that they stand for."""

import json

import httpx
import openai
import pytest
from support.chat import WEATHER, turns

FUNCTION = {"type": "function", **WEATHER["function"]}
ONE_CALL = dict(max_output_tokens=120, tools=[FUNCTION], tool_choice="required", parallel_tool_calls=False)


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def respond(client):
    own = dict(model="bytes", max_output_tokens=60, temperature=0)
    return lambda input, **fields: client.responses.create(**own | dict(input=input) | fields)


@pytest.fixture(scope="module")
def chat(client):
    own = dict(model="bytes", max_tokens=60, temperature=0)
    return lambda messages, **fields: client.chat.completions.create(**own | dict(messages=messages) | fields)


def test_a_response_is_the_chats_answer(respond, chat):
    found = respond("hi", instructions="Be kind.", extra_body=dict(ignore_eos=True))
    system = [{"role": "system", "content": "Be kind."}]
    expected = chat(system + turns("hi"), extra_body=dict(ignore_eos=True))
    assert found.output_text == expected.choices[0].message.content != ""
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    usage = found.usage
    assert (usage.input_tokens, usage.output_tokens) == (expected.usage.prompt_tokens, 60)
    assert usage.total_tokens == usage.input_tokens + 60 and found.specjax["target_calls"] == 60


def test_items_are_the_turns_of_a_chat(respond, chat):
    call = {"id": "abc", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm", "days": 1}'}}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]},
        {"type": "function_call", "call_id": "abc", **call["function"]},
        {"type": "function_call_output", "call_id": "abc", "output": "rain"},
    ]
    messages = [
        *turns("hi"),
        {"role": "assistant", "content": "so", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abc", "content": "rain"},
    ]
    found, expected = respond(items, tools=[FUNCTION]), chat(messages, tools=[WEATHER])
    assert found.usage.input_tokens == expected.usage.prompt_tokens
    assert found.output_text == expected.choices[0].message.content


def test_a_schema_and_a_tool_are_enforced(respond):
    schema = {"enum": ["yes", "no"]}
    text = {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}}
    found = respond("hi", text=text)
    assert json.loads(found.output_text) in schema["enum"] and found.status == "completed"
    for choice in ("required", {"type": "function", "name": "weather"}):
        (item,) = respond("hi", **ONE_CALL | dict(tool_choice=choice)).output
        assert item.type == "function_call" and json.loads(item.arguments)["city"] in ("Bonn", "Ulm")


@pytest.mark.parametrize(
    "fields", [dict(extra_body=dict(choices=["a text of several words"])), ONE_CALL], ids=["text", "call"]
)
def test_a_stream_builds_the_whole_response(client, respond, fields):
    """The client builds the response of a stream from its events, and checks their order."""
    whole = respond("hi", **fields)
    asked = dict(model="bytes", input="hi", max_output_tokens=60, temperature=0) | fields
    with client.responses.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert final.status == whole.status and final.usage.output_tokens == whole.usage.output_tokens
    strip = lambda item: {name: value for name, value in item.to_dict().items() if name not in ("id", "call_id")}
    clean = lambda item: {name: value for name, value in strip(item).items() if name != "parsed_arguments"}
    own = [clean(item) for item in final.output]
    for item in own:
        for part in item.get("content", ()):
            part.pop("parsed", None)
    assert own == [clean(item) for item in whole.output]
    deltas = [event.delta for event in events if event.type.endswith(".delta")]
    assert "".join(deltas) == (whole.output_text or whole.output[0].arguments)


def test_reasoning_is_an_item(respond, tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", tokenizer.chat_template + "{% if false %}</think>{% endif %}")
    thought = dict(extra_body=dict(choices=["<think>so</think>\n\nYes"]))
    reasoning, message = respond("hi", **thought).output
    assert (reasoning.content[0].text, message.content[0].text) == ("so", "Yes")
    events = list(respond("hi", stream=True, **thought))
    assert [event.text for event in events if event.type == "response.reasoning_text.done"] == ["so"]
    assert [event.text for event in events if event.type == "response.output_text.done"] == ["Yes"]
    assert [item.type for item in events[-1].response.output] == ["reasoning", "message"]


def test_an_error_in_a_stream_is_its_last_event(respond, app, monkeypatch):
    monkeypatch.setattr(app.state.engine.generator, "remember", lambda results: 1 / 0)  # at the end of a request
    last = list(respond("hi", stream=True))[-1]
    assert last.type == "error" and "ZeroDivisionError" in last.message


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "the server keeps no answers"),
        ({"conversation": "c"}, "conversation", "send the conversation as input"),
        ({"background": True}, "background", "background is not supported"),
        ({"include": ["reasoning.encrypted_content"]}, "include", "include is not supported"),
        ({"reasoning": {"effort": "low"}}, "reasoning", "reasoning is not supported"),
        ({"truncation": "auto"}, "truncation", "truncation is not supported"),
        ({"text": {"verbosity": "low"}}, "verbosity", "verbosity is not supported"),
        ({"n": 2}, "n", "n is not supported"),
        ({"colour": "red"}, "colour", "the field colour is unknown"),
        ({"tools": [{"type": "web_search"}]}, "tools", "tools[0] is no function"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools"}}, "tool_choice", "tool_choice is none of"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "a"}]}]}, "input",
         "input[0] has a part that is no text"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input", "input[0] is a item_reference"),
        ({"input": []}, None, "messages is empty"),
        ({"input": 3}, "input", "valid"),
        ({"max_output_tokens": 99999}, "max_output_tokens", "max_output_tokens is 99999 and too large"),
    ],
)  # fmt: skip
def test_what_the_server_lacks_is_refused_by_name(url, app, fields, param, message):
    answer = httpx.post(f"{url}/v1/responses", json={"model": "bytes", "input": "hi"} | fields, timeout=60)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param) and message in error["message"], error
    assert "\n" not in error["message"] and app.state.gate.count == 0


def test_no_response_is_kept(client):
    with pytest.raises(openai.NotFoundError, match="the server keeps no responses"):
        client.responses.retrieve("resp_1")
