"""Conversations through chat templates of two kinds, against prompts written by hand, and one line about what fails."""

import functools

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specjax.errors import RequestError
from specjax.requests.chat import end_of_turn_ids, render_chat

CHATML = """{% for m in messages %}<|im_start|>{{ m['role'] }}
{{ m['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
LLAMA3 = """{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>

{{ m['content'] | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""
STRICT = """{% for m in messages %}{% if m['role'] not in ['user', 'assistant'] %}{{ raise_exception('Only user and assistant roles
are supported!') }}{% endif %}[{{ m['role'] }}] {{ m['content'] }}{% endfor %}"""


@functools.cache
def tokenizer(template: str | None) -> PreTrainedTokenizerFast:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    names = [
        "<|begin|>",
        "<|end|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ]
    backend.add_special_tokens(names)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=names[0], eos_token=names[1], clean_up_tokenization_spaces=False
    )
    fast.chat_template = template
    return fast


def turns(*texts: str) -> list[dict]:
    """A conversation that the user begins."""
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


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
    tok = tokenizer(template)
    ids = render_chat(tok, messages)
    assert tok.decode(ids, skip_special_tokens=False) == text
    begin = tok.convert_tokens_to_ids("<|begin|>")
    assert ids.count(begin) == text.count("<|begin|>"), "the tokenizer adds none of its own"
    rendered = render_chat(tok, messages, add_generation_prompt=False)
    assert ids[: len(rendered)] == rendered and len(rendered) < len(ids)


@pytest.mark.parametrize(("template", "token"), [(CHATML, "<|im_end|>"), (LLAMA3, "<|eot_id|>"), (STRICT, None)])
def test_the_token_behind_an_answer_ends_the_turn(template, token):
    tok = tokenizer(template)
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
        render_chat(tokenizer(template), messages)
    assert named in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 250
