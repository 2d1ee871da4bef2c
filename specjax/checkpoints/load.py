"""Loads language models with their tokenizers by name, and saves them."""

import dataclasses
import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from ..core.stored_rows import KV_SCHEMES
from ..errors import CheckpointError, ConfigError, SpecjaxError
from ..models.config import ModelConfig
from ..models.decoder import Decoder
from ..models.offload import check_streaming
from ..parallel import RULES, Rules
from .config import check_scheme, read_config, read_raw
from .files import check_file, is_gguf
from .generation_config import read_sampling
from .gguf.reader import close_gguf, open_gguf
from .gguf.tokenizer import read_gguf_tokenizer
from .hub import find
from .layouts import LAYOUTS, RawCheckpoint
from .placement import Placement
from .tensors import load_model, open_tensors, save_model

if TYPE_CHECKING:
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase  # reads no model


_TOKENIZERS = ("tokenizer.json", "tokenizer.model")


@dataclasses.dataclass(frozen=True, eq=False)
class LanguageModel:
    """A model with its tokenizer.

    Attributes:
      model: the Decoder.
      config: its configuration.
      tokenizer: its tokenizer, a class of transformers.
      name: the name it was loaded by.
      generators: the Generators that ``generate`` made for it. A second call uses them again,
        compiled.
      kv_quantize: "int8" or "fp8", the form of keys and values, or of compressed rows, in its
        cache; None for full ones. Recurrent states stay float32.
      sampling: the options of a request that the checkpoint recommends. ``specjax serve`` and
        conversations on the command line take them as defaults, other calls do not.
    """

    model: Decoder
    config: ModelConfig
    tokenizer: "PreTrainedTokenizerBase"
    name: str
    generators: dict = dataclasses.field(default_factory=dict, repr=False)
    kv_quantize: str | None = None
    sampling: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    def __post_init__(self):
        """Raises RequestError for an unknown form of keys and values."""
        check_scheme("kv_quantize", self.kv_quantize, KV_SCHEMES)
        if self.kv_quantize:
            self.config.refuse_encoder("kv_quantize")


def load(
    name: str | Path,
    dtype=None,
    mesh: jax.sharding.Mesh | None = None,
    revision: str | None = None,
    rules: Rules = RULES,
    adapter: str | Path | None = None,
    quantize: str | None = None,
    kv_quantize: str | None = None,
    offload: bool = False,
) -> LanguageModel:
    """The language model called ``name``, with its tokenizer.

    Args:
      name: an embedded name, a directory, a GGUF file, or a hub id such as "Qwen/Qwen3-0.6B". Any
        part of a split GGUF file stands for all parts.
      dtype: "float32", "bfloat16" or "float16"; by default the checkpoint's, and bfloat16 for a
        GGUF file.
      mesh: devices to split the weights over; see ``parallel.make_mesh``.
      revision: a branch, a tag or a commit of the hub's repository.
      rules: the mesh axis of each logical axis; with ``parallel.WHOLE`` each device holds all
        weights.
      adapter: a LoRA adapter in the layout of PEFT, a directory or a hub id. It is merged into the
        weights as they are read. Its tokenizer, if it has one, replaces the model's.
      quantize: one of ``models.quantised_weights.SCHEMES``, the form of weights in memory, or
        "stored" or "stored:exact" for the numbers of a packed checkpoint; by default weights keep
        their dtype.
      kv_quantize: "int8" or "fp8", the form of keys and values in the model's cache when it is a
        target.
      offload: whether the layers stay in the host's memory and are copied to the device for each
        forward, see ``models.offload``; for a target that is larger than the device's memory.

    Raises CheckpointError where nothing is found or files are damaged, ConfigError for a model that
    is not supported, and RequestError for an empty name, another dtype, a mesh that does not divide
    the model, a revision of a name that is not a hub id, or ``offload`` on a CPU.
    """
    placement = Placement(mesh, rules, dtype, quantize, offload)
    check_scheme("kv_quantize", kv_quantize, KV_SCHEMES)
    if offload:
        check_streaming(mesh)
    directory = find(name, revision)
    adapter_directory = None if adapter is None else find(adapter)
    own = adapter_directory or directory
    try:
        # The weights use the memory that reading the tokenizer leaves. Errors of the configuration
        # come before both.
        placement.split(read_config(directory))
        tokenizer = _read_tokenizer(own if any((own / file).exists() for file in _TOKENIZERS) else directory)
        model = load_model(directory, placement, adapter_directory)
    except (CheckpointError, ConfigError):
        _refuse_head(name, directory)
        raise
    sampling = read_sampling(directory)
    close_gguf()
    return LanguageModel(model, model.config, tokenizer, str(name), kv_quantize=kv_quantize, sampling=sampling)


def load_tokenizer(name: str | Path, revision: str | None = None) -> tuple["PreTrainedTokenizerBase", ModelConfig]:
    """Tokenizer and configuration of the model called ``name``, without its weights."""
    directory = find(name, revision)
    return _read_tokenizer(directory), read_config(directory)


def save(language_model: LanguageModel, directory: str | Path) -> None:
    """Writes weights, configuration and tokenizer in Hugging Face layout.

    Raises CheckpointError for a directory that cannot be written.
    """
    save_model(language_model.model, directory)
    try:
        language_model.tokenizer.save_pretrained(directory)
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be written ({error}); name another directory") from None


def _refuse_head(name, directory: Path) -> None:
    """Raises CheckpointError where the directory holds a head.

    ``load`` calls it where the directory holds no readable language model.
    """
    layouts = []
    with suppress(SpecjaxError), ExitStack() as stack:
        checkpoint = RawCheckpoint(read_raw(directory), open_tensors(directory, stack), str(directory))
        layouts = [
            layout.name for layout in LAYOUTS.values() if layout.matches(checkpoint) and not checkpoint.language_model
        ]
    if layouts:
        raise CheckpointError(
            f"{str(name)!r} is a head ({layouts[0]}), not a language model; name it with draft, or --draft"
        ) from None


def _read_tokenizer(directory: Path) -> "PreTrainedTokenizerBase":
    """The tokenizer of a checkpoint. Python files that it names are never run."""
    # Without this, transformers prints that PyTorch is missing.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    if is_gguf(directory):
        return read_gguf_tokenizer(open_gguf(directory))
    # Here, because it imports torch if it is installed. From the file, because pyright reads all
    # models of transformers for a name of the package.
    from transformers.models.auto.tokenization_auto import AutoTokenizer

    try:
        for path in directory.iterdir():  # the read of a pipe would wait for ever
            if path.exists() and not path.is_dir():
                check_file(path)
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except CheckpointError:
        raise
    except Exception as error:  # transformers lets any error of its parsers through
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        mend = "download its files again" if (directory / _TOKENIZERS[0]).exists() else f"add {_TOKENIZERS[0]}"
        raise CheckpointError(f"{directory}: no usable tokenizer ({reason}); {mend}") from None
    # Without its files, transformers makes a tokenizer that knows no text.
    files = tokenizer.vocab_files_names.values()
    if files and not any((directory / file).exists() for file in (*files, *_TOKENIZERS)):
        raise CheckpointError(f"{directory}: no tokenizer; add tokenizer.json")
    return tokenizer
