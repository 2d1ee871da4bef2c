"""What people see: tables and figures on stdout and stderr, bars and spinners where these are terminals."""

import sys
from collections.abc import Iterable
from contextlib import contextmanager, nullcontext

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

_WIDTH = 160


@contextmanager
def bar_of(title: str):
    """A progress bar on a terminal; yields what to tell ``done`` and ``of``."""
    columns = TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("")
        yield lambda done, of: bar.update(task, completed=done, total=of)


def status(message: str):
    """A spinner on a terminal."""
    return Console(stderr=True).status(message) if sys.stderr.isatty() else nullcontext()


def print_table(table, notes: Iterable[str]) -> None:
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH)
    console.print(table)
    for note in notes:
        console.print(Text(f"note: {note}"))


def streamed(pieces, prompt: str, out):
    """Prints pieces as they come and returns the result at their end."""
    if out is sys.stdout:
        print_prompt(prompt)
    while True:
        try:
            print(next(pieces), end="", file=out, flush=True)
        except StopIteration as end:
            print(file=out)
            return end.value


def print_prompt(prompt: str) -> None:
    if sys.stdout.isatty():
        Console().print(Text(prompt, "dim"), end="", soft_wrap=True)


def print_stats(stats: list) -> None:
    """The figures on stderr, under the names of vLLM's log. Seconds are those of the whole batch."""
    from ..stats import total

    whole, first = total(stats), stats[0]
    rates = ", ".join(f"{rate:.3f}" for rate in whole.acceptance_rate_per_position)
    lines = [
        f"Mean acceptance length: {whole.mean_acceptance_length:.2f}, Accepted: {whole.accepted} tokens, Drafted: {whole.drafted} tokens",
        f"Per-position acceptance rate: {rates}, Avg Draft acceptance rate: {100 * whole.draft_acceptance_rate:.1f}%",
    ]
    speed = whole.generated / first.decode_seconds if first.decode_seconds else 0.0
    lines = lines * bool(whole.accepted_at) + [
        f"{whole.generated} tokens, {speed:.1f} tokens/s; "
        f"prefill {first.prefill_seconds:.3f} s, decode {first.decode_seconds:.3f} s, compile {first.compile_seconds:.1f} s"
    ]
    print(*lines, sep="\n", file=sys.stderr)
