"""``specjax convert``: writes a GGUF file as an ordinary Hugging Face checkpoint."""

import argparse
import dataclasses
from pathlib import Path

from .arguments import DTYPES
from .fields import flag, flags_of
from .output import check_new_directory
from .terminal import status

USAGE = "specjax convert model.gguf DIR [option ...]"


@dataclasses.dataclass(frozen=True)
class Convert:
    """The flags of the command.

    Attributes:
      file: the GGUF file, any part of a split one, or a directory with one.
      output: the new directory of the checkpoint.
      dtype: dtype of the weights.
    """

    file: Path = flag(None, flags=(), metavar="model.gguf")
    output: Path = flag(None, flags=(), metavar="DIR")
    dtype: str = flag("bfloat16", choices=DTYPES)


FLAGS = {"options": flags_of(Convert)}
COMMON = ("file", "output", "dtype")


def run(args: argparse.Namespace) -> None:
    """Writes the checkpoint, and prints its directory."""
    from ..checkpoints.convert import convert

    check_new_directory(args.output)
    with status("converting"):
        convert(args.file, args.output, args.dtype)
    size = sum(path.stat().st_size for path in args.output.iterdir())
    print(f"{args.output}: {args.file} in {args.dtype}, {size / 1e9:.3g} GB; use it with --model {args.output}")
