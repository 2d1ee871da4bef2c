"""Reasoning and calls of tools in texts, whole and cut at every place, against records written by hand."""

import json

import pytest
from support.chat import chat_tokenizer

from specjax.requests.grammar import compile_grammar
from specjax.serve.tools.choice import calls_grammar
from specjax.serve.tools.formats import FORMATS
from specjax.serve.turns import TurnForm

HERMES, MISTRAL, LLAMA = FORMATS
ARGUMENTS = {"city": 'Bad "Ems" {1}', "days": [1, {"a": None}]}
JSON = json.dumps(ARGUMENTS)
TWO = [("weather", ARGUMENTS), ("time", {})]
HERMES_CALL = f'<tool_call>\n{{"name": "weather", "arguments": {JSON}}}\n</tool_call>'

TEXTS = [
    (HERMES, False, "Hello <b>you</b>", "Hello <b>you</b>", []),
    (HERMES, False, HERMES_CALL, "", TWO[:1]),
    (HERMES, False, f'Let me see.\n{HERMES_CALL}\n<tool_call>\n{{"name": "time", "arguments": {{}}}}\n</tool_call>', "Let me see.\n", TWO),
    (HERMES, False, f"{HERMES_CALL}\nDone.", "Done.", TWO[:1]),
    (HERMES, False, f'<tool_call>{{"arguments": {JSON}, "name": "weather"}}</tool_call>', "", TWO[:1]),
    (HERMES, False, f'<tool_call>{{"name": "weather", "arguments": {JSON}, "id": "x}}"}}</tool_call>', "", TWO[:1]),
    (HERMES, False, "<tool_call>never mind", "<tool_call>never mind", []),
    (HERMES, False, '<tool_call>\n{"name": 3}\n</tool_call>', '<tool_call>\n{"name": 3}\n</tool_call>', []),
    (HERMES, False, '<tool_call>\n{"name": "wea', '<tool_call>\n{"name": "wea', []),
    (HERMES, False, "a <tool_cal", "a <tool_cal", []),
    (HERMES, True, f'{{"name": "weather", "arguments": {JSON}}}', "", TWO[:1]),
    (MISTRAL, True, f'[TOOL_CALLS] [{{"name": "weather", "arguments": {JSON}}}, {{"name": "time", "arguments": {{}}}}]', "", TWO),
    (MISTRAL, True, f' [{{"name": "weather", "arguments": {JSON}}}]', "", TWO[:1]),
    (MISTRAL, True, "[1, 2, 3] are numbers", "[1, 2, 3] are numbers", []),
    (MISTRAL, True, f'I ask.[TOOL_CALLS][{{"name": "weather", "arguments": {JSON}}}]', "I ask.", TWO[:1]),
    (LLAMA, True, f'{{"name": "weather", "parameters": {JSON}}}; {{"name": "time", "parameters": {{}}}}', "", TWO),
    (LLAMA, True, f'<|python_tag|>{{"name": "weather", "parameters": {JSON}}}', "", TWO[:1]),
    (LLAMA, True, '{"answer": {"name": "weather"}} is all', '{"answer": {"name": "weather"}} is all', []),
    (LLAMA, True, 'The call {"name": "time", "parameters": {}}', 'The call {"name": "time", "parameters": {}}', []),
    (LLAMA, True, "", "", []),
]  # fmt: skip


def calls_of(message: dict) -> list[tuple[str, dict]]:
    functions = [call["function"] for call in message.get("tool_calls", ())]
    return [(function["name"], json.loads(function["arguments"])) for function in functions]


