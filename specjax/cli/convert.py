"""``specjax convert``: writes a GGUF file, or a quantised model, as a Hugging Face checkpoint."""

import argparse
import dataclasses
from pathlib import Path

from ..checkpoints.placement import STORED
from ..models.quantised_weights import SCHEMES
from .arguments import DTYPES
from .fields import flag, flags_of
from .output import check_new_directory
from .terminal import status

USAGE = "specjax convert MODEL DIR [option ...]"


@dataclasses.dataclass(frozen=True)
class Convert:
    """The flags of the command.

    Attributes:
      file: the GGUF file, any part of a split one, or a directory with one; with --quantize any
        model that --model names.
      output: the new directory of the checkpoint.
      dtype: dtype of the weights; by default bfloat16 for a GGUF file, else the model's.
      quantize: form of the weights; specjax alone reads the checkpoint.
    """

    file: Path = flag(None, flags=(), metavar="MODEL")
    output: Path = flag(None, flags=(), metavar="DIR")
    dtype: str | None = flag(None, choices=DTYPES)
    quantize: str | None = flag(None, choices=(*SCHEMES, *STORED))


FLAGS = {"options": flags_of(Convert)}
COMMON = ("file", "output", "dtype")


def run(args: argparse.Namespace) -> None:
    """Writes the checkpoint, and prints its directory."""
    from ..checkpoints.convert import convert

    check_new_directory(args.output)
    with status("converting"):
        convert(args.file, args.output, args.dtype, args.quantize)
    form = args.quantize or args.dtype or "bfloat16"
    size = sum(path.stat().st_size for path in args.output.iterdir())
    print(f"{args.output}: {args.file} in {form}, {size / 1e9:.3g} GB; use it with --model {args.output}")
