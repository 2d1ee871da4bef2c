"""The code of ``kernels.cpu.tiles``: y[r, o] = sum over groups g of the products of their numbers.

A vector has a lane for each output of a tile, so sums need no horizontal additions. The numbers of
four inputs of an output, a quad, are one lane of 32 bits. A group of rows shares each tile.

The sums of a group are whole numbers. They are exact, so every kind of instructions gives the same
bits, and a row's result does not depend on other rows.
"""

from typing import Any, NamedTuple

from llvmlite import ir

from .llvm import FLOAT, I8, I16, I32, I64, OPERAND, POINTER, RESULT, VOID, Call, declare, loop
from .rounded_rows_llvm import ORDER
from .shared_call import SharedCall
from .tile_order import QUAD, TILE

_CHUNK = QUAD * TILE
"""Bytes. A chunk is a quad of each output for 8 bits, and two quads for 4 bits."""

_AHEAD = 1024
"""Bytes between the weights that are read and those that are fetched meanwhile."""

LANES = {"avx512_vnni": 16, "avx_vnni": 8, "avx2": 8, "plain": 16}
"""The lanes of a vector, by the kind of instructions."""

_ROWS = {"avx512_vnni": 8, "avx_vnni": 4, "avx2": 4, "plain": 4}
"""The most rows that share a tile's numbers in registers."""


class Form(NamedTuple):
    """The weights of a product.

    Attributes:
      bits: 4 or 8.
      group: the inputs that share a scale, a multiple of 8.
      offsets: Whether a group has an offset besides its scale.
      stacked: Whether the weight is one of several, whose number is an operand.
      words: Whether the rows are int16, as ``rounded_rows_llvm`` orders them, else int8.
    """

    bits: int
    group: int
    offsets: bool
    stacked: bool
    words: bool

    @property
    def excess(self) -> int:
        """This number is added to the weights' numbers, so that they are not negative."""
        return 128 if self.bits == 8 else 0 if self.offsets else 8

    @property
    def chunks(self) -> int:
        """The chunks of a group."""
        return self.group * self.bits * TILE // 8 // _CHUNK


class _Arrays(NamedTuple):
    """Pointers to the arrays of a product, in the order of the operands."""

    rows: Any
    weights: Any
    scales: Any
    row_scales: Any
    row_sums: Any
    offsets: Any = None


class _Kernel(NamedTuple):
    """What the functions below share."""

    build: ir.IRBuilder
    arrays: _Arrays
    form: Form
    kind: str
    groups: Any

    def vector(self, number) -> ir.VectorType:
        return ir.VectorType(number, LANES[self.kind])

    def bytes(self) -> ir.VectorType:
        return ir.VectorType(I8, 4 * LANES[self.kind])

    def same(self, number, value: int) -> ir.Constant:
        """A vector of one whole number."""
        size = LANES[self.kind] * 32 // number.width
        return ir.Constant(ir.VectorType(number, size), [number(value)] * size)

    def spread(self, value):
        """A vector of one number."""
        vector = self.vector(value.type)
        first = self.build.insert_element(vector(ir.Undefined), value, I32(0))
        mask = ir.Constant(self.vector(I32), [I32(0)] * LANES[self.kind])
        return self.build.shuffle_vector(first, vector(ir.Undefined), mask)

    def load(self, array, index, number, typ=None):
        at = self.build.gep(array, [index], source_etype=number)
        return self.build.load(at, typ=typ or number, align=1)

    def call(self, name: str, result, *values):
        function = declare(self.build.module, name, result, *[value.type for value in values])
        return self.build.call(function, values)

    def multiply_add(self, a, b, c):
        return self.call(f"llvm.fma.v{LANES[self.kind]}f32", a.type, a, b, c)


