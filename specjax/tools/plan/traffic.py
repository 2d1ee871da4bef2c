"""Reads from a compiled loop the bytes that a round moves, and its collectives."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from ..evaluate.products import expected_times
from .hlo import Instruction, computations

_BITS = {"pred": 8, "s4": 4, "u4": 4, "bf16": 16, "f16": 16, "f32": 32, "f64": 64}
_ARRAY = re.compile(r"\b(pred|bf16|[suf]\d+(?:e\d\w*)?)\[([\d,]*)\](\{[^}]*\})?")
_NAME = re.compile(r"%([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_BODY = re.compile(r"body=%?([\w.\-]+)")
_CONSTANT = re.compile(r" constant\((-?\d+)\)")
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier", "iota", "while",
    "conditional", "call", "async-start", "partition-id", "replica-id",
}  # fmt: skip
_SLICES = ("dynamic-slice", "gather", "slice")
_SLICE_STARTS = ("slice-start", "dynamic-slice-start")
_STARTS = ("copy-start", *_SLICE_STARTS)
_COPIES = ("copy", *_SLICES, *_STARTS)
_SAME = ("bitcast", "copy-done", "slice-done", "dynamic-slice-done")
"""Operations that hand on an array under another name."""
_JOINED = 'custom_call_target="ConcatBitcast"'
"""The mark of an operation that joins neighbouring arrays of fast memory to one."""
_VIEWS = ("bitcast", "bitcast-convert", "reshape")
_FAST = "S(1)"
"""The mark of arrays in a TPU's fast memory."""
_HOST = "S(5)"
"""The mark of arrays in the host's memory."""


@dataclasses.dataclass(frozen=True)
class Collective:
    """Collectives of one kind and size in a round.

    Attributes:
      kind: such as "all-reduce".
      bytes: the size of the result on one device.
      count: how often a round runs it.
    """

    kind: str
    bytes: int
    count: int


@dataclasses.dataclass(frozen=True)
class Step:
    """An instruction that a round runs.

    Attributes:
      times: how often the round runs it.
      resident: the names of its operands that are weights or their copies, or that stay in a TPU's
        fast memory from round to round.
    """

    instruction: Instruction
    times: float
    resident: frozenset[str]


