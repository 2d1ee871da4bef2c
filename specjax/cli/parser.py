"""The parser of the command line, and the types of its arguments."""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ..core.checks import LARGEST, shorten, suggest
from ..errors import one_line

OTHER_NAMES = {
    "--max-tokens": "--max-new-tokens",
    "--max-model-len": "--capacity",
    "--max-num-seqs": "--slots",
    "--served-model-name": "--name",
}
"""Flags by their names in vLLM, with their names in specjax."""

_NEGATIVE = re.compile(r"-\.?\d")


class Parser(argparse.ArgumentParser):
    """Reports an error in one line. For an unknown option the line names a similar one."""

    def error(self, message):
        self.exit(2, f"specjax: error: {one_line(message)}; see {self.prog} --help\n")

    def _print_message(self, message, file=None):
        """Prints a message. Unlike argparse, it raises an error where the stream is unusable."""
        print(message, end="", file=file or sys.stderr)

    def parse_known_args(self, args=None, namespace=None, **options):
        if args is not None and not self._subparsers:
            args = [self._translate(argument) for argument in args]
            self.check_names(args)
        return super().parse_known_args(args, namespace, **options)

    def _translate(self, argument: str) -> str:
        """An argument with specjax's name of a flag where it has the name of another library."""
        name, sign, value = argument.partition("=")
        own = OTHER_NAMES.get(name)
        return f"{own}{sign}{value}" if own in self._option_string_actions else argument

    def check_names(self, args: Sequence[str]) -> None:
        """Reports an unknown option before argparse reports a missing one."""
        for argument in args:
            name = argument.partition("=")[0]
            if argument == "--":
                return
            if len(name) < 2 or name[0] != "-" or " " in name or _NEGATIVE.match(name):
                continue  # The argument is a value.
            known = [flag for flag in self._option_string_actions if flag.startswith(name)]
            if not known:
                self.error(f"option {name} is unknown" + suggest(name, self._option_string_actions))


def integer(least: int, most: int = LARGEST) -> Callable[[str], int]:
    """The type of an argument that is a whole number from ``least`` to ``most``."""
    return _number(int, "a whole number", least, most)


def decimal(least: float, most: float) -> Callable[[str], float]:
    """The type of an argument that is a number from ``least`` to ``most``."""
    return _number(float, "a number", least, most)


def _number(convert: Callable, kind: str, least, most) -> Callable:
    def parse(text: str):
        try:
            value = convert(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be {kind} from {least} to {most}, not {shorten(text)}")
        return value

    return parse


def layers(text: str) -> tuple[int, ...]:
    """The type of an argument of whole numbers separated by commas. Empty means no number."""
    try:
        return tuple(int(number) for number in text.split(",") if text.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{shorten(text)} is no list of whole numbers such as 1,3") from None


def name(text: str) -> str:
    """The type of an argument that must not be empty."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty; give a name, or leave the option out")
    return text


def path(text: str) -> Path:
    """The type of an argument that is a path and must not be empty."""
    return Path(name(text))
