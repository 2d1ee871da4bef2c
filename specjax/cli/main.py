"""``specjax``: the commands, and their exit codes and one-line error messages."""

import argparse
import errno
import os
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module

import jax

from .. import __version__
from ..core.checks import shorten, suggest
from ..core.startup import imports_are_done
from ..errors import RequestError, SpecjaxError, SpecjaxWarning, one_line
from ..parallel import is_first_host, leave_others, log_filter, several_hosts, start
from ..parallel.log_filter import ERROR
from .arguments import NOT_GIVEN
from .fields import add_flags
from .interrupt import leave, watch_interrupts
from .parser import Parser

COMMANDS = {
    "generate": "continue prompts, and print the time and the acceptance",
    "serve": "answer requests of the OpenAI protocol, by continuous batching",
    "beams": "search the likeliest continuations of prompts",
    "compare": "measure methods against plain decoding on the same prompts",
    "evaluate": "run methods over a public suite of questions, and write answers and a report",
    "doctor": "say whether drafting helps, by how much, and if not, why",
    "explain": "decode prompts by method auto, and tell its choices and their reasons",
    "verify": "check that a method does not change the output; exit code 1 if it does",
    "boost": "give a model the drafter that makes it fastest here: trained, tuned and proven by one command",
    "tune": "measure the tree, the layers or the sizes of lookahead that draft best here, and write them to a file",
    "train": "train a drafter for a model by a recipe",
    "ngrams": "count the n-grams of text files, for --ngram-statistics",
    "convert": "write a GGUF file, or a quantised model, as a Hugging Face checkpoint",
    "grow": "write a checkpoint of a larger shape that computes the same function, to measure the speed of that shape",
    "plan": "predict memory and speed on TPUs or GPUs that are not at hand, from configurations alone",
    "design": "find the shapes of draft models that make decoding fastest, within a number of weights or a time",
    "prune": "cut a draft model out of the target, and heal it by a short distillation",
    "completion": "print a script with which the shell completes commands and flags",
}
"""The commands, and their descriptions in the help.

Each is a module with ``FLAGS``, the groups of its flags, ``COMMON``, the flags that its help shows
first, and ``run``.
"""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def main(argv: list[str] | None = None) -> int:
    """Runs a command and returns its exit code.

    - 0: the command is done.
    - 1: ``verify`` found a disagreement, or the machine has no disk space or memory left.
    - 2: the user can mend the error, which one line on stderr names.
    - 130: the command was interrupted.
    - 141: the reader of stdout closed it.

    Args:
      argv: the arguments. By default they are those of the process, and an interrupt ends the
        process at once.
    """
    _open_closed_streams()
    imports_are_done()
    with watch_interrupts(argv is None), _short_warnings():
        try:
            args = _parse(sys.argv[1:] if argv is None else argv)
            if argv is None and "coordinator" in args:
                join_hosts(args)
            code = args.handler(args) or 0
            sys.stdout.flush()
            return code
        except SpecjaxError as error:
            return _complain(str(error), error.exit_code)
        except KeyboardInterrupt as error:
            return leave(argv is None, str(error))
        except BrokenPipeError:
            _discard_output()
            return 141
        except Exception as error:
            if message := _explain(error):
                _discard_output()
                return _complain(message, 1)
            raise


@contextmanager
def _short_warnings() -> Iterator[None]:
    """Prints warnings of specjax in one line, and those of others as before."""
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message, category, *place, **more):
            if not issubclass(category, SpecjaxWarning):
                return others(message, category, *place, **more)
            print(f"specjax: note: {one_line(message)}", file=sys.stderr)

        warnings.showwarning = show
        yield


def _parse(argv: list[str]) -> argparse.Namespace:
    name = argv[0] if argv else "--help"
    parser = make_parser([name])
    try:
        parser.check_names([name])
        if name not in COMMANDS and not name.startswith("-"):
            parser.error(f"command {shorten(name)} is unknown{suggest(name, COMMANDS)}")
        return parser.parse_args(argv or [name])
    except SystemExit:  # after --help and --version
        sys.stdout.flush()
        raise


def join_hosts(args: argparse.Namespace) -> None:
    """Joins the processes of all hosts. Only process 0 prints results and progress.

    Raises RequestError for several processes without ``--mesh``, which would all do the same work,
    and with ``--draft-mesh``.
    """
    if not start(args.coordinator, args.num_processes, args.process_id):
        return
    if args.mesh is None:
        raise RequestError("several processes share the devices of a mesh; give --mesh, such as --mesh model=8")
    if args.draft_mesh is not None:
        raise RequestError("the mesh of several processes has all devices; leave out --draft-mesh")
    _part_streams()


def _part_streams() -> None:
    """Gives Python's output files of its own. Files 1 and 2 go to the filter of XLA's log.

    XLA's C++ code writes there: connections, and a stack trace when it ends the process because
    process 0 has died. The filter outlives this process.
    """
    shown = os.dup(1) if is_first_host() else os.open(os.devnull, os.O_WRONLY)
    sys.stdout = os.fdopen(shown, "w")
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    command = [sys.executable, "-S", "-E", log_filter.__file__]
    log = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    assert log.stdin is not None
    for file in (1, 2):
        os.dup2(log.stdin.fileno(), file)


def make_parser(names: Iterable[str] = COMMANDS) -> Parser:
    """The parser, with flags for ``names`` alone: other modules take time to import."""
    parser = Parser(prog="specjax", description="Speculative decoding for JAX.")
    parser.add_argument("--version", action="version", version=f"specjax {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="command")
    for name, about in COMMANDS.items():
        command = commands.add_parser(name, help=about, description=about, add_help=False)
        if name in names:
            module = import_module(f".{name}", __package__)
            command.usage = getattr(module, "USAGE", None)
            command.set_defaults(handler=module.run, **NOT_GIVEN)
            add_flags(command, module.FLAGS, module.COMMON)
    return parser


def _explain(error: BaseException) -> str | None:
    """One line for an error of the machine (no space, no memory, an unusable file), else None."""
    for cause in _causes(error):
        text = str(cause)
        if isinstance(cause, OSError) and cause.errno in _FULL or "No space left on device" in text:
            place = getattr(cause, "filename", None)
            reason = os.strerror(getattr(cause, "errno", None) or errno.ENOSPC)
            return f"{place or 'output'} cannot be written ({reason}); make room, or write to another place"
        no_device_memory = isinstance(cause, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in text
        if isinstance(cause, MemoryError) or no_device_memory:
            return "the memory does not suffice; use a smaller model, capacity, batch or tree"
        if isinstance(cause, jax.errors.JaxRuntimeError) and several_hosts():
            return f"the processes lost one another ({text[:160]}); all end; start the command again on every host"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'output'} cannot be used ({error.strerror}); name another file"
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, the members of an error group, and their causes."""
    seen = set()
    waiting = [error]
    while waiting:
        error = waiting.pop(0)
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            yield error
            waiting += [*getattr(error, "exceptions", ()), error.__cause__, error.__context__]


def _complain(message: str, code: int) -> int:
    line = f"{ERROR} {one_line(message)}"
    with suppress(OSError):
        if several_hosts():
            os.write(2, f"{line}\n".encode())
            leave_others(code)
        print(line, file=sys.stderr, flush=True)
    return code


def _open_closed_streams() -> None:
    """Opens streams that the caller closed (``>&-``), and discards their output."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))


def _discard_output() -> None:
    """Discards the rest of stdout, because Python would complain about it at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