def tile_product(name: str, rows: int, helpers: int, kind: str, *options: Any) -> Call:
    """The kernel for a number of rows, which ``helpers`` may share.

    ``kind`` is one of ``LANES``, and ``options`` are those of ``Form``.
    """
    call, form = SharedCall(name), Form(*options)
    build, first = call.build, I64(0)
    names = [name for name in _Arrays._fields if form.offsets or name != "offsets"]
    arrays = _Arrays(**{name: call.data(OPERAND, i) for i, name in enumerate(names)})
    y, outputs = call.data(RESULT, 0), call.size(RESULT, 0, 1)
    groups = build.udiv(call.size(OPERAND, 2, 2 if form.stacked else 1), I64(TILE))
    tiles = build.udiv(outputs, I64(TILE))
    if form.stacked:
        number = build.sext(build.load(call.data(OPERAND, len(names)), typ=I32), I64)
        first = build.mul(number, call.size(OPERAND, 2, 1))
    kernel = _Kernel(build, arrays, form, kind, groups)
    blocks = -(-rows // _ROWS[kind])
    large = -(-rows // blocks)
    many = rows - (large - 1) * blocks  # so many blocks have so many rows, others one less
    start, end = call.part(tiles)
    with loop(build, start, end, 1) as tile:
        for size, low, high in ((large, 0, many * large), (large - 1, many * large, rows)):
            if low == high:
                continue
            with loop(build, I64(low), I64(high), size) as row:
                sums = _sums(kernel, build.add(first, tile), row, size)
                for (r, part), total in sums.items():
                    to = build.mul(build.add(row, I64(r)), outputs)
                    to = build.add(to, build.add(build.mul(tile, I64(TILE)), I64(part * LANES[kind])))
                    build.store(total, build.gep(y, [to], source_etype=FLOAT), align=4)
    return call.finish(helpers)


def _sums(kernel: _Kernel, tile, row, rows: int) -> dict:
    """The sums of a tile for rows from ``row`` on, by row and part of the tile's outputs."""
    build, kind = kernel.build, kernel.kind
    parts = TILE // LANES[kind]
    totals: dict = {(r, p): ir.Constant(kernel.vector(FLOAT), [FLOAT(0)] * LANES[kind])
                    for r in range(rows) for p in range(parts)}  # fmt: skip
    start = build.mul(tile, kernel.groups)
    starts = [build.mul(build.add(row, I64(r)), kernel.groups) for r in range(rows)]
    with loop(build, I64(0), kernel.groups, 1, totals) as g:
        place = build.add(start, g)
        at = [build.add(first, g) for first in starts]
        _add_group(kernel, place, at, totals)
    return totals


def _chunk(kernel: _Kernel, place, chunk: int, part: int):
    """The bytes of a chunk of the group at ``place``, of a part of the outputs."""
    build, size = kernel.build, 4 * LANES[kernel.kind]
    first = build.add(build.mul(place, I64(kernel.form.chunks * _CHUNK)), I64(chunk * _CHUNK + part * size))
    if part == 0:
        ahead = build.gep(kernel.arrays.weights, [build.add(first, I64(_AHEAD))], source_etype=I8)
        fetch = declare(build.module, "llvm.prefetch.p0", VOID, POINTER, I32, I32, I32)
        build.call(fetch, [ahead, I32(0), I32(3), I32(1)])  # to read, into the first cache, as data
    return kernel.load(kernel.arrays.weights, first, I8, kernel.bytes())


def _scale(kernel: _Kernel, array, place, part: int):
    index = kernel.build.add(kernel.build.mul(place, I64(TILE)), I64(part * LANES[kernel.kind]))
    return kernel.load(array, index, FLOAT, kernel.vector(FLOAT))


def _add_group(kernel: _Kernel, place, at: list, totals: dict) -> None:
    """Adds the products of a group to the totals."""
    build, arrays, form = kernel.build, kernel.arrays, kernel.form
    parts = sorted({part for _, part in totals})
    small = kernel.kind == "avx2" and not form.words
    in_lanes = _in_pairs if form.words else _four_at_once
    add = _one_by_one if kernel.kind == "plain" else _in_small_sums if small else in_lanes
    sums: dict = dict.fromkeys(totals)
    for chunk in range(form.chunks):
        for part in parts:
            for quad, numbers in _quads(kernel, _chunk(kernel, place, chunk, part), chunk):
                for r, index in enumerate(at):
                    first = build.add(build.mul(index, I64(form.group)), I64(quad * QUAD))
                    sums[r, part] = add(kernel, sums[r, part], numbers, first)
    for r, index in enumerate(at):
        sum_, scale = kernel.load(arrays.row_sums, index, I32), kernel.load(arrays.row_scales, index, FLOAT)
        less = kernel.spread(build.mul(sum_, I32(-form.excess)))
        shift = build.fmul(build.sitofp(sum_, FLOAT), scale)
        for part in parts:
            whole = sums[r, part]
            if small:
                whole = kernel.call("llvm.x86.avx2.pmadd.wd", kernel.vector(I32), whole, kernel.same(I16, 1))
            whole = build.sitofp(build.add(whole, less) if form.excess else whole, kernel.vector(FLOAT))
            factor = build.fmul(_scale(kernel, arrays.scales, place, part), kernel.spread(scale))
            totals[r, part] = kernel.multiply_add(whole, factor, totals[r, part])
            if form.offsets:
                offset = _scale(kernel, arrays.offsets, place, part)
                totals[r, part] = kernel.multiply_add(offset, kernel.spread(shift), totals[r, part])


def _quads(kernel: _Kernel, bytes_, chunk: int) -> list:
    """The quads of a chunk, by number in the group, as bytes. The excess is in them."""
    build, form = kernel.build, kernel.form
    bytes_ = build.xor(bytes_, kernel.same(I8, form.excess * (1 if form.bits == 8 else 17)))
    if form.bits == 8:
        return [(chunk, bytes_)]
    low, high = build.and_(bytes_, kernel.same(I8, 15)), build.lshr(bytes_, kernel.same(I8, 4))
    return [(chunk, low), (chunk + form.chunks, high)]


def _four_at_once(kernel: _Kernel, sum_: Any, numbers, first):
    """VPDPBUSD of VNNI: the products of a quad are added to a lane. The rows are bytes."""
    row = kernel.build.bitcast(kernel.spread(kernel.load(kernel.arrays.rows, first, I8, I32)), kernel.bytes())
    sum_ = kernel.same(I32, 0) if sum_ is None else sum_
    return kernel.call(f"llvm.x86.avx512.vpdpbusd.{32 * LANES[kernel.kind]}", sum_.type, sum_, numbers, row)


def _in_small_sums(kernel: _Kernel, sum_: Any, numbers, first):
    """VPMADDUBSW of AVX2: sums of pairs in 16 bits, which hold eight quads of 4-bit numbers."""
    row = kernel.build.bitcast(kernel.spread(kernel.load(kernel.arrays.rows, first, I8, I32)), kernel.bytes())
    words = ir.VectorType(I16, 2 * LANES[kernel.kind])
    pairs = kernel.call("llvm.x86.avx2.pmadd.ub.sw", words, numbers, row)
    return pairs if sum_ is None else kernel.build.add(sum_, pairs)


def _in_pairs(kernel: _Kernel, sum_: Any, numbers, first):
    """VPDPWSSD of VNNI, or VPMADDWD of AVX2: the products of pairs are added to a lane."""
    build, lanes = kernel.build, LANES[kernel.kind]
    lane, pair = kernel.vector(I32), ir.VectorType(I16, 2 * lanes)
    words = build.bitcast(numbers, pair)
    halves = build.and_(words, kernel.same(I16, 255)), build.lshr(words, kernel.same(I16, 8))
    sum_ = kernel.same(I32, 0) if sum_ is None else sum_
    for i, half in enumerate(halves):  # numbers 0 and 2, then 1 and 3
        index = build.add(build.mul(first, I64(2)), I64(4 * i))
        row = build.bitcast(kernel.spread(kernel.load(kernel.arrays.rows, index, I8, I32)), pair)
        if kernel.kind == "avx2":
            sum_ = build.add(sum_, kernel.call("llvm.x86.avx2.pmadd.wd", lane, half, row))
        else:
            sum_ = kernel.call(f"llvm.x86.avx512.vpdpwssd.{32 * lanes}", lane, sum_, half, row)
    return sum_


def _one_by_one(kernel: _Kernel, sum_: Any, numbers, first):
    """Multiplications that every processor has."""
    build, lanes = kernel.build, kernel.build.bitcast(numbers, kernel.vector(I32))
    for k, place in enumerate(ORDER):
        number = build.and_(build.lshr(lanes, kernel.same(I32, 8 * place)), kernel.same(I32, 255))
        row = build.sext(kernel.load(kernel.arrays.rows, build.add(first, I64(k)), I16), I32)
        product = build.mul(number, kernel.spread(row))
        sum_ = product if sum_ is None else build.add(sum_, product)
    return sum_
