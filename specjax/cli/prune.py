"""``specjax prune``: cuts a draft model out of the target, and heals it by distillation."""

import argparse

from ..errors import RequestError
from .arguments import add_revision_argument
from .parser import integer, name, path
from .terminal import status


def add_command(commands) -> None:
    about = "cut a draft model out of the target, and heal it by a short distillation"
    command = commands.add_parser("prune", help=about, description=about)
    command.set_defaults(handler=run)
    add = command.add_argument
    add(
        "--model",
        type=name,
        default="tiny-python",
        help="the target: an embedded name, a directory or a hub id (default tiny-python)",
    )
    add_revision_argument(command)
    keeps = "by default the target's"
    add("--layers", type=integer(1), metavar="N", help=f"the most important layers to keep; {keeps}")
    add("--width", type=integer(1), metavar="N", help=f"channels of the residual stream; {keeps}")
    add("--intermediate", type=integer(1), metavar="N", help=f"units of an MLP; {keeps}")
    add("--heads", type=integer(1), metavar="N", help=f"query heads; {keeps}")
    add(
        "--importance",
        choices=("activations", "masks"),
        default="activations",
        help="how to find the parts to keep: from activations (default), or by masks that are trained on the texts, "
        "which takes minutes",
    )
    add(
        "--data",
        type=path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="files or directories, as for train; by default Python's standard library",
    )
    add("--steps", type=integer(0), default=200, metavar="N", help="steps of distillation; 0 for none (default 200)")
    add("--seed", type=integer(0, 2**32 - 1), default=0, metavar="N", help="of windows of text (default 0)")
    add("--output", type=path, required=True, metavar="DIR", help="the new directory of the draft model")


def run(args: argparse.Namespace) -> None:
    """Writes the pruned model, heals it, and prints how to use it."""
    from ..checkpoints.load import load
    from ..training.pruning import Sizes, prune_target
    from ..training.pruning.cut import prune_config

    if args.output.exists():
        raise RequestError(f"--output {args.output} exists; name a new directory")
    sizes = Sizes(args.layers, args.width, args.intermediate, args.heads)
    with status("loading"):
        target = load(args.model, revision=args.revision)
    prune_config(target.config, sizes)
    draft = prune_target(
        target, sizes, args.data, args.output, steps=args.steps, seed=args.seed, importance=args.importance
    )
    config = draft.config
    print(
        f"{args.output}: {config.num_layers} layers of width {config.hidden_size}, {config.num_weights / 1e6:.3g} M of "
        f"{target.config.num_weights / 1e6:.3g} M weights; use it with --model {args.model} --draft {args.output}"
    )
