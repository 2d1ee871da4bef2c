"""``specjax train``: trains a drafter for a model by a recipe."""

import argparse
import dataclasses
from pathlib import Path

from ..errors import RequestError
from ..training.kinds import KINDS
from ..training.kinds.boost import BoostShape
from ..training.recipe import Recipe
from .arguments import HOSTS, Models
from .fields import flag, flags_of
from .output import check_directory
from .terminal import status

_CHANGES = ("steps", "batch", "length", "every", "prompts", "seed", "on_policy")
"""The keys of a recipe that have a flag of the same name."""


@dataclasses.dataclass(frozen=True)
class Train:
    """The flags of the command.

    Attributes:
      model: the target: an embedded name, a directory or a hub id; by default the recipe's, or
        tiny-python.
      data: files of text or conversations (text, JSON lines, JSON, CSV, Parquet), directories of
        them, or datasets such as hf://datasets/OWNER/NAME, each with its share of the windows; by
        default the recipe's, or Python's standard library.
      column: column of --data with the text or the conversation.
      log: the log of rounds from which recipe feedback learns, see specjax generate --feedback-log;
        --data is then the text that is replayed against forgetting.
      draft: the draft that recipes of kind feedback and draft continue, or the head that those of
        kind eagle3 and online continue, by name like --model; by default the recipe's start.
      output: directory of the drafter, its log and its checkpoints; a run found there continues
        (default runs/MODEL-KIND).
    """

    recipe: str = flag(
        metavar="KIND|FILE", help=f"a kind ({', '.join(KINDS)}), or a TOML file such as those in configs/"
    )
    model: str | None = None
    data: tuple[str, ...] = flag((), nargs="+", metavar="PATH[=WEIGHT]")
    column: str | None = None
    log: Path | None = flag(None, metavar="DIR")
    draft: str | None = None
    output: Path | None = flag(None, metavar="DIR")


_UNSET: dict[str, dict] = {name: dict(default=None) for name in (*_CHANGES, "drafts")}
_UNSET["on_policy"] |= dict(type=str, metavar="WRITER")
FLAGS = {
    "options": flags_of(Train) | flags_of(Models, "revision", "dtype", "mesh"),
    "changes of the recipe": flags_of(Recipe, *_CHANGES, forms=_UNSET) | flags_of(BoostShape, "drafts", forms=_UNSET),
} | HOSTS
COMMON = ("recipe", "model", "data", "output", "steps", "batch", "length", "draft")


def _continue(recipe, draft: str):
    """The shape of the recipe, with ``draft`` as the model to continue."""
    if not hasattr(recipe.head, "start"):
        raise RequestError(f"--draft continues a drafter, and kind {recipe.kind!r} begins a new head; leave it out")
    return dataclasses.replace(recipe.head, start=draft)


def run(args: argparse.Namespace) -> None:
    """Trains a drafter, with the log's figures on stderr, and prints the drafter's directory."""
    from ..checkpoints.load import load
    from ..training.boost_tuning import boost
    from ..training.feedback.rounds import list_files
    from ..training.feedback.run import train_from_log
    from ..training.recipe import MeshShape, read_recipe
    from ..training.run import check_run, train
    from ..training.sources import Source, make_sources

    # 1. Read the recipe, and change it by the flags.
    recipe = read_recipe(args.recipe, **{name: getattr(args, name) for name in _CHANGES})
    recipe = dataclasses.replace(recipe, model=args.model or recipe.model or "tiny-python")
    if args.mesh is not None:
        recipe = dataclasses.replace(recipe, mesh=MeshShape.parse(args.mesh))
    recipe.mesh.check_devices()
    if args.column and not args.data:
        raise RequestError(
            "--column names a column of --data; give --data, or name the column in the recipe's [[data]]"
        )
    sources = make_sources([Source.parse(text, args.column or "") for text in args.data]) or recipe.data
    for source in sources:
        source.list_files()
    if args.drafts is not None:
        if not isinstance(recipe.head, BoostShape):
            raise RequestError(f"--drafts belongs to kind boost, not to {recipe.kind}; leave it out")
        recipe = dataclasses.replace(recipe, head=dataclasses.replace(recipe.head, drafts=args.drafts))
    if args.draft is not None:
        recipe = dataclasses.replace(recipe, head=_continue(recipe, args.draft))
    if (args.log is not None) != KINDS[recipe.kind].reads_log:
        mend = "name it with --log" if args.log is None else "leave --log out"
        raise RequestError(f"recipe feedback alone learns from a log of rounds, and needs one; {mend}")
    output = args.output or Path("runs") / f"{Path(recipe.model).name}-{recipe.kind}"
    check_directory(output)
    if isinstance(recipe.head, BoostShape):
        for m in range(recipe.head.drafts):
            check_run("draft", output / str(m + 1))
    else:
        check_run(recipe.kind, output)
    if args.log is not None:
        list_files(args.log)
    # 2. Load the target.
    with status("loading"):
        target = load(recipe.model, args.dtype, recipe.mesh.make(), args.revision)
    # 3. Train.
    try:
        if args.log is not None:
            train_from_log(recipe, target, args.log, sources, output)
        else:
            (boost if recipe.kind == "boost" else train)(recipe, target, sources, output)
    except KeyboardInterrupt:
        state = f"the checkpoints in {output} are good, and the same command continues from the last"
        raise KeyboardInterrupt(state) from None
    # 4. Print how to use the drafter.
    if isinstance(recipe.head, BoostShape):
        drafts = " ".join(f"--draft {output / str(m + 1)}" for m in range(recipe.head.drafts))
        print(f"{output}: {recipe.head.drafts} drafts; use them with --model {recipe.model} --method merged {drafts}")
    else:
        flag = f"--model {recipe.model} --draft {output}"
        print(f"{output}: a drafter of kind {recipe.kind}; see {output}/log.jsonl, and use it with {flag}")
