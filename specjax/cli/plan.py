"""``specjax plan``: memory, traffic and speed of a method on devices that are not at hand."""

import argparse
import dataclasses
import json
from pathlib import Path

from ..errors import RequestError
from .arguments import DTYPES, Models
from .drafting import drafting_flags, drafting_options
from .fields import flag, flags_of
from .terminal import print_table, status

_SETTINGS = ("model", "method", "device", "batch", "max_length", "dtype", "quantize", "draft_quantize", "offload")
"""The settings that have a flag of the same name."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """The flags of the command.

    Attributes:
      config: a TOML file such as those in configs/plans/; flags come first.
      model: the target: a config.json, a directory with one, or an embedded name.
      draft: a draft model, named like --model.
      method: the method; by default draft_model with a draft, merged with several, none without. A
        method with a trained head gets a head of the usual shape.
      device: such as v5e:2x4, v6e:1, h100:8 or h200.
      batch: rows of the batch (default 1).
      max_length: tokens of a row, prompt and output (default 1024).
      dtype: of weights and caches (default bfloat16).
      json: print one JSON object.
    """

    config: Path | None = None
    model: str | None = flag(None, metavar="DIR|CONFIG")
    draft: tuple[str, ...] | None = flag(None, action="append", metavar="DIR|CONFIG")
    method: str | None = None
    device: str | None = flag(None, metavar="NAME:SHAPE")
    batch: int | None = flag(None, least=1)
    max_length: int | None = flag(None, least=2)
    dtype: str | None = flag(None, choices=DTYPES)
    json: bool = False


FLAGS = {
    "options": flags_of(Plan) | flags_of(Models, "mesh", "quantize", "draft_quantize", "offload"),
} | drafting_flags()
COMMON = ("config", "model", "draft", "method", "device", "mesh", "batch", "max_length", "json")


def run(args: argparse.Namespace) -> None:
    """Compiles for the device, and prints the plan."""
    from ..parallel import parse_mesh
    from ..tools.plan import report as plan_report
    from ..tools.plan.settings import make_plan, read_settings

    settings = read_settings(args.config) if args.config else {}
    settings |= {key: getattr(args, key) for key in _SETTINGS if getattr(args, key) is not None}
    settings |= {"draft": args.draft} if args.draft else {}
    settings |= {"mesh": parse_mesh(args.mesh)} if args.mesh else {}
    if drafting := drafting_options(args):
        settings["options"] = settings.get("options", {}) | drafting
    with status("compiling for devices that are not at hand"):
        planned = make_plan(settings)
    if args.json:
        print(json.dumps(planned))
    else:
        print_table(plan_report.table(planned), plan_report.notes(planned))
    if not planned["fits"]:
        raise RequestError(plan_report.too_large(planned))
