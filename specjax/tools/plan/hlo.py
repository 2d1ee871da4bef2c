"""Reads the compiled text of a program.

Only this text shows whether a loop moves large arrays in every iteration. The following list must
be empty:

    hlo.moved(compiled.as_text(), {leaf.size for leaf in caches})
"""

import dataclasses
import math
import re
from collections.abc import Collection

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (?:(\w+)\[([\d,]*)\]\S*)?.*? ([a-z][a-z0-9\-]*)\(")
_CALLED = re.compile(
    r"(?:body|condition|calls|to_apply|(?:branch|true|false|called)_computations?)=(\{[^}]*\}|%?[\w.\-]+)"
)
_HOST = ("infeed", "outfeed", "send", "recv")
_PASSED_ON = ("parameter", "get-tuple-element", "bitcast")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Where the result is a tuple, ``dtype`` is None and ``shape`` is empty. ``calls`` names the
    computations that the instruction runs.
    """

    name: str
    opcode: str
    dtype: str | None
    shape: tuple[int, ...]
    calls: tuple[str, ...]
    text: str

    @property
    def size(self) -> int:
        """The number of elements of the result, 0 for a tuple."""
        return math.prod(self.shape) if self.dtype else 0


def computations(text: str) -> dict[str, list[Instruction]]:
    """The computations of a compiled module, by name."""
    bodies: dict[str, list[Instruction]] = {}
    current: list[Instruction] = []
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            current = bodies.setdefault(header[1], [])
        elif match := _INSTRUCTION.match(line):
            name, dtype, shape, opcode = match.groups()
            shape = tuple(int(n) for n in (shape or "").split(",") if n)
            calls = tuple(re.findall(r"[\w.\-]+", " ".join(_CALLED.findall(line))))
            current.append(Instruction(name, opcode, dtype, shape, calls, line.strip()))
    return bodies


def in_loops(text: str) -> list[Instruction]:
    """The instructions of all loop bodies, and of all computations that the bodies call."""
    bodies = computations(text)
    waiting = [name for body in bodies.values() for i in body if i.opcode == "while" for name in i.calls]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in bodies and name not in seen:
            seen.add(name)
            waiting += [called for i in bodies[name] for called in i.calls]
    return [i for name in seen for i in bodies[name]]


def moved(
    text: str, sizes: Collection[int], opcodes: Collection[str] = ("copy",), everywhere: bool = False
) -> list[Instruction]:
    """The instructions in loops that move a whole cache leaf or weight.

    Args:
      text: the compiled text of a program.
      sizes: the numbers of elements of the leaves. Shapes are not compared, because XLA merges and
        permutes axes before it copies.
      opcodes: the opcodes to look for, such as "copy", "transpose" and "convert". A prefetch into a
        TPU's fast memory, "copy-start", is not a copy.
      everywhere: True to look outside loops too. XLA converts a loop's constants before the
        loop, and the loop then reads the wider copy.
    """
    instructions = sum(computations(text).values(), []) if everywhere else in_loops(text)
    return [i for i in instructions if i.opcode in opcodes and i.size in sizes]


def squares(text: str, least: int, widths: Collection[int] = ()) -> list[Instruction]:
    """The instructions whose result has two axes of ``least`` elements or more.

    Such an array has an entry for each pair of ``least`` tokens. Axes whose size is in ``widths``
    do not count. The search includes the inside of fusions.
    """
    instructions = sum(computations(text).values(), [])
    return [i for i in instructions if sum(n >= least and n not in widths for n in i.shape) > 1]


def array_results(text: str) -> list[Instruction]:
    """The instructions outside of fusions whose results are arrays, without arguments."""
    bodies = computations(text)
    inside = {name for body in bodies.values() for i in body if i.opcode == "fusion" for name in i.calls}
    return [
        i for name, body in bodies.items() if name not in inside for i in body if i.dtype and i.opcode not in _PASSED_ON
    ]


def largest(text: str) -> Instruction:
    """The instruction that makes the largest array, see ``array_results``."""
    return max(array_results(text), key=lambda i: i.size)


def host_calls(text: str) -> list[Instruction]:
    """The instructions in loops that exchange data with the host: callbacks, infeeds, outfeeds."""
    return [
        i for i in in_loops(text) if i.opcode.startswith(_HOST) or i.opcode == "custom-call" and "callback" in i.text
    ]
