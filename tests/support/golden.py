"""Models and logits that scripts/golden/make_golden.py recorded."""

import dataclasses
import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from specjax.checkpoints.placement import Placement
from specjax.checkpoints.tensors import load_model
from specjax.models.decoder import Decoder

FILES = sorted((Path(__file__).parents[1] / "models" / "golden").glob("*.safetensors"))
ENCODER_DECODERS = sorted((FILES[0].parent / "encoder_decoders").glob("*.safetensors"))


LLAMA_LIKE = ("llama", "rope", "mistral", "qwen")
"""How the names of models with Llama's layers begin."""


@dataclasses.dataclass
class Case:
    """A model, tokens [B, S], their recorded logits [B, S, V], and ``prompt``, how many tokens the model read at once."""

    model: Decoder
    tokens: jax.Array
    logits: np.ndarray
    prompt: int


def read_file(name: str) -> tuple[dict[str, np.ndarray], dict]:
    """The tensors and the config.json of the file ``name``."""
    with safe_open(next(path for path in FILES + ENCODER_DECODERS if path.stem == name), framework="numpy") as file:
        return {tensor: file.get_tensor(tensor) for tensor in file.keys()}, json.loads(file.metadata()["config"])


def read_golden(name: str) -> Case:
    """The case in the file ``name``. Its model is loaded as a checkpoint."""
    tensors, raw = read_file(name)
    tokens, logits, prompt = (tensors.pop(name) for name in ("tokens", "logits", "prompt"))
    return Case(load_tensors(tensors, raw), jnp.asarray(tokens), logits, int(prompt))


def golden_model(name: str, mesh: jax.sharding.Mesh | None = None) -> Decoder:
    """The model in the file ``name``."""
    tensors, raw = read_file(name)
    recorded = ("tokens", "logits", "prompt", "source", "lengths")
    return load_tensors({name: x for name, x in tensors.items() if name not in recorded}, raw, mesh)


def load_tensors(tensors: dict[str, np.ndarray], raw: dict, mesh: jax.sharding.Mesh | None = None) -> Decoder:
    """The model of a checkpoint with these tensors and this config.json."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(raw))
        save_file(tensors, Path(directory, "model.safetensors"))
        return load_model(directory, Placement(mesh=mesh))
