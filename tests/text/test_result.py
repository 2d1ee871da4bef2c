"""Texts and stop strings of a tokenizer whose decoder strips the first space, as the tokenizer of Llama 2 does."""

import types

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from specjax.text.result import _cut, settled_text

PIECES = ["<unk>", "</s>", "▁", "a", "b", "▁a", "ab", *(f"<0x{byte:02X}>" for byte in "✓".encode())]
ID = {piece: i for i, piece in enumerate(PIECES)}


@pytest.fixture(scope="module")
def target():
    tokenizer = Tokenizer(models.BPE(ID, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")
    return types.SimpleNamespace(tokenizer=fast, config=types.SimpleNamespace(vocab_size=len(PIECES)))


def ids(text: str) -> list[int]:
    return [ID[piece] for piece in text.split("|")]


MARK = "<0xE2>|<0x9C>|<0x93>"


@pytest.mark.parametrize(
    ("spelled", "stops", "text", "stop"),
    [
        ("▁a|b", [" a"], "", " a"),  # the decoder strips the space, the device does not
        ("▁a|b|▁a", [" a"], "", " a"),
        ("b|▁a", [" a"], "b", " a"),
        ("▁|▁a|b", ["ab"], " ", "ab"),
        ("ab|b|" + MARK, ["b✓", "✓"], "ab", "b✓"),
        ("b|" + MARK, ["✓b"], "b✓", None),
        ("a|</s>|b", ["ab"], "", "ab"),
        ("b|ab", [], "bab", None),
    ],
)
def test_texts_end_before_the_stop_string(target, spelled, stops, text, stop):
    decoded = target.tokenizer.decode(ids(spelled), skip_special_tokens=True)
    assert _cut(decoded, ids(spelled), target, stops) == (text, stop)


@pytest.mark.parametrize(
    ("spelled", "stops", "shown"),
    [
        ("b|a", [], "ba"),
        ("b|a", ["ab"], "b"),
        ("▁a", [" ab"], ""),
        ("b|<0xE2>", ["b✓"], ""),  # the mark may still come
        ("b|<0xE2>", ["a"], "b"),
        ("b|<0xE2>|<0x9C>", [], "b"),
        ("b|ab|a", ["abab", "aa"], "b"),
    ],
)
def test_growing_texts_show_what_is_settled(target, spelled, stops, shown):
    text = target.tokenizer.decode(ids(spelled), skip_special_tokens=True)
    assert settled_text(text, ids(spelled), target, stops) == shown
