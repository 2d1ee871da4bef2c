"""Rounds rows of floats to whole numbers, with a scale for each group of inputs.

a[r, i] = rint(x[r, i] / d[r, g]), d[r, g] = max |x[r, i]| / most over the inputs i of group g.
"""

from llvmlite import ir

from .llvm import FLOAT, I8, I16, I32, I64, OPERAND, POINTER, RESULT, Call, declare, loop

ORDER = 0, 2, 1, 3
"""The order of four numbers in words, because a product takes a weight's even bytes first."""

_LEAST = 1e-30
"""A group whose numbers are all smaller becomes zeros. The inverse of its scale would overflow."""


def rounded_rows(name: str, group: int, most: int, words: bool) -> Call:
    """The kernel: from x float32 [N, in] to a [N, in], d float32 [N, G], sums of a int32 [N, G].

    Args:
      group: the inputs of a group.
      most: the largest number.
      words: Whether a is int16, each four numbers in ``ORDER``, else int8.
    """
    call = Call(name)
    build = call.build
    x = call.data(OPERAND, 0)
    numbers, scales, sums = (call.data(RESULT, i) for i in range(3))
    count = build.mul(call.size(RESULT, 1, 0), call.size(RESULT, 1, 1))
    floats, ints = ir.VectorType(FLOAT, group), ir.VectorType(I32, group)
    spread = ir.Constant(ints, [I32(0)] * group)
    with loop(build, I64(0), count, 1) as g:
        first = build.mul(g, I64(group))
        values = build.load(build.gep(x, [first], source_etype=FLOAT), typ=floats, align=4)
        size = build.call(declare(build.module, f"llvm.fabs.v{group}f32", floats, floats), [values])
        reduce = declare(build.module, f"llvm.vector.reduce.fmax.v{group}f32", FLOAT, floats)
        largest = build.call(reduce, [size], fastmath=["nnan"])
        usable = build.fcmp_ordered(">", largest, FLOAT(_LEAST))
        inverse = build.select(usable, build.fdiv(FLOAT(most), largest), FLOAT(0))
        factor = build.insert_element(floats(ir.Undefined), inverse, I32(0))
        factor = build.shuffle_vector(factor, floats(ir.Undefined), spread)
        rint = declare(build.module, f"llvm.rint.v{group}f32", floats, floats)
        rounded = build.fptosi(build.call(rint, [build.fmul(values, factor)]), ints)
        add = declare(build.module, f"llvm.vector.reduce.add.v{group}i32", I32, ints)
        build.store(build.fdiv(largest, FLOAT(most)), build.gep(scales, [g], source_etype=FLOAT))
        build.store(build.call(add, [rounded]), build.gep(sums, [g], source_etype=I32))
        number = I16 if words else I8
        if words:
            order = ir.Constant(ints, [I32(4 * i + k) for i in range(group // 4) for k in ORDER])
            rounded = build.shuffle_vector(rounded, ints(ir.Undefined), order)
        narrow = build.trunc(rounded, ir.VectorType(number, group))
        build.store(narrow, build.gep(numbers, [first], source_etype=number), align=1)
    build.ret(POINTER(None))
    return call
