"""Ctrl-C: one line on stderr and exit code 130, also while the main thread runs compiled code."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

CODE = 130
_PATIENCE = 2.0
"""Seconds in which the main thread may end by itself after Ctrl-C."""

_SHOW_CURSOR = "\r\x1b[K\x1b[?25h"


@contextmanager
def watch_interrupts(ends_process: bool) -> Iterator[None]:
    """Ends the process on Ctrl-C where the main thread does not.

    Python raises KeyboardInterrupt between two bytecodes of the main thread. A compilation can take
    minutes, and a library can swallow the exception. The operating system's signal reaches a pipe
    at once, and a thread waits there.

    Args:
      ends_process: whether the caller is the process's own entry point; otherwise nothing is
        watched.
    """
    if not ends_process or threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    finished = threading.Event()

    def watch() -> None:
        while os.read(reading, 1) != bytes([signal.SIGINT]):
            if finished.is_set():
                return
        if not finished.wait(_PATIENCE):
            leave(True)

    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        finished.set()
        signal.set_wakeup_fd(before)
        os.write(writing, b"\0")


def leave(ends_process: bool, state: str = "") -> int:
    """Says that the command was interrupted, and ends the process or returns the exit code.

    The process ends without Python's own clean-up: it would wait for threads, and compiled code
    that still runs in them can crash.

    Args:
      state: what the command leaves behind, for the message.
    """
    with suppress(OSError, ValueError):
        print(
            (_SHOW_CURSOR if sys.stderr.isatty() else "") + "specjax: interrupted" + (f"; {state}" if state else ""),
            file=sys.stderr,
            flush=True,
        )
    if ends_process:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(CODE)
    return CODE
