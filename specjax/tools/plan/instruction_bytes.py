"""The bytes that one run of an instruction moves, and the parts of its text."""

import math
import re
from collections.abc import Callable, Collection, Mapping

from .hlo import Instruction

_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier", "iota", "while",
    "conditional", "call", "async-start", "partition-id", "replica-id",
}  # fmt: skip
_SLICES = ("dynamic-slice", "gather", "slice")
_SLICE_STARTS = ("slice-start", "dynamic-slice-start")
STARTS = ("copy-start", *_SLICE_STARTS)
"""Operations that start a copy, and end while others run."""

_COPIES = ("copy", *_SLICES, *STARTS)
_VIEWS = ("bitcast", "bitcast-convert", "reshape")

_BITS = {"pred": 8, "s4": 4, "u4": 4, "bf16": 16, "f16": 16, "f32": 32, "f64": 64}

_ARRAY = re.compile(r"\b(pred|bf16|[suf]\d+(?:e\d\w*)?)\[([\d,]*)\](\{[^}]*\})?")

_NAME = re.compile(r"%([\w.\-]+)")

_IN_PLACE = re.compile(r"\{\d*\}: \((\d+), \{\}\)")
"""An operand in which a kernel writes one of its results."""

FAST = "S(1)"
"""The mark of arrays in a TPU's fast memory."""

HOST = "S(5)"
"""The mark of arrays in the host's memory."""

JOINED = 'custom_call_target="ConcatBitcast"'
"""The mark of an operation that joins neighbouring arrays of fast memory to one."""


class InstructionBytes:
    """Counts the bytes that instructions of a compiled program move.

    Args:
      bodies: the computations of the program, see ``hlo.computations``.
      shapes: the types of the results of all instructions, by their names.
    """

    def __init__(self, bodies: Mapping[str, list[Instruction]], shapes: Mapping[str, str]):
        self._bodies = bodies
        self._shapes = shapes

    def moved(self, i: Instruction, resident: Collection[str]) -> float:
        """The bytes that one run of an instruction reads from memory and writes to it.

        ``resident``: the names of its operands that count wherever they lie, see ``traffic.Step``.
        """
        operands = operands_of(i)
        if i.opcode in _FREE or i.opcode.endswith(("-done", "-update")) or JOINED in i.text:
            return 0.0

        def read(name: str) -> float:
            return sum(sizes_of(self._shapes.get(name, ""), elsewhere=name in resident))

        result = sum(sizes_of(result_of(i), elsewhere=False))
        if copied := self.from_host(i):
            return copied
        if i.opcode.endswith("-start"):
            new = int(i.opcode in _SLICE_STARTS)  # a slice follows its operand in the result, a copy precedes it
            if i.opcode in STARTS and operands[0] in resident and FAST in layouts(result_of(i))[new]:
                return 0.0  # the reads of the copy count
            started = sizes_of(result_of(i))[new] if new else sum(read(name) for name in operands[:1])
            return sizes_of(result_of(i), elsewhere=False)[new] + started
        if i.opcode in _SLICES:
            return 2 * result
        if i.opcode == "dynamic-update-slice":
            return 2 * read(operands[1])
        in_place = _IN_PLACE.findall(i.text.partition("output_to_operand_aliasing=")[2])
        if i.opcode == "custom-call" and in_place:
            return 2 * sum(read(name) for place, name in enumerate(operands) if str(place) not in in_place)
        if i.opcode == "fusion" and i.calls and i.calls[0] in self._bodies:
            return self._moved_by_fusion(self._bodies[i.calls[0]], operands, read, result)
        return result + sum(read(name) for name in operands)

    def _moved_by_fusion(
        self, inside: list[Instruction], operands: list[str], read: Callable[[str], float], result: float
    ) -> float:
        """The bytes that one run of a fusion moves.

        ``read`` and ``result``: the bytes of an operand and of the whole result, 0 in fast memory.
        """

        def size(name: str) -> float:
            return sum(sizes_of(self._shapes[name], elsewhere=False))

        written = [one for one in inside if one.opcode in ("dynamic-update-slice", "scatter")]
        total = 0.0
        for place, name in _parameters(inside):
            users = _users(name, inside, self._bodies)
            if place >= len(operands) or not read(operands[place]):
                continue
            if users and all(one.opcode in _SLICES and is_first for one, is_first in users):
                total += sum(size(one.name) for one, _ in users)
            elif not users or not all(one in written and is_first for one, is_first in users):
                total += read(operands[place])  # all of it, unless it is the array that is written in place
        if written:
            return total + sum(size(operands_of(one)[-1 if one.opcode == "scatter" else 1]) for one in written)
        return total + result

    def from_host(self, i: Instruction) -> float:
        """The bytes of a copy or a slice from the host's memory; 0 for another instruction."""
        if i.opcode not in _COPIES or HOST not in self._shapes.get(operands_of(i)[0], ""):
            return 0.0
        # The result of an instruction that starts a copy also names the operand, and holds small
        # numbers.
        return max(size for size, layout in zip(sizes_of(result_of(i)), layouts(result_of(i))) if HOST not in layout)


def _parameters(inside: list[Instruction]) -> list[tuple[int, str]]:
    """Place and name of each parameter of a fusion."""
    return [(place_of(i), i.name) for i in inside if i.opcode == "parameter"]


def _users(
    name: str, inside: list[Instruction], bodies: Mapping[str, list[Instruction]]
) -> list[tuple[Instruction, bool]]:
    """The instructions of a fusion that use a value, each with True if it is their first operand.

    They may see the value's bits under another type or shape, and may be in a fusion inside.
    """
    users: list[tuple[Instruction, bool]] = []
    for one in inside:
        if name not in (operands := operands_of(one)):
            continue
        if one.opcode in _VIEWS:
            users += _users(one.name, inside, bodies)
        elif one.opcode == "fusion" and one.calls and one.calls[0] in bodies:
            inner = bodies[one.calls[0]]
            aliases = [parameter for place, parameter in _parameters(inner) if operands[place] == name]
            users += [user for parameter in aliases for user in _users(parameter, inner, bodies)]
        else:
            users.append((one, operands[0] == name))
    return users


def place_of(i: Instruction) -> int:
    """The number of a parameter, or the index of a get-tuple-element."""
    match = re.search(r" parameter\((\d+)\)" if i.opcode == "parameter" else r"\), index=(\d+)", i.text)
    assert match is not None, i.text
    return int(match[1])


def operands_of(i: Instruction) -> list[str]:
    """The names of the operands, in their order."""
    return _NAME.findall(i.text.partition(f" {i.opcode}(")[2].partition("), ")[0])


def result_of(i: Instruction) -> str:
    """The type of the result, as the text spells it."""
    return i.text.partition(" = ")[2].partition(f" {i.opcode}(")[0]


def layouts(result: str) -> list[str]:
    """The layout of each array in a type, with the mark of its memory."""
    return [layout for _, _, layout in _ARRAY.findall(result)]


def sizes_of(result: str, elsewhere: bool = True) -> list[float]:
    """The bytes of each array in a type.

    Without ``elsewhere``, arrays in fast memory and in the host's memory count 0.
    """
    sizes = []
    for kind, shape, layout in _ARRAY.findall(result):
        elements = math.prod(int(n) for n in shape.split(",") if n)
        bits = _BITS.get(kind) or int(re.search(r"\d+", kind)[0])  # type: ignore[index]
        sizes.append(0 if not elsewhere and (FAST in layout or HOST in layout) else elements * bits / 8)
    return sizes or [0]
