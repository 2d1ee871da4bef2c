"""The code of ``kernels.cpu.tiles``: y[r, o] = sum over groups g of the products of their numbers.

A vector has a lane for each output of a tile, so sums need no horizontal additions. The numbers of
four inputs of an output, a quad, are one lane of 32 bits. A group of rows shares each tile.

The sums of a group are whole numbers. They are exact, so every kind of instructions gives the same
bits, and a row's result does not depend on other rows.
"""

from typing import Any

from llvmlite import ir

from .llvm import FLOAT, I8, I32, I64, OPERAND, POINTER, RESULT, VOID, Call, declare, loop
from .quads_llvm import way
from .shared_call import SharedCall
from .tile_kernel_llvm import CHUNK, Arrays, Form, Kernel
from .tile_order import QUAD, TILE

_AHEAD = 1024
"""Bytes between the weights that are read and those that are fetched meanwhile."""


def tile_product(name: str, rows: int, helpers: int, *options: Any) -> Call:
    """The kernel for a number of rows and a ``Form`` of options, which ``helpers`` may share."""
    call, form = SharedCall(name), Form(*options)
    build, first = call.build, I64(0)
    names = [name for name in Arrays._fields if form.offsets or name != "offsets"]
    arrays = Arrays(**{name: call.data(OPERAND, i) for i, name in enumerate(names)})
    y, outputs = call.data(RESULT, 0), call.size(RESULT, 0, 1)
    groups = build.udiv(call.size(OPERAND, 2, 2 if form.stacked else 1), I64(TILE))
    tiles = build.udiv(outputs, I64(TILE))
    if form.stacked:
        number = build.sext(build.load(call.data(OPERAND, len(names)), typ=I32), I64)
        first = build.mul(number, call.size(OPERAND, 2, 1))
    kernel = Kernel(build, arrays, form, groups)
    blocks = -(-rows // way(form).rows)
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
                    to = build.add(to, build.add(build.mul(tile, I64(TILE)), I64(part * form.lanes)))
                    build.store(total, build.gep(y, [to], source_etype=FLOAT), align=4)
    return call.finish(helpers)


def _sums(kernel: Kernel, tile, row, rows: int) -> dict:
    """The sums of a tile for rows from ``row`` on, by row and part of the tile's outputs."""
    build, lanes = kernel.build, kernel.form.lanes
    zeros = ir.Constant(kernel.vector(FLOAT), [FLOAT(0)] * lanes)
    totals: dict = {(r, part): zeros for r in range(rows) for part in range(TILE // lanes)}
    start = build.mul(tile, kernel.groups)
    starts = [build.mul(build.add(row, I64(r)), kernel.groups) for r in range(rows)]
    with loop(build, I64(0), kernel.groups, 1, totals) as g:
        place = build.add(start, g)
        at = [build.add(first, g) for first in starts]
        _add_group(kernel, place, at, totals)
    return totals


def _chunk(kernel: Kernel, place, chunk: int, part: int):
    """The bytes of a chunk of the group at ``place``, of a part of the outputs."""
    build, size = kernel.build, 4 * kernel.form.lanes
    first = build.add(build.mul(place, I64(kernel.form.chunks * CHUNK)), I64(chunk * CHUNK + part * size))
    if part == 0:
        ahead = build.gep(kernel.arrays.weights, [build.add(first, I64(_AHEAD))], source_etype=I8)
        fetch = declare(build.module, "llvm.prefetch.p0", VOID, POINTER, I32, I32, I32)
        build.call(fetch, [ahead, I32(0), I32(3), I32(1)])  # to read, into the first cache, as data
    return kernel.load(kernel.arrays.weights, first, I8, kernel.bytes())


def _scale(kernel: Kernel, array, place, part: int):
    index = kernel.build.add(kernel.build.mul(place, I64(TILE)), I64(part * kernel.form.lanes))
    return kernel.load(array, index, FLOAT, kernel.vector(FLOAT))


def _add_group(kernel: Kernel, place, at: list, totals: dict) -> None:
    """Adds the products of a group to the totals."""
    build, arrays, form = kernel.build, kernel.arrays, kernel.form
    parts = sorted({part for _, part in totals})
    _, add, whole_of = way(form)
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
            whole = whole_of(kernel, sums[r, part])
            whole = build.sitofp(build.add(whole, less) if form.excess else whole, kernel.vector(FLOAT))
            factor = build.fmul(_scale(kernel, arrays.scales, place, part), kernel.spread(scale))
            totals[r, part] = kernel.multiply_add(whole, factor, totals[r, part])
            if form.offsets:
                offset = _scale(kernel, arrays.offsets, place, part)
                totals[r, part] = kernel.multiply_add(offset, kernel.spread(shift), totals[r, part])


def _quads(kernel: Kernel, bytes_, chunk: int) -> list:
    """The quads of a chunk, by number in the group, as bytes. The excess is in them."""
    build, form = kernel.build, kernel.form
    bytes_ = build.xor(bytes_, kernel.same(I8, form.excess * (1 if form.bits == 8 else 17)))
    if form.bits == 8:
        return [(chunk, bytes_)]
    low, high = build.and_(bytes_, kernel.same(I8, 15)), build.lshr(bytes_, kernel.same(I8, 4))
    return [(chunk, low), (chunk + form.chunks, high)]
