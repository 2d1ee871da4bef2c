"""Reads from a compiled loop the bytes that a round moves, and its collectives."""

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from ..evaluate.products import expected_times
from .hlo import Instruction, computations
from .instruction_bytes import FAST, HOST, JOINED, STARTS, InstructionBytes, operands_of, place_of, result_of, sizes_of

_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_BODY = re.compile(r"body=%?([\w.\-]+)")
_CONSTANT = re.compile(r" constant\((-?\d+)\)")
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_SAME = ("bitcast", "copy-done", "slice-done", "dynamic-slice-done")
"""Operations that hand on an array under another name."""


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

    A loop inside counts as often as it runs; a loop over experts counts as often as its scope
    expects. Of the branches of a conditional, the branch that moves most counts.

    Args:
      text: the compiled program.
      runs: how often a loop inside runs if that depends on the data.

    Attributes:
      steps: all instructions that the iteration runs.
    """

    def __init__(self, text: str, runs: float = 1):
        self._runs = runs
        self._bodies = computations(text)
        self._instructions = {i.name: i for body in self._bodies.values() for i in body}
        self._shapes = {name: result_of(i) for name, i in self._instructions.items()}
        self._bytes = InstructionBytes(self._bodies, self._shapes)
        self.steps = self._round()

    def collectives(self) -> list[Collective]:
        """The collectives, the largest first."""
        counts: dict[tuple[str, int], float] = {}
        for step in self.steps:
            i = step.instruction
            kind = i.opcode.removesuffix("-start")
            if kind in _COLLECTIVES:
                sizes = sizes_of(result_of(i))
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
        return int(self._moved(self.steps))

    def _moved(self, steps: list[Step]) -> float:
        """The bytes that the steps move."""
        return sum(step.times * self._bytes.moved(step.instruction, step.resident) for step in steps)

    def bytes_from_host(self) -> int:
        """Bytes that the iteration copies from the host's memory to the device's."""
        return int(sum(step.times * self._bytes.from_host(step.instruction) for step in self.steps))

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
            operands = operands_of(i)
            at = known.get(operands[0], False) if operands else False
            if i.opcode == "parameter":
                known[i.name] = marks[place_of(i)] if place_of(i) < len(marks) else False
            elif i.opcode == "get-tuple-element":
                known[i.name] = isinstance(at, set) and place_of(i) in at
            elif i.opcode in _SAME or JOINED in i.text:
                known[i.name] = at
            elif i.opcode in STARTS:
                known[i.name] = at and HOST not in self._shapes[operands[0]]
            elif i.opcode == "tuple":
                known[i.name] = {k for k, operand in enumerate(operands) if known.get(operand) is True}
            steps.append(Step(i, times, frozenset(operand for operand in operands if known.get(operand) is True)))
            steps += self._inside(i, times, [known.get(operand, False) for operand in operands])
        return steps

    def _inside(self, i: Instruction, times: float, marks: list) -> list[Step]:
        """The steps of the computations that an instruction runs."""
        if i.opcode == "conditional":
            branches = [self._walk(name, times, (one,)) for name, one in zip(i.calls, marks[1:])]
            return max(branches, key=self._moved, default=[])
        if i.opcode not in ("while", "call", "async-start"):
            return []
        times *= self._trips(i) if i.opcode == "while" else 1
        return [step for name in i.calls for step in self._walk(name, times, tuple(marks))]

    def _unchanged(self, loop: Instruction) -> set[int]:
        """The places of the arrays that an iteration leaves unchanged, such as weights."""
        body = self._body(loop)
        results = next((operands_of(i) for i in body if i.text.startswith("ROOT ")), [])
        places = {i.name: place_of(i) for i in body if i.opcode == "get-tuple-element"}
        return {place for place, name in enumerate(results) if places.get(name) == place}

    def _in_fast_memory(self, loop: Instruction) -> set[int]:
        """The places of the arrays that lie in fast memory between two iterations."""
        elements = [i for i in self._body(loop) if i.opcode == "get-tuple-element"]
        return {place_of(i) for i in elements if FAST in self._shapes[i.name]}

    def _body(self, loop: Instruction) -> list[Instruction]:
        match = _BODY.search(loop.text)
        return self._bodies.get(match[1], []) if match else []

    def _trips(self, loop: Instruction) -> float:
        """The number of runs of a loop.

        Its scope, the compiler's note, or a condition ``i < limit`` may have the number.
        """
        if expected := expected_times(loop.text):
            return expected
        if known := _TRIPS.search(loop.text):
            return int(known[1])
        condition = _CONDITION.search(loop.text)
        test = self._bodies.get(condition[1], [])[-1:] if condition else []
        if not test or test[0].opcode != "compare" or "direction=LT" not in test[0].text:
            return self._runs
        counter, limit = (self._instructions.get(name) for name in operands_of(test[0]))
        start = self._instructions.get(operands_of(loop)[0])
        if counter is None or counter.opcode != "get-tuple-element" or start is None or start.opcode != "tuple":
            return self._runs
        first = self._constant(operands_of(start)[place_of(counter)])
        last = self._constant(limit.name if limit else "")
        return self._runs if first is None or last is None else max(last - first, 0)

    def _constant(self, name: str) -> int | None:
        """The value of a constant, or of a copy of one."""
        i = self._instructions.get(name)
        if i is not None and i.opcode in ("copy", "bitcast"):
            return self._constant(operands_of(i)[0])
        match = _CONSTANT.search(i.text) if i is not None else None
        return int(match[1]) if match else None

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
