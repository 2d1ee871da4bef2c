"""The code of ``kernels.cpu.product``: y[r, o] = sum over i of x[r, i] w[first + o, i].

A block of outputs is computed for a group of rows, with all sums in registers. Several groups share
a tile of outputs, whose weights they find in a cache. Meanwhile the next tile is fetched into the
second cache: a processor does not fetch far enough ahead by itself.

Weights of fewer bits are widened in registers. int4 numbers have a scale for each group of inputs.
"""

from typing import Any, NamedTuple

from llvmlite import ir

from .llvm import FLOAT, FLOATS, I8, I32, I64, INTS, LANES, OPERAND, POINTER, RESULT, VOID, Call, declare, least, loop

_TILE = 16
"""The outputs of a tile for several groups of rows."""

_STEP = {"int8": 64, "int4": 128}
"""The inputs of an iteration. For int4 they are a group."""

_BLOCK = 32
"""Bytes whose lower halves hold 32 int4 numbers, and whose upper halves hold the next 32."""


class _BFloat(ir.Type):
    """bfloat16, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


I16 = ir.IntType(16)
WORDS, BFLOATS = ir.VectorType(I16, 2 * LANES), ir.VectorType(_BFloat(), 2 * LANES)
_NOT_NEGATIVE = 0, 0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0
_NEGATIVE = 0xC100, 0xC0E0, 0xC0C0, 0xC0A0, 0xC080, 0xC040, 0xC000, 0xBF80
_INT4 = ir.Constant(WORDS, [I16(bits) for bits in _NOT_NEGATIVE + _NEGATIVE] * 2)
"""The bits in bfloat16 of 0 to 7 and -8 to -1, twice."""


class _Operands(NamedTuple):
    """The arrays of a product, as values of the program, and their forms.

    Attributes:
      x, w, scales: pointers to the rows, to the weights and to the scales; None without scales.
      inputs: the number of inputs.
      form, dot: see ``product``.
    """

    x: Any
    w: Any
    scales: Any
    inputs: Any
    form: str
    dot: bool


def product(name: str, rows: int, dot: bool, form: str, stacked: bool) -> Call:
    """The kernel for a number of rows.

    Args:
      dot: Whether x is bfloat16 and the processor has VDPBF16PS, which adds 32 products to 16 sums.
        Without it x is float32, and the weights are widened.
      form: "bfloat16", "int8" or "int4".
      stacked: Whether w is one of several bfloat16 matrices [X, o, i], whose number is the third
        operand.
    """
    call = Call(name)
    build, first = call.build, call.attribute()
    x, w, y = call.data(OPERAND, 0), call.data(OPERAND, 1), call.data(RESULT, 0)
    scales = call.data(OPERAND, 2) if form == "int4" else None
    inputs, outputs = call.size(OPERAND, 0, 1), call.size(RESULT, 0, 1)
    if stacked:
        number = build.sext(build.load(call.data(OPERAND, 2), typ=I32), I64)
        first = build.add(first, build.mul(number, call.size(OPERAND, 1, 1)))
    operands = _Operands(x, w, scales, inputs, form, dot)
    block, most = (4, 6) if dot else (4, 1) if rows == 1 else (2, 3)
    count = -(-rows // most)
    tile = _TILE if count > 1 else block
    with loop(build, I64(0), outputs, tile) as tile_start:
        tile_end = least(build, build.add(tile_start, I64(tile)), outputs)
        for g in range(count):
            group, fetched = (range(n * g // count, n * (g + 1) // count) for n in (rows, block))
            with loop(build, tile_start, tile_end, block) as o:
                start = build.mul(build.add(first, o), inputs)
                ahead = {k: build.mul(inputs, I64(tile + k)) for k in fetched}
                sums = _products(build, operands, start, group, block, ahead)
                for (r, k), total in sums.items():
                    to = build.add(build.mul(outputs, I64(r)), build.add(o, I64(k)))
                    build.store(total, build.gep(y, [to], source_etype=FLOAT))
    build.ret(POINTER(None))
    return call


def _products(build, operands: _Operands, start, group: range, block: int, ahead: dict) -> dict:
    """The sums, by row and output, of a group of rows with a block of outputs.

    The weights of the block begin at ``start``.

    Args:
      ahead: Distances from ``start`` to weights that the second cache fetches meanwhile.
    """
    x, w, scales, inputs, form, dot = operands
    lanes, number = (2 * LANES, _BFloat()) if dot else (LANES, FLOAT)
    step, operand = _STEP.get(form, lanes), ir.VectorType(number, lanes)
    sums: dict = {(r, k): FLOATS([FLOAT(0)] * LANES) for r in group for k in range(block)}
    with loop(build, I64(0), inputs, step, sums) as i:
        at = [build.add(start, build.add(i, build.mul(inputs, I64(k)))) for k in range(block)]
        weights = {k: _weights(build, w, at[k], form, dot) for k in range(block) if form == "bfloat16"}
        for distance in ahead.values():
            later = _pointer(build, w, build.add(start, build.add(i, distance)), form)
            call = declare(build.module, "llvm.prefetch.p0", VOID, POINTER, I32, I32, I32)
            build.call(call, [later, I32(0), I32(2), I32(1)])  # to read, into the second cache, as data
        pairs = [(r, k) for r in group for k in range(block)]
        # Widened weights take registers, so one output after another widens its own.
        for r, k in pairs if form == "bfloat16" else sorted(pairs, key=lambda pair: pair[1]):
            if k not in weights:
                weights[k] = _weights(build, w, at[k], form, dot)
            index = build.add(build.mul(inputs, I64(r)), i)
            places = [build.add(index, I64(n * lanes)) for n in range(step // lanes)]
            row = [build.load(build.gep(x, [n], source_etype=number), typ=operand, align=2) for n in places]
            sum_ = sums[r, k] if scales is None else FLOATS([FLOAT(0)] * LANES)
            for part, values in zip(weights[k], row):
                sum_ = _multiply_add(build, sum_, part, values, dot)
            sums[r, k] = sum_ if scales is None else _scaled(build, scales, at[k], sum_, sums[r, k])
    add = declare(build.module, "llvm.vector.reduce.fadd.v16f32", FLOAT, FLOAT, FLOATS)
    return {at: build.call(add, [FLOAT(0), sum_], fastmath=["reassoc"]) for at, sum_ in sums.items()}


def _pointer(build, w, index, form: str, offset: int = 0):
    """The pointer to the weight at ``index``, and ``offset`` bytes further."""
    if form == "int4":
        index = build.lshr(index, I64(1))
    at = build.gep(w, [index], source_etype=_BFloat() if form == "bfloat16" else I8)
    return build.gep(at, [I64(offset)], source_etype=I8) if offset else at


def _weights(build, w, index, form: str, dot: bool) -> list:
    """The weights of an iteration, in vectors of as many numbers as a row's."""
    if form == "int8":
        halves = [_int8(build, _pointer(build, w, index, form, n)) for n in range(0, _STEP[form], LANES)]
        return [_narrow(build, *pair) for pair in zip(halves[::2], halves[1::2])] if dot else halves
    if form == "int4":
        blocks = [_pointer(build, w, index, form, n) for n in range(0, _STEP[form] // 2, _BLOCK)]
        return [part for at in blocks for part in (_int4_words if dot else _int4_floats)(build, at)]
    at = _pointer(build, w, index, form)
    if dot:
        return [build.load(at, typ=BFLOATS, align=2)]
    # A bfloat16 number is the upper half of a float32 number.
    wide = build.zext(build.load(at, typ=ir.VectorType(I16, LANES), align=2), INTS)
    return [build.bitcast(build.shl(wide, INTS([I32(16)] * LANES)), FLOATS)]


def _int8(build, at):
    """16 int8 numbers as floats."""
    return build.sitofp(build.sext(build.load(at, typ=ir.VectorType(I8, LANES), align=1), INTS), FLOATS)


def _narrow(build, low, high):
    """32 bfloat16 numbers from two vectors of floats that they hold exactly."""
    convert = declare(build.module, "llvm.x86.avx512bf16.cvtne2ps2bf16.512", BFLOATS, FLOATS, FLOATS)
    return build.call(convert, [high, low])


def _int4_words(build, at) -> list:
    """64 int4 numbers in two vectors of bfloat16, which a table gives."""
    bytes_ = build.zext(build.load(at, typ=ir.VectorType(I8, _BLOCK), align=1), WORDS)
    pick = declare(build.module, "llvm.x86.avx512.permvar.hi.512", WORDS, WORDS, WORDS)
    parts = build.and_(bytes_, WORDS([I16(15)] * _BLOCK)), build.lshr(bytes_, WORDS([I16(4)] * _BLOCK))
    return [build.bitcast(build.call(pick, [_INT4, part]), BFLOATS) for part in parts]


def _int4_floats(build, at) -> list:
    """64 int4 numbers in four vectors of floats."""
    starts = [build.gep(at, [I64(n)], source_etype=I8) for n in range(0, _BLOCK, LANES)]
    bytes_ = [build.sext(build.load(start, typ=ir.VectorType(I8, LANES), align=1), INTS) for start in starts]
    shift = lambda operation, part, n: operation(part, INTS([I32(n)] * LANES))
    parts = [shift(build.ashr, shift(build.shl, part, 28), 28) for part in bytes_]
    parts += [shift(build.ashr, part, 4) for part in bytes_]
    return [build.sitofp(part, FLOATS) for part in parts]


def _scaled(build, scales, index, sum_, total):
    """``total`` plus the sums of a group times the group's scale.

    The group's weights begin at ``index``.
    """
    at = build.gep(scales, [build.lshr(index, I64(7))], source_etype=FLOAT)
    scale = build.load(at, typ=FLOAT, align=4)
    first = build.insert_element(FLOATS(ir.Undefined), scale, I32(0))
    spread = build.shuffle_vector(first, FLOATS(ir.Undefined), INTS([I32(0)] * LANES))
    return _fma(build, sum_, spread, total)


def _multiply_add(build, sum_, weights, row, dot: bool):
    if dot:
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        return build.call(declare(build.module, name, FLOATS, FLOATS, BFLOATS, BFLOATS), [sum_, weights, row])
    return _fma(build, weights, row, sum_)


def _fma(build, a, b, c):
    return build.call(declare(build.module, "llvm.fma.v16f32", FLOATS, FLOATS, FLOATS, FLOATS), [a, b, c])
