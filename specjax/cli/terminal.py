"""Output for people: tables and figures, and on a terminal progress bars and spinners."""

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

from ..parallel import is_first_host

_WIDTH = 120
"""The width of a table in columns, where stdout is not a terminal."""


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a progress bar. Yields its update function of the steps done and of all steps."""
    columns = TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not _can_animate()) as bar:
        task = bar.add_task("")
        yield lambda done, of: bar.update(task, completed=done, total=of)


@contextmanager
def step_bar() -> Iterator[Callable[[str, float], None]]:
    """Shows a progress bar. Yields its update function of a step's name and the share done."""
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not _can_animate()) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda step, share: bar.update(task, description=step, completed=share)


def status(message: str):
    """Shows a spinner with a message during the block."""
    return Console(stderr=True).status(message) if _can_animate() else nullcontext()


def print_table(table, notes: Iterable[str]) -> None:
    """Prints a rich table, as wide as the terminal, and the notes below it."""
    _print_rich(table, *(Text(f"note: {note}") for note in notes))


def print_lines(lines: Iterable[str]) -> None:
    """Prints sentences, wrapped to the width of the terminal. The first one is bold."""
    _print_rich(*(Text(line, "" if i else "bold") for i, line in enumerate(lines)))


def print_prompt(prompt: str) -> None:
    """Prints the prompt before its continuation, on a terminal only."""
    if sys.stdout.isatty():
        _print_rich(Text(prompt, "dim"), end="", soft_wrap=True)


def print_text(results: Iterable, table: Sequence[bytes | None], out: TextIO):
    """Prints a growing text. On a terminal, accepted drafts are green.

    Args:
      results: Results of one prompt. Each text begins with the text of the Result before it.
      table: the bytes of each token, see ``requests.vocabulary.token_bytes``.
      out: stdout or stderr.

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
    """Prints the figures on stderr, under the names of vLLM's log, on the first host.

    The seconds are those of the whole batch.
    """
    from ..core.stats import total

    if not is_first_host():
        return

    whole = total(stats)
    first = stats[0]
    lines = []
    if whole.accepted_at:
        rates = ", ".join(f"{rate:.3f}" for rate in whole.acceptance_rate_per_position)
        lines += ["green: accepted drafts"] * sys.stdout.isatty()
        lines += [
            f"Mean acceptance length: {whole.mean_acceptance_length:.2f}, Accepted: {whole.accepted} tokens, "
            f"Drafted: {whole.drafted} tokens",
            f"Per-position acceptance rate: {rates}, "
            f"Avg Draft acceptance rate: {100 * whole.draft_acceptance_rate:.1f}%",
        ]
    if whole.choices:
        lines += ["Chosen: " + "; ".join(f"{c.name}: {c.rounds} rounds" for c in whole.choices if c.rounds)]
    if whole.drafted_ahead:
        lines += [f"Drafted ahead: {whole.drafted_ahead} of {whole.target_calls} trees"]
    speed = whole.generated / first.decode_seconds if first.decode_seconds else 0.0
    lines += [
        f"{whole.generated} tokens, {speed:.1f} tokens/s; prefill {first.prefill_seconds:.3f} s, "
        f"decode {first.decode_seconds:.3f} s, compile {first.compile_seconds:.1f} s"
    ]
    print(*lines, sep="\n", file=sys.stderr)


def mark_drafts(result, table: Sequence[bytes | None]) -> Text:
    """The text with accepted drafts in green; without colours if ``table`` cannot spell it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = Text()
    for token, from_draft in zip(result.token_ids, result.from_draft):
        spelled = table[token] if token < len(table) else None
        text.append(decoder.decode(spelled or b""), "green" if from_draft else None)
    text = text[: len(result.text)]
    return text if text.plain == result.text else Text(result.text)


def _can_animate() -> bool:
    """Whether stderr is a terminal that supports cursor movements."""
    return is_first_host() and sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def _print_rich(*things, **options) -> None:
    """Prints with colours where stdout is a terminal that has them.

    The text goes through print: rich itself would end the process with code 1 if the reader of
    stdout is gone.
    """
    console = Console() if sys.stdout.isatty() else Console(file=io.StringIO(), width=_WIDTH)
    with console.capture() as captured:
        for thing in things:
            console.print(thing, **options)
    print(captured.get(), end="")


def describe_sampling(options: dict) -> str:
    """A line about the options that the model's ``generation_config.json`` recommends."""
    listed = ", ".join(f"{name} {value}" for name, value in options.items())
    return f"specjax: generation_config.json sets {listed}; --generation-config none leaves them out"
