"""Tokenizers of GGUF files beside those of transformers with the same tokens and merges."""

import inspect
import json
import random

import gguf
import pytest
import transformers
from support.odd_texts import PARTS, odd_texts
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.tokenization_utils_base import generate_merges

from specjax.checkpoints.gguf.reader import open_gguf
from specjax.checkpoints.gguf.tokenizer import read_gguf_tokenizer

SPECIAL, PLAIN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), "<think>"
TEXTS = odd_texts(400, (*SPECIAL, PLAIN))
LEARNT = [inspect.getsource(random)] + [" ".join(PARTS)] * 40
BYTE_LEVEL = {"gpt-2": transformers.GPT2Tokenizer, "qwen2": transformers.Qwen2Tokenizer}
TYPES = {"normal": 1, "unknown": 2, "control": 3, "plain": 4, "byte": 6}


def write(path, architecture: str, model: str, tokens, types, **fields):
    """The tokenizer of a file that has nothing else. ``fields`` are those of ``tokenizer.ggml``."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    for name, value in fields.items():
        if isinstance(value, bool):
            writer.add_bool(f"tokenizer.ggml.{name}", value)
        elif isinstance(value, int):
            writer.add_uint32(f"tokenizer.ggml.{name}", value)
        else:
            (writer.add_array if isinstance(value, list) else writer.add_string)(f"tokenizer.ggml.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_gguf_tokenizer(open_gguf(path))


def learn(pre_tokenizer, **options) -> tuple[list[str], list[str]]:
    """The tokens and the merges of a small tokenizer of bytes, whose last tokens are SPECIAL and PLAIN."""
    learning = Tokenizer(models.BPE())
    learning.pre_tokenizer = pre_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learning.train_from_iterator(LEARNT, trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, **options))
    model = json.loads(learning.to_str())["model"]
    return [*sorted(model["vocab"], key=model["vocab"].get), *SPECIAL, PLAIN], [*map(" ".join, model["merges"])]


def assert_same_ids(ours, theirs) -> None:
    different = [(text, ours(text)["input_ids"], theirs(text)["input_ids"]) for text in TEXTS]
    assert [case for case in different if case[1] != case[2]] == []


def add_tokens(theirs):
    theirs.add_special_tokens({"additional_special_tokens": [*SPECIAL]})
    theirs.add_tokens([transformers.AddedToken(PLAIN, normalized=False)])
    return theirs


@pytest.mark.parametrize("pre", BYTE_LEVEL)
def test_byte_level_tokenizers(pre, tmp_path):
    own = BYTE_LEVEL[pre]
    tokens, merges = learn(own().backend_tokenizer.pre_tokenizer)
    types = [1] * (len(tokens) - 4) + [3] * 3 + [4]
    ours = write(
        tmp_path / "a.gguf", "qwen2", "gpt2", tokens, types, pre=pre, merges=merges, eos_token_id=len(tokens) - 2
    )
    pairs = [tuple(merge.split(" ")) for merge in merges]
    assert_same_ids(ours, add_tokens(own(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs)))
    assert ours.eos_token == "<|im_end|>" and ours.bos_token is None
    assert all(ours.decode(ours(text)["input_ids"]) in (text, normalizers.NFC().normalize_str(text)) for text in TEXTS)


def test_digits_alone(tmp_path):
    """SmolLM's and StarCoder's published tokenizers split digits first, and then as GPT-2's."""
    splits = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokens, merges = learn(pre_tokenizers.Sequence(splits))
    types = [1] * (len(tokens) - 4) + [3] * 3 + [4]
    vocab = {token: i for i, token in enumerate(tokens)}
    theirs = Tokenizer(models.BPE(vocab, [tuple(merge.split(" ")) for merge in merges]))
    theirs.pre_tokenizer = pre_tokenizers.Sequence(splits)
    theirs.decoder = decoders.ByteLevel()
    theirs = add_tokens(PreTrainedTokenizerFast(tokenizer_object=theirs))
    for pre in ("smollm", "starcoder"):
        ours = write(tmp_path / f"{pre}.gguf", "llama", "gpt2", tokens, types, pre=pre, merges=merges)
        assert_same_ids(ours, theirs)


