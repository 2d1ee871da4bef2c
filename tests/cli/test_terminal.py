"""Output for people on terminals without colours or cursor movements, and into pipes."""

import io
import sys

import pytest
from rich.table import Table

from specjax.cli import terminal


class Terminal(io.StringIO):
    def isatty(self):
        return True


def show(monkeypatch, **environment) -> tuple[str, str]:
    """What the functions print on stdout and stderr."""
    streams = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    table = Table("method")
    table.add_row("ngram", style="red bold")
    with terminal.status("loading"), terminal.progress_bar("comparing") as progress:
        progress(1, 2)
    terminal.print_table(table, ["slow"])
    terminal.print_prompt("def f(")
    return tuple(stream.getvalue() for stream in streams)


def test_a_dumb_terminal_gets_plain_text(monkeypatch):
    out, err = show(monkeypatch, TERM="dumb")
    assert "\x1b" not in out + err and err == ""
    assert "ngram" in out and "note: slow" in out and out.endswith("def f(")


def test_no_color_leaves_no_colour_on_stdout(monkeypatch):
    assert "\x1b[1;31m" in show(monkeypatch, TERM="xterm-256color")[0]
    assert "31m" not in show(monkeypatch, TERM="xterm-256color", NO_COLOR="1")[0]


class Growing:
    """A Result of the bytes of "aé\tb", of which the accepted drafts are "a" and the first byte of "é"."""

    table = (b"a", b"\xc3", b"\xa9", b"\tb", None)
    token_ids, from_draft = [0, 1, 2, 4, 3], [True, True, False, False, True]

    def __init__(self, text: str):
        self.text = text


def test_accepted_drafts_are_green_on_a_terminal_alone(monkeypatch):
    results, whole = [Growing("a"), Growing("aé\tb")], "aé\tb\n"
    for stream, shown in ((Terminal(), "\x1b[32ma\x1b[0mé"), (io.StringIO(), whole)):
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setenv("TERM", "xterm-256color")
        assert terminal.print_text(iter(results), Growing.table, stream) is results[-1]
        assert stream.getvalue().startswith(shown)
    assert terminal.mark_drafts(results[-1], Growing.table).plain == "aé\tb"
    assert terminal.mark_drafts(results[-1], ()).spans == []  # a table that does not spell the text


def test_a_table_into_a_closed_pipe_raises_for_main(monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(BrokenPipeError):
        terminal.print_table(Table("method"), [])
