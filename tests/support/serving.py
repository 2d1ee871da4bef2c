"""A server in a thread."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def served(app) -> Iterator[str]:
    """The address of an application while a thread serves it."""
    import uvicorn

    from specjax.serve.server import bind

    bound = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, args=([bound],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def wait_until(condition, seconds: float = 20) -> None:
    """Waits until ``condition()`` is true, and fails after ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def serving(*flags: str) -> Iterator[str]:
    """The address of ``specjax serve`` in a process of its own, on any free port."""
    command = [sys.executable, "-m", "specjax", "serve", "--port", "0", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        lines = [process.stderr.readline()]
        while lines[-1] and " is ready at " not in lines[-1]:
            lines.append(process.stderr.readline())
        assert lines[-1], "".join(lines)
        yield lines[-1].split()[-1].removesuffix("/v1")
    finally:
        process.terminate()
        process.wait(30)
