"""Anthropic's messages over HTTP, against the chat's answers to the same conversations."""

import json

import httpx
import pytest
from support.chat import WEATHER, turns

TOOL = {"name": "weather", "description": "The weather of a city."}
TOOL |= {"input_schema": WEATHER["function"]["parameters"]}
ONE_CALL = dict(max_tokens=120, tools=[TOOL], tool_choice={"type": "any", "disable_parallel_tool_use": True})


@pytest.fixture
def post(url):
    def post(path="/v1/messages", /, **fields) -> httpx.Response:
        body = dict(model="bytes", messages=turns("hi"), max_tokens=60, temperature=0) | fields
        return httpx.post(url + path, json=body, timeout=60)

    return post


@pytest.fixture
def stream(post):
    """The data of the events of a stream, whose names are their types."""

    def stream(**fields) -> list[dict]:
        blocks = post(stream=True, **fields).text.split("\n\n")[:-1]
        pairs = [block.split("\n", 1) for block in blocks]
        events = [json.loads(data.removeprefix("data: ")) for _, data in pairs]
        assert [f"event: {event['type']}" for event in events] == [name for name, _ in pairs]
        return events

    return stream


def test_a_message_is_the_chats_answer(post):
    system = [
        {"type": "text", "text": "Be ", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "kind."},
    ]
    found = post(system=system, ignore_eos=True, metadata={"user_id": "me"}).json()
    messages = [{"role": "system", "content": "Be kind."}, *turns("hi")]
    expected = post("/v1/chat/completions", messages=messages, ignore_eos=True).json()
    assert found["content"] == [{"type": "text", "text": expected["choices"][0]["message"]["content"]}]
    assert (found["type"], found["role"], found["stop_reason"]) == ("message", "assistant", "max_tokens")
    usage, total = found["usage"], expected["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == total["prompt_tokens"]
    assert usage["output_tokens"] == 60


def test_blocks_are_the_turns_of_a_chat(post):
    arguments = {"city": "Ulm", "days": 1}
    call = {"id": "abc", "type": "function", "function": {"name": "weather", "arguments": json.dumps(arguments)}}
    blocks = [
        *turns("hi"),
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "text", "text": "so"},
            {"type": "tool_use", "id": "abc", "name": "weather", "input": arguments},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "abc", "content": [{"type": "text", "text": "rain"}]},
            {"type": "text", "text": "and now?"},
        ]},
    ]  # fmt: skip
    messages = [
        *turns("hi"),
        {"role": "assistant", "content": "so", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abc", "content": "rain"},
        {"role": "user", "content": "and now?"},
    ]
    expected = post("/v1/chat/completions", messages=messages, tools=[WEATHER]).json()
    found = post(messages=blocks, tools=[TOOL]).json()
    assert found["content"][0]["text"] == expected["choices"][0]["message"]["content"]
    count = post("/v1/messages/count_tokens", messages=blocks, tools=[TOOL], max_tokens=None).json()
    assert count == {"input_tokens": expected["usage"]["prompt_tokens"]}


def test_a_last_turn_of_the_assistant_is_continued(post):
    asked = dict(messages=turns("hi", "so"), ignore_eos=True, max_tokens=9)
    expected = post("/v1/chat/completions", continue_final_message=True, **asked).json()
    assert post(**asked).json()["content"][0]["text"] == expected["choices"][0]["message"]["content"]


def test_a_stop_sequence_is_named(post, stream):
    text = post(ignore_eos=True).json()["content"][0]["text"]
    asked = dict(ignore_eos=True, stop_sequences=["never", text[9:12]])
    found = post(**asked).json()
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", text[9:12])
    assert found["content"][0]["text"] == text[: text.index(text[9:12])]
    assert stream(**asked)[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": text[9:12]}


def test_tools_and_schemas_are_enforced(post):
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "weather"}):
        found = post(**ONE_CALL | dict(tool_choice=choice)).json()
        (block,) = found["content"]
        assert (block["type"], block["name"], found["stop_reason"]) == ("tool_use", "weather", "tool_use")
        assert block["input"]["city"] in ("Bonn", "Ulm") and block["id"]
    form = {"type": "json_schema", "schema": {"enum": ["yes", "no"]}}
    assert json.loads(post(output_config={"format": form}).json()["content"][0]["text"]) in ("yes", "no")


@pytest.mark.parametrize("fields", [dict(ignore_eos=True), ONE_CALL], ids=["text", "call"])
def test_a_stream_has_the_blocks_of_the_message(post, stream, fields):
    whole, events = post(**fields).json(), stream(**fields)
    kinds = [event["type"] for event in events]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert kinds == [
        "message_start", "content_block_start", *["content_block_delta"] * len(deltas), "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    (block,) = whole["content"]
    name = {"text": "text", "tool_use": "partial_json"}[block["type"]]
    gathered = "".join(delta[name] for delta in deltas)
    assert (gathered if name == "text" else json.loads(gathered)) in block.values()
    usage = events[0]["message"]["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == sum(
        whole["usage"][name] for name in ("input_tokens", "cache_read_input_tokens")
    )
    assert events[-2]["delta"]["stop_reason"] == whole["stop_reason"]
    assert events[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_thinking_is_a_block(post, stream, tokenizer, monkeypatch):
    marks = "{% if false %}</think>{% endif %}{{ enable_thinking }}"
    monkeypatch.setattr(tokenizer, "chat_template", tokenizer.chat_template + marks)
    thought = dict(choices=["<think>so</think>\n\nYes"], thinking={"type": "disabled"})
    thinking, text = post(**thought).json()["content"]
    assert (thinking["thinking"], text["text"]) == ("so", "Yes")
    starts = [event["content_block"]["type"] for event in stream(**thought) if event["type"] == "content_block_start"]
    assert starts == ["thinking", "text"]
    count = lambda **own: post("/v1/messages/count_tokens", **own).json()["input_tokens"]
    assert count(thinking={"type": "disabled"}) == count() + len("False")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": None}, "max_tokens is missing"),
        ({"max_tokens": 99999}, "max_tokens is 99999 and too large"),
        ({"n": 2}, "n is not supported"),
        ({"container": "a"}, "container is not supported"),
        ({"colour": "red"}, "the field colour is unknown"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking has no budget here"),
        ({"output_config": {"effort": "low"}}, "output_config.effort is not supported"),
        ({"tools": [{"type": "web_search_20250305", "name": "a"}]}, "tools[0] is no function"),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice needs a type"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0] has a block of type image"),
        ({"messages": [{"role": "user"}]}, "messages[0] needs a text or blocks"),
        ({"system": [{"type": "image"}]}, "system has a block of type image"),
        ({"model": "other"}, "no model 'other'"),
    ],
)
def test_errors_have_the_protocols_form(post, app, fields, message):
    answer = post(**fields)
    found = answer.json()
    kind = {404: "not_found_error", 400: "invalid_request_error"}[answer.status_code]
    assert found["type"] == "error" and found["error"]["type"] == kind, found
    assert message in found["error"]["message"] and "\n" not in found["error"]["message"]
    assert app.state.gate.count == 0
