"""GGUF files beside transformers' own reading of them: logits, unpacked numbers, splits and ids of texts."""

import json
import re
import subprocess
import sys
from pathlib import Path

import gguf
import jax.numpy as jnp
import numpy as np
import pytest
import transformers
from support.gguf_cases import CASES, raw_config
from support.gguf_files import random_tensors, their_model, write_gguf
from support.odd_texts import odd_texts
from tokenizers import pre_tokenizers

import specjax
from specjax.checkpoints.convert import convert
from specjax.checkpoints.gguf.packed import PackedTensor
from specjax.checkpoints.gguf.pre_tokenizers import PRE_TOKENIZERS
from specjax.checkpoints.gguf.reader import open_gguf
from specjax.checkpoints.load import load_tokenizer
from specjax.training.losses import scores

pytestmark = pytest.mark.slow

READ = [
    "llama", "llama, tied", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "gemma2", "gemma3", "phi3", "gpt2", "starcoder2",
]  # fmt: skip
"""The cases whose tensors transformers reads from a GGUF file."""

NOT_READ = [name for name in CASES if name not in READ and "phi3" not in name and "t5" not in name]
"""The other cases, which transformers reads after ``convert``."""


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="models of transformers need torch")


def assert_same_logits(torch, ours, theirs, tokens, most: float = 1e-5) -> None:
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens)).logits.numpy()
    found = np.asarray(scores(ours, jnp.asarray(tokens, jnp.int32)))
    assert np.abs(found - expected).max() / np.abs(expected).max() < most


@pytest.mark.parametrize("name", READ)
def test_logits_of_small_files(name, tmp_path, torch):
    raw = raw_config(name)
    path = write_gguf(tmp_path / "model.gguf", random_tensors(raw), raw)
    tokens = np.random.default_rng(0).integers(3, 32, (2, 10))
    assert_same_logits(torch, specjax.load(path, dtype="float32").model, their_model(torch, path, raw), tokens)


@pytest.mark.parametrize("name", NOT_READ)
def test_logits_of_converted_files(name, tmp_path, torch):
    raw = raw_config(name)
    path = write_gguf(tmp_path / "model.gguf", random_tensors(raw), raw)
    convert(path, tmp_path / "new", "float32")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "new").eval()
    tokens = np.random.default_rng(0).integers(3, 32, (2, 10))
    assert_same_logits(torch, specjax.load(path, dtype="float32").model, theirs, tokens, 1e-4)


def test_unpacked_numbers(torch):
    """Random blocks of each packed type that transformers has too, in float32."""
    from transformers.integrations.gguf import dequant

    rng = np.random.default_rng(0)
    for number, name in dequant.GGML_NAME.items():
        if name not in ("Q4_0", "Q4_1", "Q8_0", "IQ4_NL", "IQ4_XS") and not re.fullmatch(r"Q\d_K", name):
            continue
        numbers, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)]
        data = rng.integers(0, 60, (4, 8 * size), np.uint8)
        theirs = dequant.dequantize(torch.from_numpy(data.copy()).flatten(), number).numpy().reshape(4, -1)
        ours = PackedTensor(name, [4, 8 * numbers], data)[:]
        np.testing.assert_allclose(ours, theirs, 1e-6, err_msg=name)


def test_splits():
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    known = GGUF_PRE_TOKENIZER_SPLITS.keys() & PRE_TOKENIZERS.keys()
    assert len(known) > 12
    assert {name: PRE_TOKENIZERS[name].splits for name in known} == {
        name: (GGUF_PRE_TOKENIZER_SPLITS[name],) for name in known
    }


def test_a_real_model(smollm2_file, torch):
    """SmolLM2: logits of a prompt in float32, and ids of 500 odd strings."""
    ours = specjax.load(smollm2_file, dtype="float32")
    ids = ours.tokenizer("The capital of France is")["input_ids"]
    assert_same_logits(torch, ours.model, their_model(torch, smollm2_file), [ids])
    theirs = transformers.AutoTokenizer.from_pretrained(smollm2_file.parent, gguf_file=smollm2_file.name)
    # transformers does not know this file's splits, which set digits apart first.
    digits = pre_tokenizers.Digits(individual_digits=True)
    usual = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, usual])
    texts = odd_texts(500, ("<|im_start|>", "<|im_end|>", "<|endoftext|>"))
    assert ours.tokenizer(texts)["input_ids"] == theirs(texts)["input_ids"]
    conversation = [{"role": "user", "content": "Hi"}]
    text = lambda tokenizer: tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    assert text(ours.tokenizer) == text(theirs)


def ids_of_llama_cpp(path: Path, texts: list[str]) -> list[list[int]]:
    script = Path(__file__).parents[2] / "support" / "llama_cpp.py"
    command = [sys.executable, script, "ids", path]
    lines = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, timeout=300).stdout
    return [*map(json.loads, lines.splitlines())]


def test_ids_of_llama_cpp(smollm2_file):
    ours = specjax.load(smollm2_file).tokenizer
    texts = odd_texts(500, ("<|im_start|>", "<|im_end|>", "<|endoftext|>"))
    assert [ours.encode(text, add_special_tokens=False) for text in texts] == ids_of_llama_cpp(smollm2_file, texts)


@pytest.mark.parametrize("split", ["bloom", "falcon", "minimax-m2"])
def test_splits_of_llama_cpp(split, smollm2_file, tmp_path):
    """SmolLM2's tokens and merges with another split, which gives other ids to a seventh of these texts or more."""
    known = open_gguf(smollm2_file).metadata
    raw = raw_config("llama") | {"vocab_size": len(known["tokenizer.ggml.tokens"])}

    def more(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(split)
        writer.add_token_list(known["tokenizer.ggml.tokens"])
        writer.add_token_merges(known["tokenizer.ggml.merges"])
        writer.add_token_types(known["tokenizer.ggml.token_type"])

    path = write_gguf(tmp_path / "model.gguf", random_tensors(raw), raw, more)
    texts = [text for text in odd_texts(150, ()) if text]
    ours, usual = load_tokenizer(path)[0], load_tokenizer(smollm2_file)[0]
    ids = ours(texts, add_special_tokens=False)["input_ids"]
    assert ids == ids_of_llama_cpp(path, texts)
    assert sum(a != b for a, b in zip(ids, usual(texts, add_special_tokens=False)["input_ids"])) > len(texts) / 7


def test_a_real_model_converted(smollm2_file, tmp_path, torch):
    convert(smollm2_file, tmp_path / "new")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "new", dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    ids = tokenizer("def quicksort(items):")["input_ids"]
    ours = specjax.load(smollm2_file)
    assert ids == ours.tokenizer("def quicksort(items):")["input_ids"]
    assert_same_logits(torch, specjax.load(tmp_path / "new", dtype="float32").model, theirs, [ids])
    assert theirs.generation_config.eos_token_id == [2]
