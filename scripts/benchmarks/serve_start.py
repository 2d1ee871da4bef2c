"""The seconds from the start of ``specjax serve`` to its first answer, and until all programs are compiled.

    python scripts/benchmarks/serve_start.py [--model M] [--draft D]

Each way of starting runs twice: with an empty cache of programs, and with the one that the first run filled.
Writes serve_start_cpu_<model>.json and serve_start_cpu.md.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
from page import Result, arguments, measured, section

from specjax.tools.evaluate.report import markdown_table

TITLE = "The start of a server"
QUESTION = "How soon after its start does `specjax serve` answer?"
FOLLOWS = """
- A server answers as soon as plain decoding is compiled. The method's programs follow while it answers.
- A later start takes the programs from the folder that the server names.
"""


_UNUSUAL = ("JAX_COMPILATION_CACHE_DIR", "PYTHONDONTWRITEBYTECODE")
"""Variables of development, which would change the times."""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="tiny-python")
    parser.add_argument("--draft")
    args = parser.parse_args()
    name = Path(args.model).stem
    result = Result("serve_start_cpu", name)
    report = {"conditions": measured([] if args.model.endswith(".gguf") else [args.model], name), "starts": {}}
    for warm_up in ("first", "all"):
        with tempfile.TemporaryDirectory() as folder:
            for cache in ("empty", "filled"):
                figures = start(args, warm_up, folder)
                report["starts"][f"{warm_up}, {cache}"] = figures
                print(warm_up, cache, figures, flush=True)
    result.save(report)
    sections = [section(each["conditions"], table(each), each["conditions"]["note"]) for each in result.read_all()]
    result.write(TITLE, QUESTION, sections, FOLLOWS)


def start(args, warm_up: str, folder: str) -> dict[str, float]:
    """Seconds from the start of the process to each stage."""
    command = [sys.executable, "-m", "specjax", "serve", "--model", args.model, "--port", "0", "--warm-up", warm_up]
    command += ["--draft", args.draft] if args.draft else []
    environment = {k: v for k, v in os.environ.items() if k not in _UNUSUAL}
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=environment | {"XDG_CACHE_HOME": folder},
    )
    assert process.stderr is not None
    for line in process.stderr:
        if " is ready at " in line:
            break
    else:
        raise SystemExit("the server has not started")
    url = line.split()[-1].removesuffix("/v1")
    figures = {"ready": time.perf_counter() - began}
    answer = httpx.post(
        f"{url}/v1/completions", json={"model": args.model, "prompt": "x = ", "max_tokens": 1}, timeout=600
    )
    answer.raise_for_status()
    figures["first token"] = time.perf_counter() - began
    while compiling := httpx.get(f"{url}/health", timeout=600).json().get("compiling", 0):
        figures["programs after that"] = max(compiling, figures.get("programs after that", 0))
        time.sleep(0.2)
    figures["all compiled"] = time.perf_counter() - began
    process.terminate()
    process.communicate()
    return figures


def table(report: dict) -> str:
    stages = ("ready", "first token", "all compiled")
    rows = [[name, *(f"{figures[stage]:.1f}" for stage in stages)] for name, figures in report["starts"].items()]
    return "Seconds from the start of the process:\n\n" + markdown_table(["--warm-up, cache", *stages], rows)


if __name__ == "__main__":
    main()