def gathered(deltas: list[dict]) -> dict:
    """The message of deltas, as a client of OpenAI's streams gathers it."""
    message: dict = {"content": "", "reasoning_content": "", "tool_calls": []}
    for delta in deltas:
        for name in ("content", "reasoning_content"):
            message[name] += delta.get(name, "")
        for piece in delta.get("tool_calls", ()):
            if piece["index"] == len(message["tool_calls"]):
                assert piece["id"] and piece["type"] == "function" and piece["function"]["name"]
                message["tool_calls"].append({"function": {"name": piece["function"]["name"], "arguments": ""}})
            message["tool_calls"][piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    return message


@pytest.mark.parametrize(("form", "is_bare", "text", "content", "calls"), TEXTS)
def test_calls_are_read_however_the_text_is_cut(form, is_bare, text, content, calls):
    read = TurnForm(calls=form, is_bare=is_bare)
    whole = read.message(text)
    assert (whole["content"] or "") == (content.strip() if calls else content) and calls_of(whole) == calls
    for cuts in [(i,) for i in range(len(text) + 1)] + [tuple(range(len(text)))]:
        reader = read.reader()
        pieces = [text[a:b] for a, b in zip((0, *cuts), (*cuts, len(text)))]
        found = gathered([delta for piece in pieces for delta in reader.feed(piece)] + reader.end())
        assert (found["content"], calls_of(found), reader.has_calls) == (content, calls, bool(calls))


def test_arguments_come_in_pieces():
    reader = TurnForm(calls=HERMES).reader()
    deltas = [delta for letter in HERMES_CALL for delta in reader.feed(letter)]
    pieces = [call for delta in deltas for call in delta["tool_calls"]]
    assert "id" in pieces[0] and len(pieces) == 1 + len(JSON)


def test_arguments_that_are_no_json_are_content():
    for text in (HERMES_CALL.replace("null", "nil"), HERMES_CALL[:50]):
        found = TurnForm(calls=HERMES).message(text)
        assert found["content"] == text and "tool_calls" not in found


@pytest.mark.parametrize(
    ("is_open", "text", "reasoning", "content"),
    [
        (False, "<think>\nWhy not?\n</think>\n\nYes.", "\nWhy not?\n", "Yes."),
        (False, "\n<think></think>Yes.", "", "Yes."),
        (True, "Why not?</think> Yes. <think>", "Why not?", "Yes. <think>"),
        (True, "Why </th", "Why </th", ""),
        (False, "<think>Why", "Why", ""),
        (False, "<thin", "", "<thin"),
        (False, "No <think>a</think>", "", "No <think>a</think>"),
        (False, "<think>a</think>\n", "a", ""),
    ],
)
def test_reasoning_is_told_apart_however_the_text_is_cut(is_open, text, reasoning, content):
    read = TurnForm(thinks=True, is_open=is_open)
    whole = read.message(text)
    assert (whole.get("reasoning_content", ""), whole["content"]) == (reasoning, content)
    for cut in range(len(text) + 1):
        reader = read.reader()
        found = gathered(reader.feed(text[:cut]) + reader.feed(text[cut:]) + reader.end())
        assert (found["reasoning_content"], found["content"]) == (reasoning, content)


def test_reasoning_may_speak_of_calls():
    text = f"<think>Shall I write <tool_call>?</think>{HERMES_CALL}"
    found = TurnForm(thinks=True, calls=HERMES).message(text)
    assert found["reasoning_content"] == "Shall I write <tool_call>?" and calls_of(found) == TWO[:1]
    assert found["content"] is None


@pytest.mark.parametrize(
    ("form", "several", "texts", "others"),
    [
        (HERMES, False, ['<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>'], ["hello"]),
        (
            HERMES,
            True,
            ['<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'],
            ['<tool_call>\n{"name": "rain", "arguments": {}}\n</tool_call>'],
        ),
        (
            MISTRAL,
            True,
            ['[{"name": "now", "arguments": {}}, {"name": "weather", "arguments": {"city": "Ulm"}}]'],
            ['[{"name": "weather", "arguments": {}}]', '[{"name": "now", "arguments": {"city": "Ulm"}}]', "[]"],
        ),
        (LLAMA, False, ['{"name": "weather", "parameters": {"city": "Ulm"}}'], ['{"name": "now", "arguments": {}}']),
    ],
)  # fmt: skip
def test_the_grammar_has_the_calls_that_the_reader_finds(form, several, texts, others):
    """By llguidance, for a tokenizer of bytes."""
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    functions = [{"name": "weather", "parameters": city}, {"name": "now", "parameters": None}]
    grammar = calls_grammar(form, functions, several=several, with_mark=form is HERMES)
    tokenizer = chat_tokenizer(None)
    compiled = compile_grammar(tokenizer, (tokenizer.eos_token_id,), len(tokenizer), "grammar", grammar)
    matches = lambda text: (
        (ids := [*tokenizer.encode(text), tokenizer.eos_token_id])
        and compiled.start.deep_copy().validate_tokens(ids) == len(ids)
    )
    assert [matches(text) for text in texts + others] == [True] * len(texts) + [False] * len(others)
    for text in texts:
        assert calls_of(TurnForm(calls=form, is_bare=form is not HERMES).message(text))
