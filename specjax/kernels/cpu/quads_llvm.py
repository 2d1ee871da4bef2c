"""The products of a quad's numbers with a row's, by the instructions of each kind of processor.

All give the same whole numbers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir

from .llvm import I8, I16, I32, I64
from .rounded_rows_llvm import ORDER
from .tile_kernel_llvm import Form, Kernel


class Way(NamedTuple):
    """A way to multiply.

    Attributes:
      rows: the most rows whose sums fit in the registers.
      add: adds the products of a quad to a sum. It takes the kernel, the sum, which is None before
        the first quad, the quad's bytes, and the place of the row's first number.
      whole: gives the sum of a group as lanes of 32 bits, of the kernel and what ``add`` returned.
    """

    rows: int
    add: Callable
    whole: Callable = lambda kernel, sum_: sum_


def way(form: Form) -> Way:
    """The way for a form's kind of instructions and numbers."""
    if form.kind == "plain":
        return Way(4, _one_by_one)
    if form.kind == "asimddp":
        return Way(1, _in_halves, _of_halves) if form.words else Way(3, _four_with_sign)
    if form.kind == "avx2" and not form.words:
        return Way(4, _in_small_sums, _of_small_sums)
    return Way(form.lanes // 2, _in_pairs if form.words else _four_at_once)


def _four_at_once(kernel: Kernel, sum_: Any, numbers, first):
    """VPDPBUSD of VNNI: the products of a quad are added to a lane. The rows are bytes."""
    sum_, row = kernel.same(I32, 0) if sum_ is None else sum_, _row(kernel, first)
    return kernel.call(f"llvm.x86.avx512.vpdpbusd.{32 * kernel.form.lanes}", sum_.type, sum_, numbers, row)


def _four_with_sign(kernel: Kernel, sum_: Any, numbers, first):
    """SDOT of Arm: the same for bytes with a sign."""
    return signed_dot(kernel, kernel.same(I32, 0) if sum_ is None else sum_, numbers, _row(kernel, first))


def _in_halves(kernel: Kernel, sums: Any, numbers, first):
    """SDOT for words 256 h + l + 128: the sums of numbers times h, times l, and of the numbers."""
    build = kernel.build
    words = kernel.load(kernel.arrays.rows, build.mul(first, I64(2)), I8, ir.VectorType(I8, 8))
    low, high = (_shuffle(kernel, words, [2 * place + half for place in ORDER]) for half in (0, 1))
    low = build.xor(low, kernel.same(I8, 128))
    sums = [kernel.same(I32, 0)] * 3 if sums is None else sums
    return [signed_dot(kernel, sum_, numbers, row) for sum_, row in zip(sums, (high, low, kernel.same(I8, 1)))]


def _of_halves(kernel: Kernel, sums: list):
    build, (high, low, ones) = kernel.build, sums
    return build.add(build.add(build.shl(high, kernel.same(I32, 8)), low), build.shl(ones, kernel.same(I32, 7)))


def signed_dot(kernel: Kernel, sum_, a, b):
    """The products of four bytes with a sign are added to each lane."""
    return kernel.call("llvm.aarch64.neon.sdot.v4i32.v16i8", sum_.type, sum_, a, b)


def _in_small_sums(kernel: Kernel, sum_: Any, numbers, first):
    """VPMADDUBSW of AVX2: sums of pairs in 16 bits, which hold eight quads of 4-bit numbers."""
    words = ir.VectorType(I16, 2 * kernel.form.lanes)
    pairs = kernel.call("llvm.x86.avx2.pmadd.ub.sw", words, numbers, _row(kernel, first))
    return pairs if sum_ is None else kernel.build.add(sum_, pairs)


def _of_small_sums(kernel: Kernel, sum_):
    return kernel.call("llvm.x86.avx2.pmadd.wd", kernel.vector(I32), sum_, kernel.same(I16, 1))


def _in_pairs(kernel: Kernel, sum_: Any, numbers, first):
    """VPDPWSSD of VNNI, or VPMADDWD of AVX2: the products of pairs are added to a lane."""
    build, lanes = kernel.build, kernel.form.lanes
    lane, pair = kernel.vector(I32), ir.VectorType(I16, 2 * lanes)
    words = build.bitcast(numbers, pair)
    halves = build.and_(words, kernel.same(I16, 255)), build.lshr(words, kernel.same(I16, 8))
    sum_ = kernel.same(I32, 0) if sum_ is None else sum_
    for i, half in enumerate(halves):  # numbers 0 and 2, then 1 and 3
        index = build.add(build.mul(first, I64(2)), I64(4 * i))
        row = build.bitcast(kernel.spread(kernel.load(kernel.arrays.rows, index, I8, I32)), pair)
        if kernel.form.kind == "avx2":
            sum_ = build.add(sum_, kernel.call("llvm.x86.avx2.pmadd.wd", lane, half, row))
        else:
            sum_ = kernel.call(f"llvm.x86.avx512.vpdpwssd.{32 * lanes}", lane, sum_, half, row)
    return sum_


def _one_by_one(kernel: Kernel, sum_: Any, numbers, first):
    """Multiplications that every processor has."""
    build, lanes = kernel.build, kernel.build.bitcast(numbers, kernel.vector(I32))
    for k, place in enumerate(ORDER):
        number = build.and_(build.lshr(lanes, kernel.same(I32, 8 * place)), kernel.same(I32, 255))
        row = build.sext(kernel.load(kernel.arrays.rows, build.add(first, I64(k)), I16), I32)
        product = build.mul(number, kernel.spread(row))
        sum_ = product if sum_ is None else build.add(sum_, product)
    return sum_


def _row(kernel: Kernel, first):
    """The four bytes of a row from a place on, in each lane."""
    return kernel.build.bitcast(kernel.spread(kernel.load(kernel.arrays.rows, first, I8, I32)), kernel.bytes())


def _shuffle(kernel: Kernel, bytes_, places: list[int]):
    """Four bytes of a vector, in each lane."""
    mask = ir.Constant(ir.VectorType(I32, 4 * kernel.form.lanes), [I32(place) for place in places] * kernel.form.lanes)
    return kernel.build.shuffle_vector(bytes_, bytes_.type(ir.Undefined), mask)
