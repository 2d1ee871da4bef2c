"""Language models by name: revisions, tokenizers with code of their own, refusals in one line."""

import io
import json
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from support.models import TINY, byte_tokenizer, language_model, tiny_model

import specjax
from specjax import load_drafter
from specjax.checkpoints.load import load_tokenizer
from specjax.checkpoints.tensors import save_model
from specjax.errors import CheckpointError, RequestError, SpecjaxWarning


@pytest.fixture
def checkpoint(tmp_path):
    specjax.save(language_model(tiny_model()), tmp_path / "model")
    return tmp_path / "model"


def weights(loaded) -> bytes:
    return np.asarray(loaded.model.embed[...]).tobytes()


def test_a_directory_with_its_tokenizer(checkpoint):
    loaded = specjax.load(checkpoint)
    assert weights(loaded) == weights(language_model(tiny_model())) and loaded.config == loaded.model.config
    assert loaded.tokenizer.get_vocab() == byte_tokenizer().get_vocab()


def test_a_directory_without_tokenizer(checkpoint):
    (checkpoint / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="no usable tokenizer") as error:
        specjax.load(checkpoint)
    assert "\n" not in str(error.value)


def test_weights_under_another_name_are_named_and_a_model_is_no_adapter(checkpoint):
    with pytest.raises(CheckpointError, match="adapter_model.safetensors is missing; name a directory with an adapter"):
        specjax.load(checkpoint, adapter=checkpoint)
    (checkpoint / "model.safetensors").rename(checkpoint / "model.fp16.safetensors")
    with pytest.raises(
        CheckpointError, match="a whole checkpoint, or rename model.fp16.safetensors if it is the model"
    ):
        specjax.load(checkpoint)


def test_a_tokenizer_that_is_there_but_not_read_is_not_asked_for(checkpoint):
    """Transformers reads no config.json that begins with the mark that Windows writes before UTF-8."""
    config = (checkpoint / "config.json").read_bytes()
    (checkpoint / "config.json").write_bytes(b"\xef\xbb\xbf" + config)
    with pytest.raises(CheckpointError, match="no usable tokenizer .*config.json.*; download its files again"):
        specjax.load(checkpoint)


def test_a_family_with_an_empty_tokenizer_of_its_own(checkpoint):
    """Transformers makes the family's tokenizer without any tokens."""
    config = json.loads((checkpoint / "config.json").read_text()) | {"model_type": "qwen2"}
    (checkpoint / "config.json").write_text(json.dumps(config))
    for file in checkpoint.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(CheckpointError, match="no tokenizer; add tokenizer.json"):
        load_tokenizer(checkpoint)


TEXTS = ["Hello world", "def f(x):\n    return x*12345", "a  b   c\t\td", "🙂 and 中文", "Ünïcödé ﬁ ½", ""]


def test_a_directory_with_tokenizer_model_alone(checkpoint):
    """The ids are those of the library that makes such files."""
    sentences = (Path(__file__).parents[2] / "docs/methods.md").read_text().splitlines()
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=written, vocab_size=500, model_type="bpe", byte_fallback=True,
        bos_id=1, eos_id=2, unk_id=0, remove_extra_whitespaces=False, normalization_rule_name="identity",
        minloglevel=2,
    )  # fmt: skip
    for file in checkpoint.glob("*token*"):
        file.unlink()
    save_model(tiny_model(vocab_size=500), checkpoint)
    (checkpoint / "tokenizer.model").write_bytes(written.getvalue())
    (checkpoint / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer", "add_bos_token": true}')
    judge = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    tokenizer = specjax.load(checkpoint).tokenizer
    for text in TEXTS:
        assert tokenizer.encode(text) == [1, *judge.encode(text)]


@pytest.mark.parametrize("named", [{"tokenizer_class": "Own"}, {"tokenizer_class": "PreTrainedTokenizerFast"}, {}])
def test_no_code_of_a_checkpoint_runs(checkpoint, tmp_path, monkeypatch, named):
    """The tokenizer names a module; it does not run, even if the user would answer yes to a prompt."""
    written = tmp_path / "executed"
    (checkpoint / "own.py").write_text(
        f"open({str(written)!r}, 'w').close()\n"
        "from transformers import PreTrainedTokenizerFast\n\n\nclass Own(PreTrainedTokenizerFast):\n    pass\n"
    )
    config = json.loads((checkpoint / "tokenizer_config.json").read_text())
    own = named | {"auto_map": {"AutoTokenizer": ["own.Own", "own.Own"], "AutoConfig": "own.Own"}}
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(config | own))
    raw = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(raw | {"auto_map": own["auto_map"]}))
    monkeypatch.setattr("builtins.input", lambda *prompt: "y")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    for read in (specjax.load, load_tokenizer):
        with suppress(CheckpointError):  # transformers may still read tokenizer.json
            read(checkpoint)
        assert not written.exists()


