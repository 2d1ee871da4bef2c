"""Conversations as prompts, and their files.

The oracle: prompts written by hand around answers that a forward without a cache gives.
"""

import json

import pytest
from support.models import TINY, byte_tokenizer, tiny_model
from transformers import AddedToken

from specjax import LanguageModel, RequestError
from specjax.tools.evaluate import chat_prompts, read_conversations, read_prompts
from specjax.tools.evaluate.comparison import encode_prompts
from specjax.tools.evaluate.fidelity import logits_after

TEMPLATE = (
    "{% for m in messages %}<S>{{ m['role'] | upper }}:{{ m['content'] }}<E>{% endfor %}"
    "{% if add_generation_prompt %}<S>ASSISTANT:{% endif %}"
)
START, END = 59, 60


@pytest.fixture(scope="module")
def target():
    """A model of one layer whose template resembles ChatML. Its end-of-turn token is not a special token."""
    tokenizer = byte_tokenizer(START)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<S>"]})
    tokenizer.add_tokens([AddedToken("<E>", special=False)])
    tokenizer.chat_template = TEMPLATE
    model = tiny_model(1, num_layers=1)
    return LanguageModel(model, model.config, tokenizer, "chat")


def ids(text: str) -> list[int]:
    """The tokens of capitals and punctuation. Token 2 is the character 33."""
    return [ord(c) - 33 + 2 for c in text]


def turn(role: str, text: str) -> list[int]:
    return [START, *ids(f"{role}:{text}"), END]


ANSWER = [START, *ids("ASSISTANT:")]


def answer(target, prompt: list[int], most: int) -> tuple[str, bool]:
    """The plain answer by forwards without a cache, and whether the end-of-turn token ended it."""
    new = []
    while len(new) < most:
        token = int(logits_after(target, prompt + new, len(prompt)).argmax())
        if token in (END, *TINY.eos_token_ids):
            return text_of(new), token == END
        new.append(token)
    return text_of(new), False


def text_of(tokens: list[int]) -> str:
    """The text without special tokens, which are 0, 1 and START."""
    return "".join(chr(token + 31) for token in tokens if 1 < token < START)


def user(*turns: str) -> list[dict]:
    return [{"role": "user", "content": text} for text in turns]


def test_every_turn_follows_the_models_own_plain_answers(target):
    found = chat_prompts(target, [user("G", "H", "K"), user("L")], max_new_tokens=12)

    first = turn("USER", "G") + ANSWER
    one, ended = answer(target, first, 12)
    assert ended and one, "the end-of-turn token ends the first answer"
    second = turn("USER", "G") + turn("ASSISTANT", one) + turn("USER", "H") + ANSWER
    two, ended = answer(target, second, 12)
    assert not ended and two, "max_new_tokens ends the second answer"
    third = second[: -len(ANSWER)] + turn("ASSISTANT", two) + turn("USER", "K") + ANSWER
    assert found == [first, second, third, turn("USER", "L") + ANSWER]


def test_answers_and_instructions_of_the_conversation_stay(target):
    given = [("system", "BE.BRIEF"), ("user", "A"), ("assistant", "YES"), ("user", "B"), ("assistant", "NO")]
    found = chat_prompts(target, [[{"role": role, "content": text} for role, text in given]], max_new_tokens=12)
    before = turn("SYSTEM", "BE.BRIEF") + turn("USER", "A")
    assert found == [before + ANSWER, before + turn("ASSISTANT", "YES") + turn("USER", "B") + ANSWER]


def test_a_conversation_that_leaves_no_room_is_named(target):
    words = "^conversation 2, message 1 makes a prompt of 274 tokens.*context of 256 "
    with pytest.raises(RequestError, match=words) as error:
        chat_prompts(target, [user("A"), user("B" * TINY.context)])
    assert "\n" not in str(error.value)
    room = TINY.context - len(turn("USER", "") + ANSWER)
    assert len(*chat_prompts(target, [user("B" * (room - 1))])) == TINY.context - 1
    with pytest.raises(RequestError, match="conversation 1, message 1 makes a prompt of 256 tokens"):
        chat_prompts(target, [user("B" * room)])


