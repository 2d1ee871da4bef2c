"""``specjax completion``: a script with which the shell completes commands and flags."""

import argparse

import shtab

from .fields import Flags

USAGE = "specjax completion bash|zsh|fish"
FLAGS: dict[str, Flags] = {
    "options": {"shell": dict(flags=(), choices=("bash", "zsh", "fish"), help="the shell that runs the script")}
}
COMMON = ("shell",)


def run(args: argparse.Namespace) -> None:
    """Prints the script."""
    from .main import make_parser

    print(shtab.complete(make_parser(), args.shell))