def test_a_pipe_in_the_place_of_the_tokenizer_is_refused(checkpoint):
    (checkpoint / "tokenizer.json").unlink()
    os.mkfifo(checkpoint / "tokenizer.json")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not a regular file"):
        specjax.load(checkpoint)


@pytest.mark.parametrize("dtype", ["int8", "float64", "abc", ""])
def test_another_dtype_is_refused_before_anything_is_read(dtype):
    with pytest.raises(RequestError, match="must be one of float32, bfloat16, float16"):
        specjax.load("nobody/nothing", dtype=dtype)


def test_a_revision_reaches_the_hub(checkpoint, monkeypatch):
    asked = []

    def snapshot_download(repository, *, revision=None, allow_patterns=None):
        asked.append((repository, revision))
        return str(checkpoint)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    loaded = specjax.load("owner/name", revision="v1.0")
    assert loaded.name == "owner/name" and loaded.config.vocab_size == TINY.vocab_size
    assert load_tokenizer("owner/name", revision="abc123")[1] == loaded.config
    load_drafter("owner/name", loaded, revision="v2")
    specjax.load("owner/name")
    assert [revision for _, revision in asked] == ["v1.0", "abc123", "v2", "v2", None]
    assert {repository for repository, _ in asked} == {"owner/name"}


def test_only_a_hub_id_has_a_revision(checkpoint):
    target = language_model(tiny_model())
    for name, kind in (("tiny-python", "an embedded name"), (checkpoint, "a directory")):
        for read in (
            specjax.load,
            load_tokenizer,
            lambda name, revision: load_drafter(name, target, revision=revision),
        ):
            with pytest.raises(
                RequestError, match=f"revision is 'main', and .* is {kind}; only hub ids have revisions"
            ):
                read(name, revision="main")


def test_a_directory_that_cannot_be_written_gets_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written") as error:
        specjax.save(language_model(tiny_model()), tmp_path / "file")
    assert "\n" not in str(error.value)


def test_the_sampling_options_of_a_checkpoint_are_those_of_its_generation_config(checkpoint):
    assert specjax.load(checkpoint).sampling == {}
    recommended = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05, "max_new_tokens": 64}
    others = {"do_sample": True, "pad_token_id": 0, "transformers_version": "5.0.0", "min_p": None}
    (checkpoint / "generation_config.json").write_text(json.dumps(recommended | others))
    assert specjax.load(checkpoint).sampling == recommended


@pytest.mark.parametrize("wrong", [{"top_p": 0}, {"temperature": "hot"}, {"top_k": -5}, {"max_new_tokens": 0}])
def test_a_recommendation_that_no_request_may_have_is_ignored_with_a_warning(checkpoint, wrong):
    (checkpoint / "generation_config.json").write_text(json.dumps({"min_p": 0.1} | wrong))
    with pytest.warns(SpecjaxWarning, match=f"generation_config.json: {[*wrong][0]} must be .*; it is ignored"):
        assert specjax.load(checkpoint).sampling == {"min_p": 0.1}