class Program:
    """One iteration of the largest loop of a compiled program, such as ``decode.run``.

    A loop inside counts as often as it runs, and once if that depends on the data; a loop over
    experts counts as often as its scope expects. Of the branches of a conditional, the branch that
    moves most counts.

    Attributes:
      steps: all instructions that the iteration runs.
    """

    def __init__(self, text: str):
        self._bodies = computations(text)
        self._instructions = {i.name: i for body in self._bodies.values() for i in body}
        self._shapes = {name: _result(i) for name, i in self._instructions.items()}
        self.steps = self._round()

    def collectives(self) -> list[Collective]:
        """The collectives, the largest first."""
        counts: dict[tuple[str, int], float] = {}
        for step in self.steps:
            i = step.instruction
            kind = i.opcode.removesuffix("-start")
            if kind in _COLLECTIVES:
                sizes = _sizes(_result(i))
                size = int(sizes[-1] if i.opcode.endswith("-start") else sum(sizes))
                counts[kind, size] = counts.get((kind, size), 0) + step.times
        listed = [Collective(kind, size, round(count)) for (kind, size), count in counts.items()]
        return sorted(listed, key=lambda one: -one.bytes * one.count)

    def bytes_moved(self) -> int:
        """Bytes that the iteration reads from memory and writes to it.

        A fusion that reads a slice of an operand counts the slice, and a write into a part of an
        array counts the part. Intermediate results in a TPU's fast memory do not count; a copy into
        fast memory counts as a read. A copy from the host's memory counts as a write.

        Weights count for each instruction that reads them, as if all of them lay in memory: their
        copies into fast memory do not count. Other arrays that stay in fast memory from round to
        round count in the same way. A compiler keeps another part of the weights in fast memory for
        each number of layers. Only the count by reads grows linearly with that number.
        """
        return int(sum(step.times * self._moved(step) for step in self.steps))

    def bytes_from_host(self) -> int:
        """Bytes that the iteration copies from the host's memory to the device's."""
        return int(sum(step.times * self._copied_from_host(step.instruction) for step in self.steps))

    def _copied_from_host(self, i: Instruction) -> float:
        """The bytes of a copy or a slice from the host's memory; 0 for another instruction."""
        if i.opcode not in _COPIES or _HOST not in self._shapes.get(_operands(i)[0], ""):
            return 0.0
        # The result of an instruction that starts a copy also names the operand, and holds small
        # numbers.
        return max(size for size, layout in zip(_sizes(_result(i)), _layouts(_result(i))) if _HOST not in layout)

    def _round(self) -> list[Step]:
        loops = [i for body in self._bodies.values() for i in body if i.opcode == "while"]
        inside = {name for loop in loops for name in self._reached(loop.calls)}
        outermost = [loop for loop in loops if not any(loop in self._bodies[name] for name in inside)]
        if not outermost:
            return []

        def size(loop: Instruction) -> int:
            return sum(len(self._bodies[name]) for name in self._reached(loop.calls))

        largest = max(outermost, key=size)
        marked = self._unchanged(largest) | self._in_fast_memory(largest)
        return [step for name in largest.calls for step in self._walk(name, 1, (marked,))]

    def _walk(self, name: str, times: float, marks: tuple) -> list[Step]:
        """The steps of a computation.

        ``marks`` has an entry for each parameter: True for an array that is ``Step.resident``, or
        the places of such arrays in a tuple.
        """
        known: dict[str, Any] = {}
        steps = []
        for i in self._bodies.get(name, ()):
            operands = _operands(i)
            at = known.get(operands[0], False) if operands else False
            if i.opcode == "parameter":
                known[i.name] = marks[_place(i)] if _place(i) < len(marks) else False
            elif i.opcode == "get-tuple-element":
                known[i.name] = isinstance(at, set) and _place(i) in at
            elif i.opcode in _SAME or _JOINED in i.text:
                known[i.name] = at
            elif i.opcode in _STARTS:
                known[i.name] = at and _HOST not in self._shapes[operands[0]]
            elif i.opcode == "tuple":
                known[i.name] = {k for k, operand in enumerate(operands) if known.get(operand) is True}
            steps.append(Step(i, times, frozenset(operand for operand in operands if known.get(operand) is True)))
            steps += self._inside(i, times, [known.get(operand, False) for operand in operands])
        return steps

    def _inside(self, i: Instruction, times: float, marks: list) -> list[Step]:
        """The steps of the computations that an instruction runs."""
        if i.opcode == "conditional":
            branches = [self._walk(name, times, (one,)) for name, one in zip(i.calls, marks[1:])]
            return max(branches, key=lambda steps: sum(step.times * self._moved(step) for step in steps), default=[])
        if i.opcode not in ("while", "call", "async-start"):
            return []
        times *= self._trips(i) if i.opcode == "while" else 1
        return [step for name in i.calls for step in self._walk(name, times, tuple(marks))]

    def _unchanged(self, loop: Instruction) -> set[int]:
        """The places of the arrays that an iteration leaves unchanged, such as weights."""
        body = self._body(loop)
        results = next((_operands(i) for i in body if i.text.startswith("ROOT ")), [])
        places = {i.name: _place(i) for i in body if i.opcode == "get-tuple-element"}
        return {place for place, name in enumerate(results) if places.get(name) == place}

    def _in_fast_memory(self, loop: Instruction) -> set[int]:
        """The places of the arrays that lie in fast memory between two iterations."""
        elements = [i for i in self._body(loop) if i.opcode == "get-tuple-element"]
        return {_place(i) for i in elements if _FAST in self._shapes[i.name]}

    def _body(self, loop: Instruction) -> list[Instruction]:
        match = _BODY.search(loop.text)
        return self._bodies.get(match[1], []) if match else []

    def _trips(self, loop: Instruction) -> float:
        """The number of runs of a loop.

        Its scope, the compiler's note, or a condition ``i < limit`` has the number; else it is 1.
        """
        if expected := expected_times(loop.text):
            return expected
        if known := _TRIPS.search(loop.text):
            return int(known[1])
        condition = _CONDITION.search(loop.text)
        test = self._bodies.get(condition[1], [])[-1:] if condition else []
        if not test or test[0].opcode != "compare" or "direction=LT" not in test[0].text:
            return 1
        counter, limit = (self._instructions.get(name) for name in _operands(test[0]))
        start = self._instructions.get(_operands(loop)[0])
        if counter is None or counter.opcode != "get-tuple-element" or start is None or start.opcode != "tuple":
            return 1
        first = self._constant(_operands(start)[_place(counter)])
        last = self._constant(limit.name if limit else "")
        return 1 if first is None or last is None else max(last - first, 0)

    def _constant(self, name: str) -> int | None:
        """The value of a constant, or of a copy of one."""
        i = self._instructions.get(name)
        if i is not None and i.opcode in ("copy", "bitcast"):
            return self._constant(_operands(i)[0])
        match = _CONSTANT.search(i.text) if i is not None else None
        return int(match[1]) if match else None

    def _moved(self, step: Step) -> float:
        """The bytes that one run of an instruction reads from memory and writes to it."""
        i = step.instruction
        operands = _operands(i)
        if i.opcode in _FREE or i.opcode.endswith(("-done", "-update")) or _JOINED in i.text:
            return 0.0

        def read(name: str) -> float:
            return sum(_sizes(self._shapes.get(name, ""), elsewhere=name in step.resident))

        result = sum(_sizes(_result(i), elsewhere=False))
        if copied := self._copied_from_host(i):
            return copied
        if i.opcode.endswith("-start"):
            new = int(i.opcode in _SLICE_STARTS)  # a slice follows its operand in the result, a copy precedes it
            if i.opcode in _STARTS and operands[0] in step.resident and _FAST in _layouts(_result(i))[new]:
                return 0.0  # the reads of the copy count
            started = _sizes(_result(i))[new] if new else sum(read(name) for name in operands[:1])
            return _sizes(_result(i), elsewhere=False)[new] + started
        if i.opcode in _SLICES:
            return 2 * result
        if i.opcode == "dynamic-update-slice":
            return 2 * read(operands[1])
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
            return sum(_sizes(self._shapes[name], elsewhere=False))

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
            return total + sum(size(_operands(one)[-1 if one.opcode == "scatter" else 1]) for one in written)
        return total + result

    def _reached(self, names: Iterable[str]) -> set[str]:
        """The computations of these names, and all that they call."""
        seen = set()
        waiting = [name for name in names if name in self._bodies]
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += [called for i in self._bodies[name] for called in i.calls if called in self._bodies]
        return seen