def test_a_model_without_a_template_is_refused():
    model = tiny_model(1, num_layers=1)
    with pytest.raises(RequestError, match="^the model's tokenizer has no chat template"):
        chat_prompts(LanguageModel(model, model.config, byte_tokenizer(), "plain"), [user("A")])


def test_compare_takes_token_ids_beside_strings(target):
    assert encode_prompts(target, ["AB", (3, 4)]) == [ids("AB"), [3, 4]]
    with pytest.raises(RequestError, match="prompt 2 has 256 tokens"):
        encode_prompts(target, ["A", [5] * TINY.context])


def test_read_conversations_takes_the_three_formats(tmp_path):
    path = tmp_path / "prompts.jsonl"
    messages = [{"role": "system", "content": "é"}, *user("a"), {"role": "assistant", "content": "b"}, *user("c")]
    lines = [
        {"question_id": 81, "turns": ["a", "b"]},
        {"messages": messages, "prompt": "a"},
        {"prompt": "a", "turns": None},
    ]
    path.write_text("\ufeff" + "\n\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert read_conversations(path) == [user("a", "b"), messages, user("a")]


BAD_LINES = {
    "not JSON": ('{"turns": ', "the line is not JSON"),
    "deep": ('{"turns": ' + "[" * 101 + "]" * 101 + "}", "the line nests too deeply; use at most 100 levels"),
    "very deep": ("[" * 100_000, "the line nests too deeply; use at most 100 levels"),
    "not an object": ("[]", "the line is no object"),
    "no known key": ('{"text": "b"}', "no conversation"),
    "no turns": ('{"turns": []}', "no conversation"),
    "one string": ('{"turns": "a"}', "no conversation"),
    "no string": ('{"turns": ["a", 3]}', r"turns\[1\] must be a string, not 3"),
    "empty turn": ('{"turns": ["a", " "]}', r"turns\[1\] is empty"),
    "empty prompt": ('{"prompt": ""}', "the prompt is empty"),
    "no text": ('{"turns": ["\\ud800"]}', r"turns\[0\] holds characters that are no text"),
    "no messages": ('{"messages": []}', "no conversation"),
    "no object": ('{"messages": ["a"]}', r"messages\[0\] must be an object"),
    "no role": ('{"messages": [{"content": "a"}]}', r"messages\[0\] has the role None"),
    "bad role": ('{"messages": [{"role": "critic", "content": "a"}]}', r"messages\[0\] has the role 'critic'; use one"),
    "list as a role": ('{"messages": [{"role": [], "content": "a"}]}', r"messages\[0\] has the role \[\]"),
    "no content": ('{"messages": [{"role": "user"}]}', r"messages\[0\]\.content must be a string, not None"),
    "no question": ('{"messages": [{"role": "system", "content": "a"}]}', "no message of the role user"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD_LINES)
def test_read_conversations_names_file_and_line(tmp_path, kind):
    content, words = BAD_LINES[kind]
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"turns": ["a"]}}\n\n{content}\n')
    with pytest.raises(RequestError, match=f"prompts.jsonl, line 3: {words}") as error:
        read_conversations(path)
    assert "\n" not in str(error.value)


def test_read_prompts_takes_first_turns_and_nests_no_deeper(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"turns": ["a", "b"]}\n')
    assert read_prompts(path) == ["a"]
    path.write_text('{"prompt": "a"}\n{"prompt": ' + "[" * 101 + "]" * 101 + "}\n")
    with pytest.raises(RequestError, match="line 2: the line nests too deeply"):
        read_prompts(path)
    path.write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    with pytest.raises(RequestError, match="line 1: no prompt; give .*; --chat reads"):
        read_prompts(path)
