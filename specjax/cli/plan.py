"""``specjax plan``: memory, traffic and speed of a method on devices that are not at hand."""

import argparse
import json

from ..errors import RequestError
from ..models.quantised import SCHEMES
from .arguments import add_mesh_argument, add_offload_argument, add_quantize_argument
from .drafting import add_drafting_flags, given_drafting
from .parser import integer, name, path
from .terminal import print_table, status

_SETTINGS = ("model", "method", "device", "batch", "max_length", "dtype", "quantize", "draft_quantize", "offload")
"""The settings that have a flag of the same name."""


def add_command(commands) -> None:
    about = "predict memory and speed on TPUs or GPUs that are not at hand, from configurations alone"
    command = commands.add_parser("plan", help=about, description=about)
    command.set_defaults(handler=run)
    add = command.add_argument
    add("--config", type=path, metavar="FILE", help="a TOML file such as those in configs/plans/; flags come first")
    add(
        "--model",
        type=name,
        metavar="DIR|CONFIG",
        help="the target: a config.json, a directory with one, or an embedded name",
    )
    add("--draft", type=name, action="append", metavar="DIR|CONFIG", help="a draft model, named like --model")
    add(
        "--method",
        type=name,
        help="the method; by default draft_model with a draft, none without. A method with a trained head gets a head "
        "of the usual shape",
    )
    add("--device", type=name, metavar="NAME:SHAPE", help="such as v5e:2x4, v6e:1, h100:8 or h200")
    add_mesh_argument(command)
    add("--batch", type=integer(1), metavar="N", help="rows of the batch (default 1)")
    add("--max-length", type=integer(2), metavar="N", help="tokens of a row, prompt and output (default 1024)")
    add("--dtype", choices=("bfloat16", "float16", "float32"), help="of weights and caches (default bfloat16)")
    add_quantize_argument(command)
    add_offload_argument(command)
    add("--draft-quantize", choices=SCHEMES, help="form of the draft models' weights; by default that of --dtype")
    add("--json", action="store_true", help="print one JSON object")
    add_drafting_flags(command)


def run(args: argparse.Namespace) -> None:
    """Compiles for the device, and prints the plan."""
    from ..parallel import parse_mesh
    from ..planning import plan_report
    from ..planning.plan_settings import make_plan, read_settings

    settings = read_settings(args.config) if args.config else {}
    settings |= {key: getattr(args, key) for key in _SETTINGS if getattr(args, key) is not None}
    settings |= {"draft": args.draft} if args.draft else {}
    settings |= {"mesh": parse_mesh(args.mesh)} if args.mesh else {}
    if drafting := given_drafting(args):
        settings["options"] = settings.get("options", {}) | drafting
    with status("compiling for devices that are not at hand"):
        planned = make_plan(settings)
    if args.json:
        print(json.dumps(planned))
    else:
        print_table(plan_report.table(planned), plan_report.notes(planned))
    if not planned["fits"]:
        raise RequestError(plan_report.too_large(planned))
