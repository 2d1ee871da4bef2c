"""The code of ``kernels.cpu.product``: y[r, o] = sum over i of x[r, i] w[first + o, i].

A block of outputs is computed for a group of rows, with all sums in registers. Several groups share
a tile of outputs, whose weights they find in a cache. Meanwhile the next tile is fetched into the
second cache: a processor does not fetch far enough ahead by itself.
"""

from typing import Any, NamedTuple

from llvmlite import ir

from .llvm import FLOAT, FLOATS, I32, I64, LANES, OPERAND, POINTER, RESULT, VOID, Call, declare, least, loop
from .shared_call import SharedCall
from .vectors_llvm import widen

BLOCK = 4
"""Outputs. A chunk has whole blocks."""

_TILE = 16
"""The outputs of a tile for several groups of rows."""


class _BFloat(ir.Type):
    """bfloat16, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


BFLOATS = ir.VectorType(_BFloat(), 2 * LANES)


class _Operands(NamedTuple):
    """The arrays of a product, as values of the program.

    Attributes:
      x, w: pointers to the rows and to the weights.
      inputs: the number of inputs.
      dot: see ``product``.
    """

    x: Any
    w: Any
    inputs: Any
    dot: bool


def product(name: str, rows: int, helpers: int, dot: bool, stacked: bool) -> Call:
    """The kernel for a number of rows, which ``helpers`` may share.

    Args:
      dot: Whether x is bfloat16 and the processor has VDPBF16PS, which adds 32 products to 16 sums.
        Without it x is float32, and the weights are widened.
      stacked: Whether w is one of several matrices [X, o, i], whose number is the third operand.
    """
    call = SharedCall(name)
    build, first = call.build, I64(0)
    x, w, y = call.data(OPERAND, 0), call.data(OPERAND, 1), call.data(RESULT, 0)
    inputs, outputs = call.size(OPERAND, 0, 1), call.size(RESULT, 0, 1)
    if stacked:
        number = build.sext(build.load(call.data(OPERAND, 2), typ=I32), I64)
        first = build.mul(number, call.size(OPERAND, 1, 1))
    operands = _Operands(x, w, inputs, dot)
    block, most = (BLOCK, 6) if dot else (BLOCK, 1) if rows == 1 else (2, 3)
    count = -(-rows // most)
    tile = _TILE if count > 1 else block
    start, end = call.part(build.udiv(outputs, I64(BLOCK)))
    start, end = (build.mul(bound, I64(BLOCK)) for bound in (start, end))
    with loop(build, start, end, tile) as tile_start:
        tile_end = least(build, build.add(tile_start, I64(tile)), end)
        for g in range(count):
            group, fetched = (range(n * g // count, n * (g + 1) // count) for n in (rows, block))
            with loop(build, tile_start, tile_end, block) as o:
                start = build.mul(build.add(first, o), inputs)
                ahead = {k: build.mul(inputs, I64(tile + k)) for k in fetched}
                sums = _products(build, operands, start, group, block, ahead)
                for (r, k), total in sums.items():
                    to = build.add(build.mul(outputs, I64(r)), build.add(o, I64(k)))
                    build.store(total, build.gep(y, [to], source_etype=FLOAT))
    return call.finish(helpers)


def _products(build, operands: _Operands, start, group: range, block: int, ahead: dict) -> dict:
    """The sums, by row and output, of a group of rows with a block of outputs.

    The weights of the block begin at ``start``.

    ``ahead``: Distances from ``start`` to weights that the second cache fetches meanwhile.
    """
    x, w, inputs, dot = operands
    lanes, number = (2 * LANES, _BFloat()) if dot else (LANES, FLOAT)
    operand = ir.VectorType(number, lanes)
    sums: dict = {(r, k): FLOATS([FLOAT(0)] * LANES) for r in group for k in range(block)}
    with loop(build, I64(0), inputs, lanes, sums) as i:
        at = [build.add(start, build.add(i, build.mul(inputs, I64(k)))) for k in range(block)]
        weights = [_weights(build, w, index, dot) for index in at]
        for distance in ahead.values():
            later = build.gep(w, [build.add(start, build.add(i, distance))], source_etype=_BFloat())
            call = declare(build.module, "llvm.prefetch.p0", VOID, POINTER, I32, I32, I32)
            build.call(call, [later, I32(0), I32(2), I32(1)])  # to read, into the second cache, as data
        for r in group:
            index = build.add(build.mul(inputs, I64(r)), i)
            row = build.load(build.gep(x, [index], source_etype=number), typ=operand, align=2)
            for k in range(block):
                sums[r, k] = _multiply_add(build, sums[r, k], weights[k], row, dot)
    add = declare(build.module, "llvm.vector.reduce.fadd.v16f32", FLOAT, FLOAT, FLOATS)
    return {at: build.call(add, [FLOAT(0), sum_], fastmath=["reassoc"]) for at, sum_ in sums.items()}


def _weights(build, w, index, dot: bool):
    """The weights of an iteration, in a vector of as many numbers as a row's."""
    at = build.gep(w, [index], source_etype=_BFloat())
    if dot:
        return build.load(at, typ=BFLOATS, align=2)
    return widen(build, at)


def _multiply_add(build, sum_, weights, row, dot: bool):
    if dot:
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        return build.call(declare(build.module, name, FLOATS, FLOATS, BFLOATS, BFLOATS), [sum_, weights, row])
    return build.call(declare(build.module, "llvm.fma.v16f32", FLOATS, FLOATS, FLOATS, FLOATS), [weights, row, sum_])
