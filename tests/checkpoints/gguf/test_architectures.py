"""Each architecture: a GGUF file and the Hugging Face checkpoint that it was made of are one model."""

import pytest
from support.gguf_cases import CASES, assert_same, raw_config
from support.gguf_files import random_tensors, replace, write_gguf
from support.golden import load_tensors

from specjax.checkpoints.config import from_hf
from specjax.checkpoints.placement import Placement
from specjax.checkpoints.tensors import load_model
from specjax.errors import ConfigError


@pytest.mark.parametrize("name", CASES)
def test_a_file_is_the_model_that_it_was_made_of(name, tmp_path):
    raw = raw_config(name)
    tensors = random_tensors(raw)
    path = write_gguf(tmp_path / "model.gguf", tensors, raw)
    ours = load_model(path, Placement(dtype="float32"))
    expected = from_hf(raw)
    assert ours.config == expected.replace(dtype="bfloat16")
    assert_same(ours, load_tensors(tensors, raw | {"dtype": "float32"}))


def test_granite_without_rotary_positions_is_refused(tmp_path):
    raw = raw_config("granite")
    more = replace("granite.rope.scaling.finetuned", False)
    path = write_gguf(tmp_path / "model.gguf", random_tensors(raw), raw, more)
    with pytest.raises(ConfigError, match="needs rotary positions"):
        load_model(path, Placement(dtype="float32"))
