"""Ctrl-C while Python still imports the package for the command line.

The imports take seconds, and a library that is imported may print a KeyboardInterrupt and go on.
``cli.interrupt`` takes over when the command begins.
"""

import os
import signal
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import NoReturn


def is_command() -> bool:
    """Whether the process is ``specjax`` or ``python -m specjax``."""
    name = getattr(sys, "argv", [""])[0]
    if name == "-m":  # Python looks for the module
        return any(pair == ("-m", "specjax") for pair in pairwise(sys.orig_argv))
    return Path(name).stem == "specjax"


def end(number, frame) -> NoReturn:
    """The handler of Ctrl-C: one line, and exit code 130.

    An exception would pass through libraries that are half imported, and some go on. Nothing has
    begun that Python's clean-up would have to end.
    """
    os.write(2, b"specjax: interrupted\n")
    os._exit(130)


def watch_imports() -> None:
    """Ends the process of a command on Ctrl-C. A program that imports specjax keeps its handler."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual and is_command() and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, end)


def imports_are_done() -> None:
    """Gives Ctrl-C back to Python's handler, for the command to watch."""
    if signal.getsignal(signal.SIGINT) is end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
