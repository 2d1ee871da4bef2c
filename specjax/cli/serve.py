"""``specjax serve``: an HTTP server of the OpenAI protocol."""

import argparse
import os
import sys

from ..errors import RequestError
from ..requests.limits import MOST_PROMPTS
from ..requests.options import MOST_LOGPROBS
from .arguments import add_method_arguments, add_model_arguments, check_method, choose_method
from .drafting import add_drafting_flags, given_drafting
from .loading import load_given_drafts, load_target
from .parser import integer, name
from .terminal import status

KEY = "SPECJAX_API_KEY"


def add_command(commands) -> None:
    about = "answer requests of the OpenAI protocol, by continuous batching"
    command = commands.add_parser("serve", usage="specjax serve [option ...]", help=about, description=about)
    command.set_defaults(handler=run, draft_mesh=None, offload=None)
    add = command.add_argument_group("server").add_argument
    add("--host", type=name, default="127.0.0.1", help="address to listen on (default 127.0.0.1, this machine only)")
    add("--port", type=integer(0, 65535), default=8000, metavar="N", help="port; 0 is any free one (default 8000)")
    add("--api-key", type=name, metavar="KEY", help=f"key that clients must send; by default {KEY}, or none")
    add("--name", type=name, help="name of the model in the protocol; by default that of --model")
    add("--slots", type=integer(1, MOST_PROMPTS), default=16, metavar="N", help="texts decoded together (default 16)")
    add("--capacity", type=integer(1), default=4096, metavar="N", help="positions of a slot (default 4096)")
    add(
        "--chunk",
        type=integer(1),
        default=128,
        metavar="N",
        help="tokens of a prompt read between rounds (default 128)",
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
        raise RequestError(
            f"specjax serve needs FastAPI ({error}); install it with pip install 'specjax[serve]'"
        ) from None
    bound = server.bind(args.host, args.port)
    from ..engine import Engine

    with bound:
        with status("loading"):
            target = load_target(args)
            sizes = dict(slots=args.slots, capacity=args.capacity, chunk=args.chunk, logprobs=args.logprobs)
            drafts = load_given_drafts(args, target)
            engine = Engine(target, args.method, drafts, rule=args.rule, **sizes, **drafting)
        given = args.name or args.model
        key = args.api_key or os.environ.get(KEY) or None
        made = app.make_app(engine, name=given, api_key=key, queue=args.queue, largest_body=args.max_body_bytes)
        with engine:
            with status("compiling"):
                server.warm_up(engine)
            host, port = bound.getsockname()[:2]
            say = f"specjax: {given} is ready at http://{f'[{host}]' if ':' in host else host}:{port}/v1"
            server.run(made, bound, deadline=args.deadline, ready=lambda: print(say, file=sys.stderr, flush=True))
