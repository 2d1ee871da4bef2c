"""Which table is the output matrix: as transformers decides it from the flag and from the tensors."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.golden import read_file
from support.models import tiny_model
from support.reference import logits_of

from specjax.checkpoints.config import from_hf
from specjax.checkpoints.tensors import load_model, save_model
from specjax.errors import SpecjaxWarning

PROMPT = [3, 17, 8, 60, 1, 44]


@pytest.fixture
def own_head(tmp_path):
    """A checkpoint whose configuration ties the tables, with another output matrix in its file."""
    save_model(tiny_model(), tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | {"tie_word_embeddings": True}))
    return tmp_path


def test_a_head_that_differs_from_the_embedding_is_kept(own_head):
    with pytest.warns(SpecjaxWarning, match="lm_head.weight differs from model.embed_tokens.weight; both are used"):
        model = load_model(own_head)
    head = load_file(own_head / "model.safetensors")["lm_head.weight"]
    assert not model.config.tie_embeddings and model.head[...].tobytes() == head.tobytes()
    np.testing.assert_array_equal(logits_of(model, PROMPT), logits_of(tiny_model(), PROMPT))


def test_a_head_that_differs_in_its_last_row_alone_is_kept(own_head):
    path = own_head / "model.safetensors"
    tensors = load_file(path)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    save_file(tensors, path)
    assert load_model(own_head).head is None
    tensors["lm_head.weight"][-1, -1] += 1
    save_file(tensors, path)
    with pytest.warns(SpecjaxWarning, match="both are used"):
        assert load_model(own_head).head is not None


@pytest.mark.parametrize(
    "outer, inner, tied",
    [(None, None, False), (True, None, True), (None, True, True), (False, None, False), (True, False, True)],
)
def test_a_model_of_text_and_images_is_tied_by_either_level(outer, inner, tied):
    _, text = read_file("qwen3_5")
    text = {name: value for name, value in text.items() if name != "tie_word_embeddings"}
    given = lambda flag: {} if flag is None else {"tie_word_embeddings": flag}
    raw = {"model_type": "qwen3_5", "text_config": text | given(inner)} | given(outer)
    assert from_hf(raw).tie_embeddings == tied


@pytest.mark.slow
def test_logits_are_those_of_transformers(own_head):
    torch = pytest.importorskip("torch", reason="models of transformers need torch")
    from transformers import LlamaForCausalLM

    theirs = LlamaForCausalLM.from_pretrained(own_head, dtype=torch.float32)
    with torch.no_grad():
        expected = theirs(torch.tensor([PROMPT])).logits[0].numpy()
    with pytest.warns(SpecjaxWarning):
        ours = logits_of(load_model(own_head), PROMPT)
    np.testing.assert_allclose(ours, expected, atol=1e-4 * np.abs(expected).max())
