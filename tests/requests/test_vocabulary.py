"""Bytes of tokens and texts of continuations, against the tokenizers' own decoding of whole texts."""

import re

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from specjax.checkpoints.hub import find
from specjax.errors import RequestError
from specjax.requests.constraint import compile_constraint
from specjax.requests.vocabulary import decode_continuation, token_bytes

PIECES = [
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
    "▁",
    *"playrunto✓",
    "▁pl",
    "ay",
    "run",
    "▁to",
    "▁run",
]


def sentencepiece() -> PreTrainedTokenizerFast:
    """A tokenizer that puts a space before the text and whose decoder takes the first space away, as Llama 2's does."""
    vocab = {piece: i for i, piece in enumerate(dict.fromkeys(PIECES))}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def metaspace() -> PreTrainedTokenizerFast:
    tokenizer = sentencepiece()
    tokenizer.backend_tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def byte_level():
    return AutoTokenizer.from_pretrained(find("tiny-python"))


KINDS = [sentencepiece, byte_level]


@pytest.mark.parametrize("kind", KINDS)
def test_prompt_and_continuation_are_the_whole_text(kind):
    tokenizer = kind()
    text = "play to run ✓  to to\nplay"
    ids = tokenizer.encode(text)
    decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert decode(ids) == text
    start = next(i for i in range(len(ids)) if decode(ids[: i + 1]))  # from the first token that has a text
    checked = 0
    for cut in range(start + 1, len(ids)):
        if "\ufffd" not in decode(ids[:cut]):
            assert decode(ids[:cut]) + decode_continuation(tokenizer, len(tokenizer), ids[:cut], ids[cut:]) == text
            checked += text[len(decode(ids[:cut]))] == " "
    assert checked > 2


@pytest.mark.parametrize("kind", [*KINDS, metaspace])
def test_a_constrained_text_keeps_its_first_space(kind):
    tokenizer, regex = kind(), " (play|run)"
    end, size = tokenizer.eos_token_id, len(tokenizer)
    constraint = compile_constraint(tokenizer, (end,), size, regex=regex)
    rng, texts = np.random.default_rng(0), set()
    for _ in range(20):
        state, ids = 0, []
        while not ids or ids[-1] != end:
            ids.append(int(rng.choice(np.flatnonzero(constraint.table.next[state, constraint.table.classes] >= 0))))
            state = constraint.table.next[state, constraint.table.classes[ids[-1]]]
        for prompt in ([tokenizer.bos_token_id or end], tokenizer.encode("to")):
            texts.add(decode_continuation(tokenizer, size, prompt, ids))
    assert texts == {" play", " run"} and all(re.fullmatch(regex, text) for text in texts)


def test_bytes_of_both_kinds_of_tokenizers():
    tokenizer = byte_level()
    text = "def naïve(): return '✓ \t\n'"
    assert b"".join(token_bytes(tokenizer, 4096)[t] for t in tokenizer.encode(text)) == text.encode()
    tokenizer = sentencepiece()
    spelled = dict(
        zip(tokenizer.convert_ids_to_tokens(range(len(tokenizer))), token_bytes(tokenizer, len(tokenizer) + 1))
    )
    expected = {"<unk>": None, "</s>": None, "▁pl": b" pl", "ay": b"ay", "<0xE2>": b"\xe2", "✓": "✓".encode()}
    assert {token: spelled[token] for token in expected} == expected
    assert token_bytes(tokenizer, len(tokenizer) + 1)[-1] is None


def test_half_a_character_waits_for_its_other_bytes():
    tokenizer = sentencepiece()
    ids = tokenizer.convert_tokens_to_ids(["<0xE2>", "<0x9C>", "<0x93>", "<0xE2>"])
    assert decode_continuation(tokenizer, len(tokenizer), [1], ids) == "✓\ufffd"


def test_tokenizers_of_other_kinds_decode_whole_texts():
    words = Tokenizer(models.WordPiece({"[UNK]": 0, "play": 1, "##ing": 2, "run": 3}, unk_token="[UNK]"))
    words.pre_tokenizer, words.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")
    with pytest.raises(RequestError, match="byte-level or SentencePiece"):
        token_bytes(tokenizer, 4)
    assert decode_continuation(tokenizer, 4, [1], [2, 3]) == "ing run"
    assert decode_continuation(tokenizer, 4, [1], [3]) == " run"
