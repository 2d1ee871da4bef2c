"""Names to language models: embedded ones, local directories and repositories of the Hugging Face hub."""

import dataclasses
import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import jax

from ..errors import CheckpointError, SpecjaxError
from ..models.config import ModelConfig
from ..models.decoder import Decoder
from .config import read_config, read_json
from .layouts import LAYOUTS, Found
from .tensors import load_model, open_tensors, save_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ZOO = Path(__file__).resolve().parent.parent / "zoo"
"""Where the embedded models and heads lie, each a folder in Hugging Face layout. Models have a tokenizer, heads have none."""

_FILES = ["*.json", "*.safetensors", "tokenizer.model", "*.txt", "*.jinja"]
_TORCH_FILES = ["*.bin", "*.pt"]
"""What is fetched only where there are no safetensors."""


@dataclasses.dataclass(frozen=True, eq=False)
class LanguageModel:
    """A model with its tokenizer.

    Attributes:
      model: the Decoder.
      config: its configuration.
      tokenizer: of transformers.
      name: what it was loaded as.
      generators: the Generators that ``generate`` made for it, so that a second call finds them compiled.
    """

    model: Decoder
    config: ModelConfig
    tokenizer: "PreTrainedTokenizerBase"
    name: str
    generators: dict = dataclasses.field(default_factory=dict, repr=False)


def load(name: str | Path, dtype=None, mesh: jax.sharding.Mesh | None = None) -> LanguageModel:
    """The language model called ``name``: an embedded one, a directory, or a hub id such as "Qwen/Qwen3-0.6B".

    Args:
      dtype: "float32", "bfloat16" or "float16"; by default that of the checkpoint.
      mesh: devices to split the weights over; see ``parallel.make_mesh``.

    Raises CheckpointError where nothing is found or files are damaged, ConfigError where the model is not supported.
    """
    directory = find(name)
    try:
        model = load_model(directory, dtype, mesh)
    except SpecjaxError:
        _refuse_head(name, directory)
        raise
    return LanguageModel(model, model.config, _load_tokenizer(directory), str(name))


def load_tokenizer(name: str | Path) -> tuple["PreTrainedTokenizerBase", ModelConfig]:
    """Tokenizer and configuration of the model called ``name``, without its weights; see ``load``."""
    directory = find(name)
    return _load_tokenizer(directory), read_config(directory)


def save(language_model: LanguageModel, directory: str | Path) -> None:
    """Writes weights, configuration and tokenizer in Hugging Face layout."""
    save_model(language_model.model, directory)
    language_model.tokenizer.save_pretrained(directory)


def embedded() -> list[str]:
    """The names of the models that specjax ships."""
    return [name for name in zoo() if (ZOO / name / "tokenizer.json").exists()]


def zoo() -> list[str]:
    """The names of all that specjax ships, heads too."""
    return sorted(p.parent.name for p in ZOO.glob("*/config.json"))


def find(name: str | Path) -> Path:
    """The directory that ``name`` stands for, downloaded from the hub if need be."""
    if str(name) in zoo():
        return ZOO / name
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if str(name).count("/") == 1 and not str(name).startswith((".", "/", "~")):
        return _download(str(name))
    raise CheckpointError(
        f"no model {str(name)!r}: neither embedded ({', '.join(embedded())}) nor a directory nor a hub id like owner/name"
    )


def _refuse_head(name, directory: Path) -> None:
    """Raises CheckpointError where a head lies in the directory instead of a model. Called where no model can be read."""
    layouts = []
    with suppress(SpecjaxError), ExitStack() as stack:
        found = Found(read_json(directory / "config.json"), open_tensors(directory, stack), str(directory))
        layouts = [layout.name for layout in LAYOUTS.values() if layout.matches(found) and not found.language_model]
    if layouts:
        raise CheckpointError(f"{str(name)!r} is a head ({layouts[0]}), not a language model; name it with draft, or --draft") from None


def _load_tokenizer(directory: Path) -> "PreTrainedTokenizerBase":
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that torch is missing, on every import
    from transformers import AutoTokenizer  # only here: it brings torch along, where there is one

    try:
        return AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # transformers raises whatever its parsers raise
        raise CheckpointError(f"{directory}: no usable tokenizer ({str(error).splitlines()[0]}); add tokenizer.json") from None


def _download(repository: str) -> Path:
    from huggingface_hub import snapshot_download  # only here: nothing else needs the network

    try:
        directory = Path(snapshot_download(repository, allow_patterns=_FILES))
        if any(directory.glob("*.safetensors")):
            return directory
        return Path(snapshot_download(repository, allow_patterns=_FILES + _TORCH_FILES))
    except Exception as error:  # no network, no such repository, no permission: the hub's message says which
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"no model {repository!r}: not a directory here, and the hub says: {reason}") from None
