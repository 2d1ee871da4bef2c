"""A server in a process of its own, whose memory can be asked for. The scripts that measure servers use it."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from prometheus_client.parser import text_string_to_metric_families

NAME = "served"
"""The name of the model in the protocol."""

_SERVE = """
import gc, json, sys, threading
import jax
from specjax.cli.main import main
from specjax.core.unused_memory import return_unused

def answer():
    for _ in sys.stdin:
        gc.collect()
        return_unused()
        resident = int(open("/proc/self/statm").read().split()[1]) * 4096
        sizes = [x.nbytes for x in jax.live_arrays()]  # a list of the arrays would keep them until the next one
        print(json.dumps(dict(resident=resident, arrays=len(sizes), bytes=sum(sizes))), flush=True)

threading.Thread(target=answer, daemon=True).start()
sys.exit(main())
"""


class Server:
    """A running server.

    Args:
      process: its process. No other object reads the pipes.

    Attributes:
      url: its address, without a path.
      said: the lines that the process has written to its standard error since it is ready.
    """

    def __init__(self, process: subprocess.Popen):
        self.process, seen = process, []
        while not (line := process.stderr.readline()).startswith("specjax: "):
            seen.append(line)
            if not line:
                raise SystemExit("the server has not started:\n" + "".join(seen))
        if " is ready at " not in line:
            raise SystemExit(line.strip())
        self.url, self.said = line.split()[-1].removesuffix("/v1"), []
        # A full pipe would stop the process.
        self._listening = threading.Thread(target=lambda: self.said.extend(process.stderr), daemon=True)
        self._listening.start()

    def wait(self, seconds: float) -> int:
        """The exit code of the process, which has been told to stop."""
        code = self.process.wait(seconds)
        self._listening.join()
        return code

    def memory(self) -> dict[str, int]:
        """The resident bytes of the process, without free pages, and the number and bytes of its live device arrays."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def metrics(self) -> dict[str, float]:
        """The figures of ``/metrics`` by name, without "vllm:"; the sum over the values of labels."""
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(httpx.get(f"{self.url}/metrics", timeout=60).text):
            for sample in family.samples:
                name = sample.name.removeprefix("vllm:")
                found[name] = found.get(name, 0) + sample.value
        return found

    @property
    def load(self) -> int:
        """The number of texts that the engine holds."""
        figures = self.metrics()
        return int(figures["num_requests_running"] + figures["num_requests_waiting"])

    def wait_until_idle(self) -> None:
        """Waits until the engine holds no text."""
        while self.load:
            time.sleep(0.1)


@contextmanager
def serve(*flags) -> Iterator[Server]:
    """A server with flags of ``specjax serve``. It is killed at the end of the block, if it still runs."""
    command = [sys.executable, "-c", _SERVE, "serve", "--port", "0", "--name", NAME, *map(str, flags)]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen(command, **pipes) as process:
        try:
            yield Server(process)
        finally:
            process.kill()
