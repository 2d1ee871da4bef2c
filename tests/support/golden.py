"""Models and logits that scripts/make_golden.py recorded."""

import dataclasses
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from specjax.checkpoints.tensors import load_model
from specjax.models.decoder import Decoder

FILES = sorted((Path(__file__).parents[1] / "models" / "golden").glob("*.safetensors"))


@dataclasses.dataclass
class Case:
    """A model, tokens [B, S], their recorded logits [B, S, V], and ``prompt``, how many tokens the model read at once."""

    model: Decoder
    tokens: jax.Array
    logits: np.ndarray
    prompt: int


def read_golden(path: Path) -> Case:
    """The case in a file. Its model is loaded as a checkpoint."""
    with tempfile.TemporaryDirectory() as directory:
        with safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            Path(directory, "config.json").write_text(file.metadata()["config"])
        tokens, logits, prompt = (tensors.pop(name) for name in ("tokens", "logits", "prompt"))
        save_file(tensors, Path(directory, "model.safetensors"))
        return Case(load_model(directory), jnp.asarray(tokens), logits, int(prompt))


def golden_model(name: str) -> Decoder:
    """The model in the file ``name``."""
    return read_golden(next(path for path in FILES if path.stem == name)).model
