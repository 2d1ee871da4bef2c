"""The code of ``docs/llama.md`` gives the logits of the model that ``specjax.load`` gives."""

import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from support.reference import logits_after

import specjax

PAGE = (Path(__file__).parents[2] / "docs" / "llama.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)


@pytest.fixture(scope="module")
def page() -> dict:
    """The names that the page's code defines."""
    names = {}
    for block in BLOCKS:
        exec(compile(block, "llama.md", "exec"), names)
    return names


@pytest.fixture(scope="module")
def model():
    return specjax.load("tiny-python", dtype="float32").model


@pytest.mark.slow
def test_the_logits_are_those_of_the_loaded_model(page, model):
    tokens = np.random.default_rng(0).integers(1, 4096, 12)
    logits = page["llama"](jnp.asarray(tokens)[None], jnp.arange(12)[None], jnp.tri(12, dtype=bool))
    for n in (1, 5, 12):
        np.testing.assert_allclose(logits[0, n - 1], logits_after(model, tokens[:n].tolist()), atol=2e-4)


@pytest.mark.slow
def test_a_node_of_the_tree_has_the_logits_of_its_text(page, model):
    np.testing.assert_allclose(page["logits"][0, :3], page["of_tree"][0, :3], atol=1e-4)
    for node, text in ((3, [284, 511, 7, 262]), (4, [284, 511, 7, 1031])):
        np.testing.assert_allclose(page["of_tree"][0, node], logits_after(model, text), atol=2e-4)


def test_the_model_fits_a_screen():
    code = [line for line in BLOCKS[0].splitlines() if line.strip() and not line.startswith(("from", "import", "#"))]
    assert len(code) <= 50
