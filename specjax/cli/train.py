"""``specjax train``: a drafter for a model, by a recipe."""

import argparse
import dataclasses
import sys
from pathlib import Path

from .terminal import status

_CHANGES = ("steps", "batch", "length", "every", "prompts", "seed", "on_policy")
"""Keys of a recipe that the command may change, under the same names."""


def run_train(args: argparse.Namespace) -> None:
    """Trains, prints the log's figures on stderr as it goes, and the directory with the drafter in the end."""
    from ..checkpoints.load import load
    from ..training.data import text_files
    from ..training.recipe import read_recipe
    from ..training.run import check_devices, mesh_of, train

    recipe = read_recipe(args.recipe, **{name: getattr(args, name) for name in _CHANGES})
    recipe = dataclasses.replace(recipe, model=args.model or recipe.model or "tiny-python")
    check_devices(recipe)
    text_files(args.data) if args.data else None
    output = args.output or Path("runs") / f"{Path(recipe.model).name}-{recipe.kind}"
    with status("loading"):
        target = load(recipe.model, args.dtype, mesh_of(recipe))
    try:
        train(recipe, target, args.data, output)
    except KeyboardInterrupt:
        print(f"specjax: interrupted; the checkpoints in {output} are good, and the same command goes on from the last", file=sys.stderr)
        raise
    flag = f"--model {recipe.model} --draft {output}"
    print(f"{output}: a drafter of kind {recipe.kind}; see {output}/log.jsonl, and use it with {flag}")
