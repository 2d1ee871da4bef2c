"""The code of ``kernels.cpu.norms``, one row after another."""

from collections.abc import Callable

from llvmlite import ir

from .llvm import FLOAT, FLOATS, I16, I32, I64, INTS, LANES, OPERAND, POINTER, RESULT, Call, declare, loop


def row_norms(name: str, centred: bool, narrow: bool) -> Call:
    """The kernel: from x float32 [N, E] and weights [E] to y [N, E]; 16 divides E.

    The attribute has the bits of eps.

    ``narrow``: whether the weights are bfloat16, else float32.
    """
    call = Call(name)
    build = call.build
    x, weight, y = call.data(OPERAND, 0), call.data(OPERAND, 1), call.data(RESULT, 0)
    rows, size = (call.size(OPERAND, 0, axis) for axis in range(2))
    eps = build.bitcast(build.trunc(call.attribute(), I32), FLOAT)
    count = build.uitofp(size, FLOAT)

    def mean(add: Callable):
        """The mean of what ``add`` adds to a vector of sums at each place."""
        sums = {"sums": FLOATS([FLOAT(0)] * LANES)}
        with loop(build, I64(0), size, LANES, sums) as i:
            sums["sums"] = add(sums["sums"], i)
        reduce = declare(call.module, "llvm.vector.reduce.fadd.v16f32", FLOAT, FLOAT, FLOATS)
        total = build.call(reduce, [FLOAT(0), sums["sums"]], fastmath=["reassoc"])
        return build.fdiv(total, count)

    with loop(build, I64(0), rows, 1) as row:
        at = build.mul(row, size)
        values = lambda i: _load(build, x, build.add(at, i))
        middle = _spread(build, mean(lambda sums, i: build.fadd(sums, values(i))) if centred else FLOAT(0))
        from_middle = lambda i: build.fsub(values(i), middle) if centred else values(i)
        fma = declare(call.module, "llvm.fma.v16f32", FLOATS, FLOATS, FLOATS, FLOATS)
        squares = mean(lambda sums, i: build.call(fma, [from_middle(i), from_middle(i), sums]))
        root = build.call(declare(call.module, "llvm.sqrt.f32", FLOAT, FLOAT), [build.fadd(squares, eps)])
        factor = _spread(build, build.fdiv(FLOAT(1), root))
        with loop(build, I64(0), size, LANES) as i:
            normed = build.fmul(build.fmul(from_middle(i), factor), _weights(build, weight, i, narrow))
            build.store(normed, build.gep(y, [build.add(at, i)], source_etype=FLOAT), align=4)
    build.ret(POINTER(None))
    return call


def _load(build, of, at):
    return build.load(build.gep(of, [at], source_etype=FLOAT), typ=FLOATS, align=4)


def _weights(build, of, at, narrow: bool):
    if not narrow:
        return _load(build, of, at)
    halves = build.load(build.gep(of, [at], source_etype=I16), typ=ir.VectorType(I16, LANES), align=2)
    return build.bitcast(build.shl(build.zext(halves, INTS), INTS([I32(16)] * LANES)), FLOATS)


def _spread(build, x):
    vector = build.insert_element(FLOATS(ir.Undefined), x, I32(0))
    return build.shuffle_vector(vector, vector, INTS([I32(0)] * LANES))
