"""Counts the kernels that a compiled program launches on a GPU.

Each fusion, product, copy, sort, collective or call of a library counts once, wherever the compiled
text schedules it. The inside of a fusion launches nothing by itself. A sort and a call of a library
may run several kernels, so a count is a lower bound. Copies of a loop's condition to the host are
not counted.
"""

import re
from collections.abc import Callable

from .hlo import Instruction, computations

_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier", "add-dependency"}
"""Instructions that only name memory or order other instructions."""
_ENDS = ("-done", "-update")
"""The ends of asynchronous instructions. Their beginning is counted."""
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_BODY = re.compile(r"body=%?([\w.\-]+)")


def in_program(text: str) -> int:
    """The launches of a whole program.

    A loop whose number of iterations the compiler does not know counts as one iteration. Of the
    branches of a conditional, the one with the most launches counts.
    """
    bodies, inside = _counter(text)
    return inside(bodies[_entry(text)])


def in_round(text: str) -> int:
    """The launches of one iteration of the largest loop of a program, such as ``decode.run``.

    Loops within the iteration count as in ``in_program``.
    """
    bodies, inside = _counter(text)
    loops = [i for i in bodies[_entry(text)] if i.opcode == "while"]
    return max((inside(sum((bodies[name] for name in loop.calls), [])) for loop in loops), default=0)


def a_layer(shallow: str, deep: str, layers: int) -> float:
    """The launches of one layer in a round.

    They follow from the compiled texts of two models, of which ``deep`` has ``layers`` layers more.
    Launches that do not depend on the depth cancel.
    """
    return (in_round(deep) - in_round(shallow)) / layers


def _entry(text: str) -> str:
    match = re.search(r"^ENTRY %?([\w.\-]+)", text, re.M)
    if match is None:
        raise ValueError("the text is not that of a compiled program: it has no ENTRY computation")
    return match[1]


def _counter(text: str) -> tuple[dict[str, list[Instruction]], Callable[[list[Instruction]], int]]:
    """The computations of a program, and the function that counts the launches of instructions."""
    bodies = computations(text)

    def inside(instructions: list[Instruction]) -> int:
        return sum(launched(i) for i in instructions)

    def launched(i: Instruction) -> int:
        if i.opcode in _FREE or i.opcode.endswith(_ENDS):
            return 0
        called = [bodies[name] for name in i.calls if name in bodies]
        if i.opcode == "while":
            known = _TRIP_COUNT.search(i.text)
            body = _BODY.search(i.text)
            if known and body:  # The host counts the iterations, without the condition.
                return int(known[1]) * inside(bodies[body[1]])
            return sum(map(inside, called))
        if i.opcode == "conditional":
            return max(map(inside, called))
        if i.opcode in ("call", "async-start"):  # A command buffer is a call.
            return sum(map(inside, called))
        return 1

    return bodies, inside
