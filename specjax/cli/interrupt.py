"""Ctrl-C: one line on stderr and exit code 130, even while the main thread runs compiled code."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

CODE = 130
_PATIENCE = 2.0
"""The seconds after Ctrl-C in which the main thread may end by itself."""

_SHOW_CURSOR = "\r\x1b[K\x1b[?25h"


@contextmanager
def watch_interrupts(ends_process: bool) -> Iterator[None]:
    """Ends the process on Ctrl-C, if the main thread does not end in time or goes on to its end.

    Python raises KeyboardInterrupt only between two bytecodes of the main thread. A compilation can
    take minutes, and a library can swallow the exception. The operating system writes the signal to
    a pipe at once, and a thread waits there. Python prints and forgets exceptions in callbacks of
    its garbage collector, so the handler also notes the signal, and the end of the block sees it.

    Args:
      ends_process: whether the caller is the entry point of the process. Otherwise this function
        does nothing.
    """
    if not ends_process or threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    finished = threading.Event()
    interrupted = threading.Event()

    def interrupt(number, frame) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    def watch() -> None:
        while os.read(reading, 1) != bytes([signal.SIGINT]):
            if finished.is_set():
                return
        if not finished.wait(_PATIENCE):
            leave(True)

    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # else the caller ignores Ctrl-C
        signal.signal(signal.SIGINT, interrupt)
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        finished.set()
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGINT, handler)
        os.write(writing, b"\0")
    if interrupted.is_set():
        leave(True)


def leave(ends_process: bool, state: str = "") -> int:
    """Prints that the command was interrupted, and ends the process or returns the exit code.

    The process ends without Python's clean-up, which would wait for threads. Compiled code that
    still runs in them could crash.

    Args:
      ends_process: whether to end the process.
      state: a description of the files that the command leaves behind, for the message.
    """
    message = "specjax: interrupted" + (f"; {state}" if state else "")
    with suppress(OSError, ValueError):
        print((_SHOW_CURSOR if sys.stderr.isatty() else "") + message, file=sys.stderr, flush=True)
    if ends_process:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        end_at_once(CODE)
    return CODE


def end_at_once(code: int) -> NoReturn:
    """Ends the process without Python's clean-up, which would wait for threads in compiled code."""
    os._exit(code)
