"""``specjax grow``: writes a checkpoint of another shape that computes the same function."""

import argparse

from ..errors import RequestError
from .arguments import add_revision_argument
from .parser import name, path
from .terminal import status


def add_command(commands) -> None:
    about = "write a checkpoint of a larger shape that computes the same function, to measure the speed of that shape"
    command = commands.add_parser("grow", help=about, description=about)
    command.set_defaults(handler=run)
    add = command.add_argument
    add(
        "--model",
        type=name,
        default="tiny-python",
        help="the model to grow: an embedded name, a directory or a hub id (default tiny-python)",
    )
    add_revision_argument(command)
    add(
        "--draft",
        type=name,
        metavar="HEAD",
        help="grow this trained head of the model instead of the model, for the grown model",
    )
    add(
        "--like",
        type=path,
        required=True,
        metavar="CONFIG",
        help="the shape: a config.json, or a directory with one, such as that of a grown model",
    )
    add("--output", type=path, required=True, metavar="DIR", help="the new directory of the checkpoint")


def run(args: argparse.Namespace) -> None:
    """Grows a model, or a head of the model, and prints the directory."""
    from ..checkpoints.config import read_shape
    from ..checkpoints.grow import grow_head, grow_model
    from ..checkpoints.heads import load_drafter
    from ..checkpoints.load import load
    from ..heads import Head

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
