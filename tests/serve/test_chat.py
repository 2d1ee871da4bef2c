"""Conversations over HTTP: the chat template's options, final turns, and tools, with random weights.

The target's tokens are bytes. A random model writes no calls of its own, so calls are enforced, or its text is biased.
"""

import json

import httpx
import openai
import pytest
from support.chat import NOW, WEATHER, turns
from support.chat import TOOLS as TEMPLATE


@pytest.fixture(scope="module")
def chat(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield lambda messages, **fields: client.chat.completions.create(
            **dict(model="bytes", messages=messages, max_tokens=200, temperature=0, seed=1) | fields
        )


@pytest.fixture
def prompt_of(url, tokenizer):
    """The text of the prompt that a request would have."""

    def prompt_of(messages, **fields) -> str:
        answer = httpx.post(f"{url}/tokenize", json=dict(messages=messages, **fields))
        assert answer.status_code == 200, answer.text
        return tokenizer.decode(answer.json()["tokens"])

    return prompt_of


def test_the_template_gets_its_options(prompt_of):
    hi = "<|im_start|>user\nhi<|im_end|>\n"
    assert prompt_of(turns("hi")) == hi + "<|im_start|>assistant\n"
    assert prompt_of(turns("hi"), add_generation_prompt=False) == hi
    assert prompt_of(turns("hi"), chat_template_kwargs={"mood": "calm"}) == hi + "<|im_start|>assistant\n(calm)"
    assert prompt_of(turns("hi", "so"), continue_final_message=True) == hi + "<|im_start|>assistant\nso"
    answered = hi + "<|im_start|>assistant\nso<|im_end|>\n<|im_start|>assistant\n"
    assert prompt_of(turns("hi", "so")) == answered
    parts = [{"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert prompt_of(parts + turns("hi")).startswith("<|im_start|>system\nab<|im_end|>\n" + hi)


def test_a_text_goes_on_with_the_final_turn(chat, url):
    """As a completion of the same prompt does."""
    found = chat(turns("hi", "so"), max_tokens=9, extra_body=dict(continue_final_message=True, ignore_eos=True))
    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nso"
    body = dict(model="bytes", prompt=prompt, max_tokens=9, temperature=0, ignore_eos=True)
    same = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
    assert found.choices[0].message.content == same["choices"][0]["text"]


def test_turns_of_tools_reach_the_template(prompt_of):
    call = {"id": "abc", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm", "days": 1}'}}
    messages = [
        *turns("hi"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abc", "content": "rain"},
    ]
    text = prompt_of(messages, tools=[WEATHER])
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm", "days": 1}}\n</tool_call><|im_end|>' in text
    assert text.endswith("<|im_start|>tool\nrain<|im_end|>\n<|im_start|>assistant\n")
    assert json.dumps(WEATHER["function"]["parameters"]["required"]) in text and text.startswith("<|im_start|>tools")
    assert prompt_of(messages, tools=[WEATHER], tool_choice="none") == prompt_of(messages)


def calls_of(message) -> list[tuple[str, dict]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]


def test_a_tool_that_must_be_called_is_called(chat):
    named = {"type": "function", "function": {"name": "now"}}
    asked = dict(tools=[WEATHER, NOW], messages=turns("hi"))
    (choice,) = chat(**asked, tool_choice=named).choices
    assert calls_of(choice.message) == [("now", {})] and choice.message.content is None
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls[0].id.isalnum()
    for seed in range(3):
        options = dict(tool_choice="required", parallel_tool_calls=False, temperature=1.0, seed=seed)
        (choice,) = chat(**asked, **options).choices
        ((name, arguments),) = calls_of(choice.message)
        assert arguments == {} if name == "now" else arguments["city"] in ("Bonn", "Ulm")


def test_a_stream_of_a_call_is_the_whole_call(chat):
    asked = dict(messages=turns("hi"), tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)
    (whole,) = chat(**asked).choices
    chunks = list(chat(**asked, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    pieces = [piece for delta in deltas for piece in delta.tool_calls or ()]
    assert deltas[0].role == "assistant" and not any(delta.content for delta in deltas)
    assert pieces[0].id and pieces[0].function.name == "weather" and {piece.index for piece in pieces} == {0}
    assert not any(piece.id or piece.function.name for piece in pieces[1:])
    arguments = "".join(piece.function.arguments for piece in pieces)
    assert arguments == whole.message.tool_calls[0].function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_by_itself_a_text_without_calls_is_content(chat):
    plain = dict(messages=turns("hi"), max_tokens=12, extra_body=dict(ignore_eos=True))
    (choice,) = chat(**plain, tools=[WEATHER]).choices
    assert choice.message.tool_calls is None and choice.message.content and choice.finish_reason == "length"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chat(**plain, tools=[WEATHER], stream=True))
    assert text == choice.message.content


def test_a_text_may_call_a_tool_of_its_own_accord(chat):
    """The text is forced by a regular expression that a client gave, and read as any other."""
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Ulm", "days": 2}}</tool_call>'
    (choice,) = chat(turns("hi"), tools=[WEATHER], extra_body=dict(choices=[call])).choices
    assert calls_of(choice.message) == [("weather", {"city": "Ulm", "days": 2})]
    assert choice.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"messages": turns("fail")}, None, "the chat template fails for the roles user: this I refuse"),
        ({"chat_template_kwargs": "calm"}, "chat_template_kwargs", "valid dictionary"),
        ({"chat_template_kwargs": {"tokenize": True}}, None, "'tokenize' is no variable of a chat template"),
        ({"continue_final_message": True}, "continue_final_message", "needs a last turn of the assistant"),
        (
            {"messages": turns("a", "b"), "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            "exclude one another",
        ),
        ({"tools": [WEATHER], "tool_choice": "some"}, "tool_choice", "mend this field"),
        ({"tools": [WEATHER, NOW], "tool_choice": {"type": "function", "function": {"name": "rain"}}}, "tool_choice",
         "tool_choice names rain, which is none of the tools; use weather, now"),
        ({"tool_choice": "required"}, "tool_choice", "tool_choice needs tools"),
        ({"tools": [WEATHER, WEATHER]}, "tools", "two functions weather"),
        ({"tools": [{"type": "function"}]}, "tools", "tools.0.function: Field required"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", "should match pattern"),
        ({"tools": "weather"}, "tools", "valid list"),
        ({"tools": [WEATHER], "tool_choice": "required", "regex": "a"}, "tool_choice", "and regex another text"),
        ({"messages": [{"role": "user"}]}, "messages", "messages[0] has no content"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{"}}]}]},
         "messages", "messages[0]: a call of a tool needs a function with a name and arguments"),
        ({"messages": [{"role": "tool", "content": "a", "colour": "red"}]}, "messages", "has colour"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(url, app, fields, param, message):
    body = {"model": "bytes", "messages": turns("hi")} | fields
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param) and message in error["message"], error
    assert "\n" not in error["message"] and app.state.gate.count == 0


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for m in messages %}{{ m['content'] }}{% endfor %}", "tools are left out by the chat template"),
        ("{{ tools }}{% for m in messages %}{{ m['content'] }}{% endfor %}", "is none of Hermes, Mistral, Llama 3"),
        (TEMPLATE.replace(" as ", "<function="), "is none of Hermes, Mistral, Llama 3"),
    ],
)
def test_a_template_without_tools_refuses_them(url, tokenizer, monkeypatch, template, message):
    monkeypatch.setattr(tokenizer, "chat_template", template)
    body = {"model": "bytes", "messages": turns("hi"), "tools": [WEATHER]}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 400 and message in answer.json()["error"]["message"]


def test_reasoning_stands_apart(chat, tokenizer, monkeypatch):
    """A thinking model's template has the marks. The second one begins the reasoning itself."""
    marks = "{% if false %}</think>{% endif %}"
    ask = lambda **given: chat(turns("hi"), **dict(extra_body=dict(choices=["<think>so</think>\n\nYes"])) | given)
    monkeypatch.setattr(tokenizer, "chat_template", TEMPLATE + marks)
    (choice,) = ask().choices
    assert (choice.message.reasoning_content, choice.message.content) == ("so", "Yes")
    deltas = [chunk.choices[0].delta.to_dict() for chunk in ask(stream=True)]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "so"
    assert "".join(delta.get("content", "") for delta in deltas) == "Yes"
    monkeypatch.setattr(tokenizer, "chat_template", TEMPLATE + marks + "<think>\n")
    (choice,) = ask(max_tokens=5, extra_body=dict(ignore_eos=True)).choices
    assert choice.message.reasoning_content and not choice.message.content
