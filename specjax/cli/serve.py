"""``specjax serve``: an HTTP server of the OpenAI protocol."""

import argparse
import dataclasses
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..checkpoints.generation_config import GENERATION_CONFIGS
from ..core.checks import check_extra
from ..engine import EngineOptions, WarmStart, warm_up
from ..engine.options import BOUNDS
from ..parallel import is_first_host
from ..requests.limits import MOST_PROMPTS
from ..serve.options import ServerOptions, server_engine_options
from ..text.machine import keep_programs
from .arguments import BOOST, CHAT_TEMPLATE, HOSTS, METHOD, MODELS_TOGETHER, check_method, choose_method
from .drafting import drafting_flags, drafting_options
from .fields import flag, flags_of
from .interrupt import end_at_once
from .loading import apply_boost, load_given_drafts, load_target
from .output import check_directory
from .parser import integer
from .terminal import describe_sampling, status

KEY = "SPECJAX_API_KEY"


@dataclasses.dataclass(frozen=True)
class Serve:
    """The flags of the command.

    Attributes:
      host: address to listen on, by default this machine only.
      port: port; 0 is any free one.
      deadline: seconds that accepted requests have after SIGTERM or Ctrl-C.
      drain_delay: seconds before these, in which /health is 503 already, so that a load balancer
        sends no more requests, and the server still takes them.
      warm_up: "first" answers as soon as plain decoding is compiled, and compiles the method's
        programs meanwhile; "all" compiles all programs before it answers.
      learn: lets the EAGLE-3 head learn from the texts of requests, in memory, and saves a better
        head in this directory at the end; by default nothing is learnt.
      learn_share: share of the time in which it learns.
    """

    host: str = "127.0.0.1"
    port: int = flag(8000, least=0, most=65535)
    deadline: int = flag(30, least=0, metavar="SECONDS")
    drain_delay: int = flag(0, least=0, metavar="SECONDS")
    warm_up: str = flag("first", choices=("first", "all"))
    learn: Path | None = flag(None, metavar="DIR")
    learn_share: float = flag(0.2, least=0.0, most=1.0)


_BOUNDS: dict[str, dict] = {name: dict(least=least, most=most) for name, (least, most) in BOUNDS.items()}
_SIZES = _BOUNDS | {
    "slots": dict(least=1, most=MOST_PROMPTS),
    "chunk": dict(least=1),
    "logprobs": _BOUNDS["logprobs"] | dict(default=5, help="the most likeliest tokens that a request may ask for"),
    "widths": dict(
        default=None,
        type=integer(1),
        nargs="*",
        metavar="N",
        help="numbers of rows for which rounds are compiled apart, for times with fewer texts than slots; by default "
        "1, 4, 16, ... up to a quarter of the slots, and none on a mesh; without a number none",
    ),
}
_SERVER = {
    "api_key": dict(metavar="KEY", help=f"key that clients must send; by default {KEY}, or none"),
    "generation_config": dict(choices=GENERATION_CONFIGS),
    "queue": dict(least=0),
    "largest_body": dict(flags=("--max-body-bytes",), least=1),
    "traces": dict(flags=("--otlp-traces-endpoint",), metavar="URL"),
}
_TRACES = "opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.exporter.otlp"
FLAGS = (
    {"server": flags_of(Serve) | flags_of(ServerOptions, forms=_SERVER) | CHAT_TEMPLATE}
    | {"engine": flags_of(EngineOptions, forms=_SIZES)}
    | MODELS_TOGETHER
    | {"method": BOOST | METHOD["method"]}
    | drafting_flags()
    | HOSTS
)
COMMON = ("model", "draft", "method", "host", "port", "api_key", "name", "slots", "capacity")


def run(args: argparse.Namespace) -> None:
    """Serves until a signal."""
    apply_boost(args)
    drafting = drafting_options(args)
    check_method(args, choose_method(args), drafting)
    if args.learn is not None:
        check_directory(args.learn, "--learn")
    if args.traces is not None:
        check_extra("otel", _TRACES, "--otlp-traces-endpoint")
    check_extra("serve", ("fastapi", "uvicorn", "prometheus_client"), "specjax serve")
    from ..serve import app, server

    if not is_first_host():
        return follow(args, drafting)
    bound = server.bind(args.host, args.port)
    with bound:
        folder = keep_programs()
        engine = make_engine(args, drafting)
        name = args.name or args.model
        key = args.api_key or os.environ.get(KEY) or None
        fields = {field: getattr(args, field) for field in ("generation_config", "queue", "largest_body", "traces")}
        options = ServerOptions(name=name, api_key=key, **fields)
        warm = WarmStart(engine, lambda line: print(f"specjax: {line}", file=sys.stderr, flush=True))
        application = app.make_app(engine, options, compiling=lambda: len(warm.waiting))
        with engine, learning(args, engine):
            with status("compiling"):
                warm.begin() if args.warm_up == "first" else warm_up(engine)
            host, port = bound.getsockname()[:2]
            if application.state.sampling:
                print(describe_sampling(application.state.sampling), file=sys.stderr)
            say = f"specjax: {name} is ready at http://{f'[{host}]' if ':' in host else host}:{port}/v1"
            kept = f"specjax: compiled programs are kept in {folder}; a later start takes them from there"

            def ready() -> None:
                print(say, *filter(None, [folder and kept]), sep="\n", file=sys.stderr, flush=True)
                warm.go_on()

            times = dict(deadline=args.deadline, delay=args.drain_delay)
            server.run(application, bound, **times, ready=ready, end_at_once=end_at_once)
            if application.state.traces is not None:
                application.state.traces.close()
            if warm.waiting:  # a compilation cannot be interrupted
                end_at_once(0)


@contextmanager
def learning(args: argparse.Namespace, engine) -> Iterator[None]:
    """Lets the head of the engine learn while the context lasts, and saves it, with ``--learn``."""
    if args.learn is None:
        yield
        return
    from ..checkpoints.heads import save_head
    from ..heads import Head
    from ..training.online.learner import Learner

    say = lambda line: print(f"specjax: {line}", file=sys.stderr, flush=True)
    with Learner(engine, args.learn_share, say=say) as learner:
        yield
    if learner.swaps:
        save_head(Head(learner.head, learner.head.config, str(args.learn)), args.learn)
        say(f"the head that learnt is in {args.learn}; specjax serve --draft {args.learn} starts with it")


def follow(args: argparse.Namespace, drafting: dict) -> None:
    """Makes the steps of process 0 until its server has stopped.

    Signals to stop are for process 0.
    """
    engine = make_engine(args, drafting)
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    engine.follow()


def make_engine(args: argparse.Namespace, drafting: dict):
    """The engine of the flags, with its models loaded."""
    from ..engine import Engine

    sizes = {field.name: getattr(args, field.name) for field in dataclasses.fields(EngineOptions)}
    options = server_engine_options(args.mesh is not None, **sizes)
    with status("loading"):
        target = load_target(args)
        drafts = load_given_drafts(args, target)
        return Engine(target, args.method, drafts, rule=args.rule, options=options, **drafting)