def _parameters(inside: list[Instruction]) -> list[tuple[int, str]]:
    """Place and name of each parameter of a fusion."""
    return [(_place(i), i.name) for i in inside if i.opcode == "parameter"]


def _place(i: Instruction) -> int:
    """The number of a parameter, or the index of a get-tuple-element."""
    match = re.search(r" parameter\((\d+)\)" if i.opcode == "parameter" else r"\), index=(\d+)", i.text)
    assert match is not None, i.text
    return int(match[1])


def _operands(i: Instruction) -> list[str]:
    return _NAME.findall(_arguments(i))


def _users(
    name: str, inside: list[Instruction], bodies: dict[str, list[Instruction]]
) -> list[tuple[Instruction, bool]]:
    """The instructions of a fusion that use a value, each with True if it is their first operand.

    They may see the value's bits under another type or shape, and may be in a fusion inside.
    """
    users: list[tuple[Instruction, bool]] = []
    for one in inside:
        if name not in (operands := _operands(one)):
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


def _result(i: Instruction) -> str:
    """The type of the result, as the text spells it."""
    return i.text.partition(" = ")[2].partition(f" {i.opcode}(")[0]


def _arguments(i: Instruction) -> str:
    rest = i.text.partition(f" {i.opcode}(")[2]
    return rest.partition("), ")[0]


def _layouts(result: str) -> list[str]:
    """The layout of each array in a type, with the mark of its memory."""
    return [layout for _, _, layout in _ARRAY.findall(result)]


def _sizes(result: str, elsewhere: bool = True) -> list[float]:
    """The bytes of each array in a type.

    Without ``elsewhere``, arrays in fast memory and in the host's memory count 0.
    """
    sizes = []
    for kind, shape, layout in _ARRAY.findall(result):
        elements = math.prod(int(n) for n in shape.split(",") if n)
        bits = _BITS.get(kind) or int(re.search(r"\d+", kind)[0])  # type: ignore[index]
        sizes.append(0 if not elsewhere and (_FAST in layout or _HOST in layout) else elements * bits / 8)
    return sizes or [0]
