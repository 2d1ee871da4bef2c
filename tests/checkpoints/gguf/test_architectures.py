"""Each architecture: a GGUF file and the Hugging Face checkpoint that it was made of are one model."""

import numpy as np
import pytest
from support.gguf_cases import CASES, assert_same, raw_config
from support.gguf_files import random_tensors, replace, write_gguf
from support.golden import load_tensors

from specjax.checkpoints.config import from_hf
from specjax.checkpoints.gguf.configs import read_gguf_config
from specjax.checkpoints.gguf.reader import GgufFile, open_gguf
from specjax.checkpoints.placement import Placement
from specjax.checkpoints.tensors import load_model
from specjax.errors import CheckpointError, ConfigError


@pytest.mark.parametrize("name", CASES)
def test_a_file_is_the_model_that_it_was_made_of(name, tmp_path):
    raw = raw_config(name)
    tensors = random_tensors(raw)
    path = write_gguf(tmp_path / "model.gguf", tensors, raw)
    ours = load_model(path, Placement(dtype="float32"))
    expected = from_hf(raw)
    assert ours.config == expected.replace(dtype="bfloat16")
    assert_same(ours, load_tensors(tensors, raw | {"dtype": "float32"}))


@pytest.mark.parametrize(
    "name, key, value, message",
    [
        ("granite", "granite.rope.scaling.finetuned", False, "needs rotary positions"),
        ("apertus", "xielu.beta", [0.5, 0.25], "it must be 0.5"),
        ("llama4", "llama4.attention.sliding_window", 0, "must have chunks"),
        ("gemma4", "gemma4.expert_count", 8, "not supported"),
        ("gemma4", "gemma4.feed_forward_length", [12, 24, 24, 24], "share keys"),
        ("gemma4", "gemma4.attention.head_count_kv", [1, 1], "one for each of 4 layers"),
    ],
)
def test_metadata_that_change_the_maths_are_refused(name, key, value, message, tmp_path):
    raw = raw_config(name)
    path = write_gguf(tmp_path / "model.gguf", random_tensors(raw), raw, replace(key, value))
    with pytest.raises(ConfigError, match=message):
        load_model(path, Placement(dtype="float32"))


def test_divisors_of_gemma4_say_which_dimensions_turn_and_nothing_else(tmp_path):
    raw = raw_config("gemma4")
    path = write_gguf(tmp_path / "model.gguf", random_tensors(raw), raw)
    file = open_gguf(path)
    for tensors, message in (
        ({}, "is missing"),
        ({"rope_freqs.weight": np.float32([1, 1, 4, 8])}, "scales frequencies"),
    ):
        others = {name: tensor for name, tensor in file.tensors.items() if name != "rope_freqs.weight"}
        with pytest.raises(ConfigError, match=message):
            read_gguf_config(GgufFile(path, file.metadata, others | tensors))


def test_biases_of_distances_in_each_layer_are_refused(tmp_path):
    """UMT5's files have T5's architecture."""
    raw = raw_config("t5")
    own = {"dec.blk.1.attn_rel_b.weight": np.ones((8, 3), np.float32)}
    path = write_gguf(tmp_path / "model.gguf", random_tensors(raw), raw, form=lambda written: written | own)
    with pytest.raises(CheckpointError, match="dec.blk.1.attn_rel_b.weight"):
        load_model(path, Placement(dtype="float32"))
