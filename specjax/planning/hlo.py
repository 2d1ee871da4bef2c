"""What XLA made of a program: the instructions inside its loops, read from the compiled text.

A loop that copies or converts something as large as a cache or a weight at every turn is correct and slow, and nothing but the
compiled text shows it.
"""

import dataclasses
import math
import re

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (?:(\w+)\[([\d,]*)\]\S*)?.*? ([a-z][a-z0-9\-]*)\(")
_CALLED = re.compile(r"(?:body|condition|calls|to_apply|\w+_computations?)=(\{[^}]*\}|%?[\w.\-]+)")
_BODY = re.compile(r"body=%?([\w.\-]+)")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation. ``shape`` is empty and ``dtype`` None where the result is a tuple."""

    name: str
    opcode: str
    dtype: str | None
    shape: tuple[int, ...]
    calls: tuple[str, ...]
    text: str

    @property
    def size(self) -> int:
        """Elements of the result; 0 for a tuple."""
        return math.prod(self.shape) if self.dtype else 0


def computations(text: str) -> dict[str, list[Instruction]]:
    """The computations of a compiled module, ``compiled.as_text()``, by name."""
    found, current = {}, []
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            current = found.setdefault(header[1], [])
        elif match := _INSTRUCTION.match(line):
            name, dtype, shape, opcode = match.groups()
            shape = tuple(int(n) for n in shape.split(",") if n) if shape else ()
            calls = tuple(re.findall(r"[\w.\-]+", " ".join(_CALLED.findall(line))))
            current.append(Instruction(name, opcode, dtype, shape, calls, line.strip()))
    return found


def in_loops(text: str) -> list[Instruction]:
    """The instructions that loops repeat: their bodies', and those of all computations that the bodies call."""
    found = computations(text)
    waiting = [_BODY.search(i.text)[1] for body in found.values() for i in body if i.opcode == "while"]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += [called for i in found[name] for called in i.calls]
    return [i for name, body in found.items() if name in seen for i in body]


def moved(text: str, sizes, opcodes=("copy",)) -> list[Instruction]:
    """The ``opcodes`` inside loops whose result has as many elements as one of ``sizes``: reshaped or not, it is a whole
    cache leaf or weight that moves. Prefetches to a TPU's faster memory (``copy-start``) are not meant."""
    sizes = set(sizes)
    return [i for i in in_loops(text) if i.opcode in opcodes and i.size in sizes]
