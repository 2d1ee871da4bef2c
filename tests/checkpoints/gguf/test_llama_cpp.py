"""GGUF files beside llama.cpp's own reading of them: the logprobs of all tokens."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.gguf_cases import raw_config
from support.gguf_files import random_tensors, write_gguf

import specjax
from specjax.training.losses import scores

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "support" / "llama_cpp.py"


def logprobs_of_llama_cpp(path: Path, ids: list[int], count: int) -> tuple[list[int], np.ndarray]:
    """The tokens that llama.cpp adds to a prompt, and the logprobs [count, vocabulary] before each."""
    command = [sys.executable, SCRIPT, "logprobs", path, str(count)]
    text = subprocess.run(command, input=json.dumps(ids), capture_output=True, text=True, timeout=300).stdout
    steps = [json.loads(line) for line in text.splitlines()]
    return [token for token, _ in steps], np.array([[all[str(i)] for i in range(len(all))] for _, all in steps])


@pytest.mark.parametrize("name", ["apertus", "qwen3_next", "gemma4", "gemma4, keys as values", "llama4"])
def test_logprobs(name, tmp_path):
    raw = raw_config(name)
    path = write_gguf(tmp_path / "model.gguf", random_tensors(raw), raw)
    ids = np.random.default_rng(0).integers(3, 32, 10).tolist()
    added, expected = logprobs_of_llama_cpp(path, ids, 6)
    model = specjax.load(path, dtype="float32").model
    found = jax.nn.log_softmax(scores(model, jnp.asarray([ids + added], jnp.int32))[0, len(ids) - 1 : -1])
    np.testing.assert_allclose(found, expected, 0, 1e-3)
