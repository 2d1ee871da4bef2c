"""``specjax prune``: cuts a draft model out of the target, and heals it by distillation."""

import argparse
import dataclasses
from pathlib import Path

from ..tools.prune import Sizes, prune_target
from .arguments import Models
from .fields import flag, flags_of
from .output import check_new_directory
from .sampling import LARGEST_SEED
from .terminal import status


@dataclasses.dataclass(frozen=True)
class Prune:
    """The flags of the command.

    Attributes:
      importance: how to find the parts to keep: from activations, or by masks that are trained on
        the texts, which takes minutes.
      data: files or directories, as for train; by default Python's standard library.
      output: the new directory of the draft model.
    """

    importance: str = flag("activations", choices=("activations", "masks"))
    data: tuple[str, ...] = flag((), nargs="+", metavar="PATH")
    output: Path = flag(metavar="DIR")


_FORMS = {"steps": dict(least=0), "seed": dict(least=0, most=LARGEST_SEED)}
_SIZES: dict[str, dict] = {field.name: dict(least=1) for field in dataclasses.fields(Sizes)}
_SIZES["layers"]["help"] = "the number of layers, of which the most important are kept"
FLAGS = {
    "options": flags_of(Models, "model", "revision") | flags_of(Prune) | flags_of(prune_target, *_FORMS, forms=_FORMS),
    "sizes to keep, by default the target's": flags_of(Sizes, forms=_SIZES),
}
COMMON = ("model", "output", "layers", "width", "intermediate", "heads", "data", "steps")


def run(args: argparse.Namespace) -> None:
    """Writes the pruned model, heals it, and prints how to use it."""
    from ..checkpoints.load import load
    from ..tools.prune.cut import prune_config
    from ..training.sources import make_sources

    check_new_directory(args.output)
    for source in make_sources(args.data):
        source.list_files()
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
