"""``specjax grow``: writes a checkpoint of another shape that computes the same function."""

import argparse
import dataclasses
from pathlib import Path

from ..errors import RequestError
from .arguments import Models
from .fields import flag, flags_of
from .output import check_new_directory
from .terminal import status


@dataclasses.dataclass(frozen=True)
class Grow:
    """The flags of the command.

    Attributes:
      draft: grow this trained head of the model instead of the model, for the grown model.
      like: the shape: a config.json, or a directory with one, such as that of a grown model.
      output: the new directory of the checkpoint.
    """

    draft: str | None = flag(None, metavar="HEAD")
    like: Path = flag(metavar="CONFIG")
    output: Path = flag(metavar="DIR")


FLAGS = {"options": flags_of(Models, "model", "revision") | flags_of(Grow)}
COMMON = ("model", "draft", "like", "output")


def run(args: argparse.Namespace) -> None:
    """Grows a model, or a head of the model, and prints the directory."""
    from ..checkpoints.config import read_shape
    from ..checkpoints.heads import load_drafter
    from ..checkpoints.load import load
    from ..heads import Head
    from ..tools.grow.grow import grow_head, grow_model

    check_new_directory(args.output)
    like = read_shape(args.like)
    with status("loading"):
        target = load(args.model, revision=args.revision)
        head = args.draft and load_drafter(args.draft, target)
    if head and not isinstance(head, Head):
        raise RequestError(f"--draft {args.draft} is a language model; it drafts for a grown model as it is")
    with status("growing"):
        if head:
            grow_head(head, target, like, args.output)
        else:
            grow_model(target, like, args.output)
    size = sum(file.stat().st_size for file in args.output.iterdir())
    use = f"--model GROWN_MODEL --draft {args.output}" if head else f"--model {args.output}"
    print(
        f"{args.output}: {args.draft or args.model} in the shape of {args.like}, {size / 1e9:.3g} GB; use it with {use}"
    )
