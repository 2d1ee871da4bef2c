"""Conversations through chat templates of two kinds, against prompts written by hand, and one line about what fails."""

from pathlib import Path

import pytest
from support.chat import CHATML, REASONING, chat_tokenizer, turns
from transformers import AutoTokenizer

import specjax
from specjax.errors import RequestError
from specjax.requests.chat import Conversation, end_of_turn_ids, render_answers, render_chat

ZOO = Path(specjax.__file__).parent / "checkpoints/zoo"
LLAMA3 = """{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>

{{ m['content'] | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""
STRICT = """{% for m in messages %}{% if m['role'] not in ['user', 'assistant'] %}{{ raise_exception('Only user and assistant roles
are supported!') }}{% endif %}[{{ m['role'] }}] {{ m['content'] }}{% endfor %}"""


@pytest.mark.parametrize(
    ("template", "messages", "text"),
    [
        (CHATML, turns("hé"), "<|im_start|>user\nhé<|im_end|>\n<|im_start|>assistant\n"),
        (
            CHATML,
            [{"role": "system", "content": "s"}, *turns("a", "b", "c")],
            "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
        (
            LLAMA3,
            turns(" a "),
            "<|begin|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
    ],
)
def test_prompts_are_those_of_the_template(template, messages, text):
    tok = chat_tokenizer(template)
    ids = render_chat(tok, messages)
    assert tok.decode(ids, skip_special_tokens=False) == text
    begin = tok.convert_tokens_to_ids("<|begin|>")
    assert ids.count(begin) == text.count("<|begin|>"), "the tokenizer adds none of its own"
    rendered = render_chat(tok, messages, add_generation_prompt=False)
    assert ids[: len(rendered)] == rendered and len(rendered) < len(ids)


@pytest.mark.parametrize(("template", "token"), [(CHATML, "<|im_end|>"), (LLAMA3, "<|eot_id|>"), (STRICT, None)])
def test_the_token_behind_an_answer_ends_the_turn(template, token):
    tok = chat_tokenizer(template)
    assert end_of_turn_ids(tok) == ((tok.convert_tokens_to_ids(token),) if token else ())


@pytest.mark.parametrize(
    ("template", "messages", "named"),
    [
        (None, turns("a"), "has no chat template"),
        (CHATML, [], "messages is empty"),
        (CHATML, "hello", "messages must be a list such as"),
        (CHATML, turns("a")[0], "messages must be a list such as"),
        (CHATML, None, "messages must be a list such as"),
        (CHATML, ["hello"], "messages[0] must be a dict"),
        (CHATML, [*turns("a"), {"role": "assistant"}], "messages[1] needs a string as its content, not None"),
        (CHATML, [{"content": "a"}], "messages[0] needs a string as its role"),
        (CHATML, [{"role": "user", "content": [{"type": "image"}]}], "messages[0] needs a string as its content"),
        (CHATML, turns("a", "b"), "ends with the assistant's turn"),
        (CHATML, turns("a") * 4097, "MOST_MESSAGES"),
        (STRICT, [{"role": "critic", "content": "a"}], "fails for the roles critic: Only user and assistant roles are supported!"),
        ("{% for m in messages if m['role'] == 'user' %}{{ m['content'] }}{% endfor %}", [{"role": "critic", "content": "a"}, *turns("b")],
         "leaves out messages[0] of role 'critic'"),
        ("{% for %}", turns("a"), "the chat template fails"),
        ("{{ messages[7].text.more }}", turns("a"), "the chat template fails"),
        ("{{ 1 / 0 }}", turns("a"), "the chat template fails for the roles user: division by zero"),
        ("{# {{ messages[0]['content'] }} #}", [{"role": "user", "content": ""}], "makes an empty prompt"),
    ],
)  # fmt: skip
def test_what_fails_is_named_on_one_line(template, messages, named):
    with pytest.raises(RequestError) as error:
        render_chat(chat_tokenizer(template), messages)
    assert named in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 250


ASKS_OTHERWISE = CHATML + "{% if add_generation_prompt %}<think>{% endif %}"


def test_answers_are_found_in_the_text_of_the_template():
    ((text, spans),) = render_answers(chat_tokenizer(CHATML), turns("a", "b", "c", "d", "e"))
    asked, answered = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n", "{}<|im_end|>"
    assert text == "".join(
        [asked.format("a"), answered.format("b"), "\n", asked.format("c"), answered.format("d"), "\n"]
    )
    assert [text[begin:end] for begin, end in spans] == ["b<|im_end|>", "d<|im_end|>"]


def test_answers_of_a_template_without_an_end_of_turn_go_to_the_end():
    ((text, spans),) = render_answers(
        chat_tokenizer("{% for m in messages %}{{ m.content }}|{% endfor %}"), turns("a", "b")
    )
    assert [text[begin:end] for begin, end in spans] == ["b|"]


def test_a_template_that_changes_earlier_turns_gives_a_text_for_each_answer():
    first, second = render_answers(chat_tokenizer(REASONING), turns("a", "<think>x</think>b", "c", "<think>y</think>d"))
    found = [[text[begin:end] for begin, end in spans] for text, spans in (first, second)]
    assert found == [["<think>x</think>b<|im_end|>"], ["<think>y</think>d<|im_end|>"]]
    assert "<think>x" not in second[0] and "assistant\nb<|im_end|>" in second[0]


@pytest.mark.parametrize(
    ("template", "messages", "named"),
    [
        (CHATML, turns("a"), "no assistant turn; add the answer"),
        (CHATML, turns("a", "b")[1:], "begins with the assistant's turn"),
        (CHATML, [{"role": "user", "content": None}, *turns("a", "b")], "messages[0] needs a string as its content"),
        (ASKS_OTHERWISE, turns("a", "b"), "begins the answer messages[1] otherwise than it asks for one"),
        (STRICT, [{"role": "critic", "content": "a"}, *turns("a", "b")], "fails for the roles"),
        ("{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}",
         [{"role": "system", "content": "s"}, *turns("a", "b")], "leaves out messages[0] of role 'system'"),
        (None, turns("a", "b"), "has no chat template"),
    ],
)  # fmt: skip
def test_conversations_without_answers_to_learn_get_one_line(template, messages, named):
    with pytest.raises(RequestError) as error:
        render_answers(chat_tokenizer(template), messages)
    assert named in str(error.value) and "\n" not in str(error.value)


def test_the_embedded_target_has_a_plain_template():
    """A single turn is the text itself, so the server's page can continue it as a conversation too."""
    tok = AutoTokenizer.from_pretrained(ZOO / "tiny-python")
    assert render_chat(tok, turns("def mean(values):")) == tok.encode("def mean(values):")
    assert tok.decode(render_chat(tok, turns("a = 1", "b = 2", "c = 3"))) == "a = 1\nb = 2\nc = 3"


def test_a_conversation_has_its_own_arguments_for_the_template():
    tok = chat_tokenizer(CHATML + "{{ mood }}")
    text = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
    assert Conversation(turns("a", "b")).text(tok) == text + "<|im_start|>assistant\n"
    assert tok.decode(render_chat(tok, Conversation(turns("a", "b"), dict(continue_final_message=True)))) == text[:-11]
    assert Conversation(turns("a", "b"), dict(add_generation_prompt=False), {"mood": "!"}).text(tok) == text + "!"
    with pytest.raises(RequestError, match="'tools' is no variable of a chat template; leave it out"):
        Conversation(turns("a"), variables={"tools": []}).text(tok)
