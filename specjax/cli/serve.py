"""``specjax serve``: an HTTP server of the OpenAI protocol."""

import argparse
import os
import signal
import sys

from ..errors import RequestError
from ..parallel import is_first_host
from ..requests.limits import MOST_PROMPTS, MOST_ROUNDS
from ..requests.options import MOST_LOGPROBS
from .arguments import add_method_arguments, add_model_arguments, check_method, choose_method
from .drafting import add_drafting_flags, given_drafting
from .interrupt import end_at_once
from .loading import load_given_drafts, load_target
from .parser import integer, name
from .terminal import status

KEY = "SPECJAX_API_KEY"

SIZES = (
    "slots",
    "widths",
    "capacity",
    "chunk",
    "rounds",
    "logprobs",
    "prefix_bytes",
    "constraint_states",
    "constraint_classes",
)
"""The flags that are arguments of the engine."""


def add_command(commands) -> None:
    about = "answer requests of the OpenAI protocol, by continuous batching"
    command = commands.add_parser("serve", usage="specjax serve [option ...]", help=about, description=about)
    command.set_defaults(handler=run)
    add = command.add_argument_group("server").add_argument
    add("--host", type=name, default="127.0.0.1", help="address to listen on (default 127.0.0.1, this machine only)")
    add("--port", type=integer(0, 65535), default=8000, metavar="N", help="port; 0 is any free one (default 8000)")
    add("--api-key", type=name, metavar="KEY", help=f"key that clients must send; by default {KEY}, or none")
    add("--name", type=name, help="name of the model in the protocol; by default that of --model")
    add("--slots", type=integer(1, MOST_PROMPTS), default=16, metavar="N", help="texts decoded together (default 16)")
    add(
        "--widths",
        type=integer(1),
        nargs="*",
        metavar="N",
        help="numbers of rows for which rounds are compiled apart, for times with fewer texts than slots; by default "
        "1, 4, 16, ... up to a quarter of the slots, and none on a mesh; without a number none",
    )
    add("--capacity", type=integer(1), default=4096, metavar="N", help="positions of a slot (default 4096)")
    add(
        "--chunk",
        type=integer(1),
        metavar="N",
        help="tokens of a prompt read between rounds; by default up to 128, so that running texts hardly wait",
    )
    add(
        "--rounds",
        type=integer(1, MOST_ROUNDS),
        metavar="N",
        help="rounds of a step, after which texts grow; by default up to 32, so that they take about 20 ms",
    )
    add(
        "--prefix-bytes",
        type=integer(0),
        metavar="N",
        help="memory that keeps beginnings of prompts for later ones; 0 is none (default: as much as a slot)",
    )
    add(
        "--constraint-states",
        type=integer(2),
        default=4096,
        metavar="N",
        help="states of the table of all running requests' constraints (default 4096)",
    )
    add(
        "--constraint-classes",
        type=integer(1),
        default=1024,
        metavar="N",
        help="classes of tokens of that table (default 1024)",
    )
    add("--queue", type=integer(0), default=256, metavar="N", help="texts that may wait for a slot (default 256)")
    add(
        "--logprobs",
        type=integer(0, MOST_LOGPROBS),
        default=5,
        metavar="N",
        help="the most likeliest tokens that a request may ask for (default 5)",
    )
    add(
        "--max-body-bytes",
        type=integer(1),
        default=2**20,
        metavar="N",
        help="the largest body of a request (default 1048576)",
    )
    add(
        "--deadline",
        type=integer(0),
        default=30,
        metavar="SECONDS",
        help="time that accepted requests have after SIGTERM or Ctrl-C (default 30)",
    )
    add_model_arguments(command)
    add_method_arguments(command)
    add_drafting_flags(command)


def run(args: argparse.Namespace) -> None:
    """Serves until a signal."""
    drafting = given_drafting(args)
    check_method(args, choose_method(args), drafting)
    try:
        from ..serve import app, server
    except ImportError as error:
        raise RequestError(str(error)) from None
    if not is_first_host():
        return follow(args, drafting)
    bound = server.bind(args.host, args.port)
    with bound:
        engine = make_engine(args, drafting)
        given = args.name or args.model
        key = args.api_key or os.environ.get(KEY) or None
        made = app.make_app(engine, name=given, api_key=key, queue=args.queue, largest_body=args.max_body_bytes)
        with engine:
            with status("compiling"):
                server.warm_up(engine)
            host, port = bound.getsockname()[:2]
            say = f"specjax: {given} is ready at http://{f'[{host}]' if ':' in host else host}:{port}/v1"
            ready = lambda: print(say, file=sys.stderr, flush=True)
            server.run(made, bound, deadline=args.deadline, ready=ready, end_at_once=end_at_once)


def follow(args: argparse.Namespace, drafting: dict) -> None:
    """Makes the steps of process 0 until its server has stopped. Signals to stop are for process 0."""
    engine = make_engine(args, drafting)
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    engine.follow()


def make_engine(args: argparse.Namespace, drafting: dict):
    """The engine of the flags, with its models loaded."""
    from ..engine import Engine, usual_widths

    if args.widths is None:
        args.widths = usual_widths(args.slots, on_mesh=args.mesh is not None)
    with status("loading"):
        target = load_target(args)
        sizes = {name: getattr(args, name) for name in SIZES}
        drafts = load_given_drafts(args, target)
        return Engine(target, args.method, drafts, rule=args.rule, **sizes, **drafting)
