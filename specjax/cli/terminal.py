"""Output for people: tables and figures; bars and spinners where stderr is a terminal that can show
them.
"""

import codecs
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

_WIDTH = 120
"""Columns of a table where stdout is no terminal."""


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Yields the function that is told how many of how many steps are done, and shows a bar."""
    columns = TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not _can_animate()) as bar:
        task = bar.add_task("")
        yield lambda done, of: bar.update(task, completed=done, total=of)


def status(message: str):
    """Shows a spinner."""
    return Console(stderr=True).status(message) if _can_animate() else nullcontext()


def print_table(table, notes: Iterable[str]) -> None:
    """Prints a rich table and the notes below it, as wide as the terminal."""
    _print_rich(table, *(Text(f"note: {note}") for note in notes))


def print_prompt(prompt: str) -> None:
    """Prints the prompt before its continuation, on a terminal only."""
    if sys.stdout.isatty():
        _print_rich(Text(prompt, "dim"), end="", soft_wrap=True)


def print_text(results: Iterable, table: Sequence[bytes | None], out: TextIO):
    """Prints a growing text, accepted drafts in green where stdout is a terminal.

    Args:
      results: Results of one prompt; each text begins with the one before it.
      table: the bytes of each token, see ``requests.vocabulary.token_bytes``.

    Returns the last Result.
    """
    shown = 0
    for result in results:
        if out is sys.stdout and out.isatty():
            _print_rich(mark_drafts(result, table)[shown:], end="", soft_wrap=True)
        else:
            print(result.text[shown:], end="", file=out)
        out.flush()
        shown = len(result.text)
    print(file=out)
    return result


def print_stats(stats: list) -> None:
    """Prints the figures on stderr, under the names of vLLM's log.

    Seconds are those of the whole batch.
    """
    from ..stats import total

    whole, first = total(stats), stats[0]
    lines = []
    if whole.accepted_at:
        rates = ", ".join(f"{rate:.3f}" for rate in whole.acceptance_rate_per_position)
        lines += ["green: accepted drafts"] * sys.stdout.isatty()
        lines += [
            f"Mean acceptance length: {whole.mean_acceptance_length:.2f}, Accepted: {whole.accepted} tokens, "
            f"Drafted: {whole.drafted} tokens",
            f"Per-position acceptance rate: {rates}, Avg Draft acceptance rate: {100 * whole.draft_acceptance_rate:.1f}%",
        ]
    speed = whole.generated / first.decode_seconds if first.decode_seconds else 0.0
    lines += [
        f"{whole.generated} tokens, {speed:.1f} tokens/s; "
        f"prefill {first.prefill_seconds:.3f} s, decode {first.decode_seconds:.3f} s, compile {first.compile_seconds:.1f} s"
    ]
    print(*lines, sep="\n", file=sys.stderr)


def mark_drafts(result, table: Sequence[bytes | None]) -> Text:
    """The text with accepted drafts in green; without colours where ``table`` does not spell it."""
    decoder, text = codecs.getincrementaldecoder("utf-8")("replace"), Text()
    for token, from_draft in zip(result.token_ids, result.from_draft):
        spelled = table[token] if token < len(table) else None
        text.append(decoder.decode(spelled or b""), "green" if from_draft else None)
    text = text[: len(result.text)]
    return text if text.plain == result.text else Text(result.text)


def _can_animate() -> bool:
    """Whether stderr is a terminal that understands cursor movements."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def _print_rich(*things, **options) -> None:
    """Prints with colours where stdout is a terminal that has them.

    rich itself would end the process with code 1 where the reader of stdout is gone, hence the text
    goes through print.
    """
    console = Console() if sys.stdout.isatty() else Console(file=io.StringIO(), width=_WIDTH)
    with console.capture() as captured:
        for thing in things:
            console.print(thing, **options)
    print(captured.get(), end="")
