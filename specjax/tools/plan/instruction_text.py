"""Operands, results and sizes in the text of an instruction."""

import math
import re

from .hlo import Instruction

_BITS = {"pred": 8, "s4": 4, "u4": 4, "bf16": 16, "f16": 16, "f32": 32, "f64": 64}
_ARRAY = re.compile(r"\b(pred|bf16|[suf]\d+(?:e\d\w*)?)\[([\d,]*)\](\{[^}]*\})?")
_NAME = re.compile(r"%([\w.\-]+)")

FAST = "S(1)"
"""The mark of arrays in a TPU's fast memory."""

HOST = "S(5)"
"""The mark of arrays in the host's memory."""

JOINED = 'custom_call_target="ConcatBitcast"'
"""The mark of an operation that joins neighbouring arrays of fast memory to one."""


def place_of(i: Instruction) -> int:
    """The number of a parameter, or the index of a get-tuple-element."""
    match = re.search(r" parameter\((\d+)\)" if i.opcode == "parameter" else r"\), index=(\d+)", i.text)
    assert match is not None, i.text
    return int(match[1])


def operands_of(i: Instruction) -> list[str]:
    """The names of the operands, in their order."""
    return _NAME.findall(_arguments(i))


def result_of(i: Instruction) -> str:
    """The type of the result, as the text spells it."""
    return i.text.partition(" = ")[2].partition(f" {i.opcode}(")[0]


def _arguments(i: Instruction) -> str:
    rest = i.text.partition(f" {i.opcode}(")[2]
    return rest.partition("), ")[0]


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
