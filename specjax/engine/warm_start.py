"""Compiles an engine's programs in the order of their use, while it answers requests already."""

import threading
import time
from collections.abc import Callable

from ..core.logit_adjustments import RowConstraints
from ..core.unused_memory import return_unused
from ..loop.resting import can_rest
from ..requests.grammar_masks import follow_grammars
from .engine import Engine
from .prompt_programs import LEAST_CHUNK, Program


class WarmStart:
    """The programs of a started engine that are compiled ahead.

    ``begin`` compiles what the first request needs: the smallest chunk, and plain rounds.
    ``go_on`` compiles the others in a thread, the method's rounds first. An engine on a mesh, or
    with a lossy rule, compiles all of its programs in ``begin``.

    Args:
      say: takes a line about each program that the thread has compiled.

    Attributes:
      waiting: the programs that are not compiled yet, in order.
    """

    def __init__(self, engine: Engine, say: Callable[[str], None] = lambda line: None):
        self._engine = engine
        self._say = say
        self._thread: threading.Thread | None = None
        self._is_over = False
        self.waiting: list[Program] = []

    def begin(self) -> None:
        """Compiles the programs of the first request."""
        engine = self._engine
        programs = engine.programs
        if programs.session.mesh is not None or not can_rest(programs.session.rule):
            return warm_up(engine)
        narrow, *others = programs.widths
        programs.ready = {("chunk", LEAST_CHUNK), ("plain", narrow)}
        engine.submit([0, 0], max_new_tokens=1).result()
        chunks = [("chunk", size) for size in chunk_sizes(engine)[1:]]
        first = [("rounds", narrow), *(("plain", width) for width in others[-1:])]
        grammars = [("grammar", width) for width in {narrow: None, programs.count: None}]
        beginnings = [("beginnings", programs.chunk)] if engine.prefixes.is_on or engine.memory.shares else []
        waits = [("wait", programs.count)] if programs.block else []
        together = [("prompts", count) for count in programs.together[1:]]
        rounds = [("rounds", width) for width in others[::-1]]
        self.waiting = [*first, *beginnings, *chunks[:1], *rounds, *waits, *grammars, *chunks[1:], *together]

    def go_on(self) -> None:
        """Starts the thread that compiles the programs that wait."""
        self._thread = threading.Thread(target=self._compile_all, name="specjax compiler", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Waits until all programs are compiled."""
        if self._thread is not None:
            self._thread.join()

    def end(self) -> None:
        """Ends the thread after the program that it compiles now."""
        self._is_over = True
        self.wait()

    def _compile_all(self) -> None:
        programs = self._engine.programs
        while self.waiting and not self._is_over:
            kind, size = program = self.waiting[0]
            began = time.perf_counter()
            try:
                self._compile(kind, size)
            except Exception as error:  # a request that needs the program meets the error, too
                self._say(f"{describe(program)} cannot be compiled: {error}")
            programs.ready = (programs.ready or set()) | {program}
            return_unused()  # the compiler leaves hundreds of megabytes
            self.waiting = self.waiting[1:]
            seconds = time.perf_counter() - began
            self._say(f"compiled {describe(program)} in {seconds:.1f} s; {len(self.waiting)} programs left")

    def _compile(self, kind: str, size: int) -> None:
        programs = self._engine.programs
        if kind == "chunk":
            programs.compile_chunk(size)
        elif kind == "prompts":
            programs.compile_together(size)
        elif kind == "beginnings":
            programs.compile_beginnings(chunk_sizes(self._engine))
        elif kind == "wait":
            programs.compile_waits()
        elif kind == "grammar":
            programs.compile_rounds("rounds", size, follow_grammars(RowConstraints()))
        else:
            programs.compile_rounds(kind, size)


def describe(program: Program) -> str:
    """A program's name for people."""
    kind, size = program
    texts = "1 text" if size == 1 else f"{size} texts"
    return {
        "chunk": f"prompts in chunks of {size} tokens",
        "prompts": f"{size} prompts together",
        "plain": f"plain rounds of {texts}",
        "rounds": f"rounds of {texts}",
        "grammar": f"rounds of {texts} with grammars",
        "beginnings": "shared beginnings of prompts",
        "wait": "waiting for memory",
    }[kind]


def chunk_sizes(engine: Engine) -> list[int]:
    """The sizes of chunks in which the engine may read prompts, ascending."""
    most = min(engine.programs.chunk, _longest_prompt(engine) - 1)
    return [LEAST_CHUNK << i for i in range(16) if i == 0 or LEAST_CHUNK << i <= most]


def _longest_prompt(engine: Engine) -> int:
    """The most tokens of a prompt with one new token."""
    return min(engine.capacity - engine.generator.drafter.depth - 1, engine.target.config.context) - 1


def warm_up(engine: Engine) -> None:
    """Compiles all programs of a started engine: one short request for each size of a chunk.

    Each prompt is read alone. Then the longest of them is read again, whose beginning is now in the
    store of prefixes. Rounds with constraints are compiled when the first request asks for them.
    """
    vocab_size = engine.target.config.vocab_size
    longest = _longest_prompt(engine)
    prompts = [[i % vocab_size] * min(size + 1, longest) for i, size in enumerate(chunk_sizes(engine))]
    for prompt in (*prompts, *prompts[:1], *prompts[-1:]):
        engine.submit(prompt, max_new_tokens=1).result()
    for count in engine.programs.together[1:]:
        engine.programs.compile_together(count)
    engine.compile_rounds()
    if engine.programs.block:
        engine.programs.compile_beginnings(())
        engine.programs.compile_waits()
    return_unused()