def pieces() -> tuple[list[str], list[int], list[str]]:
    """The tokens, their types and the merges of a small tokenizer of SentencePiece, the likeliest merges first."""
    learning = Tokenizer(models.BPE())
    learning.pre_tokenizer = pre_tokenizers.Metaspace(split=False, prepend_scheme="never")
    lines = [line for text in LEARNT for line in text.split("\n")]
    learning.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=700))
    model = json.loads(learning.to_str())["model"]
    merged = ["".join(merge) for merge in model["merges"]]
    letters = [token for token in model["vocab"] if token not in merged]
    others = {"<unk>": 2, "<s>": 3, "</s>": 3} | {f"<0x{i:02X}>": 6 for i in range(256)}
    kinds = (
        others | dict.fromkeys(merged, 1) | dict.fromkeys(letters, 1) | dict.fromkeys((*SPECIAL, PLAIN), 3) | {PLAIN: 4}
    )
    return [*kinds], [*kinds.values()], [*map(" ".join, model["merges"])]


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_sentencepiece(family, tmp_path):
    tokens, types, _ = pieces()
    scores = [0.0 if kind != 1 else -float(i) for i, kind in enumerate(types)]
    fields = dict(bos_token_id=1, eos_token_id=2, unknown_token_id=0, scores=scores, add_space_prefix=family == "llama")
    ours = write(tmp_path / "a.gguf", family, "llama", tokens, types, **fields)
    vocab = {token: i for i, token in enumerate(tokens)}
    own = transformers.LlamaTokenizer if family == "llama" else transformers.GemmaTokenizer
    order = dict(zip(tokens, scores)) if family == "llama" else {token: -i for i, token in enumerate(tokens)}
    names = dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    names |= {} if family == "llama" else dict(pad_token="<unk>", mask_token="<unk>")
    theirs = add_tokens(own(vocab=vocab, merges=generate_merges(vocab, order), add_bos_token=True, **names))
    assert_same_ids(ours, theirs)
    assert ours("a")["input_ids"][0] == 1 and all(
        "\ufffd" not in ours.decode(ours(text)["input_ids"]) for text in TEXTS
    )


def test_sentencepiece_with_listed_merges(tmp_path):
    """The files of Gemma 4. The merges stand in another order than the tokens."""
    tokens, types, merges = pieces()
    tokens, types = tokens[:259] + tokens[:258:-1], types[:259] + types[:258:-1]
    fields = dict(bos_token_id=1, eos_token_id=2, unknown_token_id=0, scores=[0.0] * len(tokens), merges=merges)
    ours = write(tmp_path / "a.gguf", "gemma4", "gemma4", tokens, types, add_space_prefix=False, **fields)
    names = dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<unk>", mask_token="<unk>")
    pairs = [tuple(merge.split(" ")) for merge in merges]
    vocab = {token: i for i, token in enumerate(tokens)}
    theirs = transformers.GemmaTokenizer(vocab=vocab, merges=pairs, add_bos_token=True, **names)
    assert_same_ids(ours, add_tokens(theirs))


def test_ends_are_added_where_the_file_says(tmp_path):
    tokens, merges = learn(pre_tokenizers.ByteLevel(add_prefix_space=False))
    types = [1] * (len(tokens) - 4) + [3] * 3 + [4]
    first, last = len(tokens) - 3, len(tokens) - 2
    fields = dict(pre="llama-bpe", merges=merges, bos_token_id=first, eos_token_id=last)
    read = lambda **more: write(tmp_path / "a.gguf", "llama", "gpt2", tokens, types, **fields | more)
    ids = lambda tokenizer: tokenizer("x")["input_ids"]
    (x,) = ids(read(add_bos_token=False))
    assert ids(read()) == [first, x]  # Llama 3 begins texts where the file does not say
    assert ids(read(add_eos_token=True)) == [first, x, last]
    assert read()("x", "x")["input_ids"] == [first, x, first, x]
