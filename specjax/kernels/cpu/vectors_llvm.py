"""Operations on vectors of 16 floats, in the code of a kernel."""

import math

from llvmlite import ir

from .llvm import FLOAT, FLOATS, I16, I32, I64, INTS, LANES, declare

_EXP = (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1, 1)
"""Taylor coefficients of exp, highest power first: 2e-8 relative for |r| <= log(2) / 2."""
_LOG2_E, _LN2_HIGH, _LN2_LOW, _LEAST = 1 / math.log(2), 0.693359375, -2.12194440e-4, -87.0


def exp(build, x):
    """exp(x) for x <= 0: 2^n exp(r), where r is at most log(2) / 2 away from 0."""
    x = build.select(build.fcmp_ordered("<", x, same(_LEAST)), same(_LEAST), x)  # NaN stays
    n = build.call(declare(build.module, "llvm.rint.v16f32", FLOATS, FLOATS), [build.fmul(x, same(_LOG2_E))])
    r = fma(build, n, same(-_LN2_HIGH), x)
    r = fma(build, n, same(-_LN2_LOW), r)
    y = same(_EXP[0])
    for coefficient in _EXP[1:]:
        y = fma(build, y, r, same(coefficient))
    whole = build.call(declare(build.module, "llvm.fptosi.sat.v16i32.v16f32", INTS, FLOATS), [n])
    exponent = build.shl(build.add(whole, INTS([I32(127)] * LANES)), INTS([I32(23)] * LANES))
    return build.fmul(y, build.bitcast(exponent, FLOATS))


def between(build, start, first, end):
    """Which of the positions from ``start`` on are from ``first`` to ``end``, excluded."""
    vector = ir.VectorType(I64, LANES)
    spread = lambda x: build.shuffle_vector(
        build.insert_element(vector(ir.Undefined), x, I32(0)), vector(ir.Undefined), INTS([I32(0)] * LANES)
    )
    at = build.add(spread(start), vector([I64(i) for i in range(LANES)]))
    return build.and_(build.icmp_unsigned(">=", at, spread(first)), build.icmp_unsigned("<", at, spread(end)))


def row_of(build, of, row, D: int, number: ir.Type = FLOAT):
    """The pointer to row number ``row`` of an array [rows, D].

    ``number``: FLOAT, or I16 for bfloat16.
    """
    return build.gep(of, [build.mul(row, I64(D))], source_etype=number)


def load(build, of, at: int, number: ir.Type = FLOAT):
    """16 numbers as floats. ``number``: FLOAT, or I16 for bfloat16."""
    place = build.gep(of, [I64(at)], source_etype=number)
    return build.load(place, typ=FLOATS, align=4) if number is FLOAT else widen(build, place)


def widen(build, place):
    """16 numbers of bfloat16 as floats. Each is the upper half of a float."""
    halves = build.zext(build.load(place, typ=ir.VectorType(I16, LANES), align=2), INTS)
    return build.bitcast(build.shl(halves, INTS([I32(16)] * LANES)), FLOATS)


def store(build, value, to, at: int) -> None:
    build.store(value, build.gep(to, [I64(at)], source_etype=FLOAT), align=4)


def same(value: float):
    """A vector of one constant."""
    return FLOATS([FLOAT(value)] * LANES)


def spread(build, x):
    vector = build.insert_element(FLOATS(ir.Undefined), x, I32(0))
    return shuffle(build, vector, vector, [0] * LANES)


def shuffle(build, a, b, lanes: list[int]):
    return build.shuffle_vector(a, b, INTS([I32(lane) for lane in lanes]))


def fma(build, a, b, c):
    return build.call(declare(build.module, "llvm.fma.v16f32", FLOATS, FLOATS, FLOATS, FLOATS), [a, b, c])


def reduce(build, operation: str, x):
    function = declare(build.module, f"llvm.vector.reduce.{operation}.v16f32", FLOAT, FLOATS)
    return build.call(function, [x])
