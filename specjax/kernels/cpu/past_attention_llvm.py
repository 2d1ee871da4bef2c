"""The code of ``kernels.cpu.past_attention``: attention of a few queries over the past.

It is merged with the attention over other rows.

All queries of a head read a block of positions before the next one, so its keys and values stay in
the first cache. The softmax is that of FlashAttention: a larger score rescales the sums so far.
"""

import math
from collections.abc import Callable

from llvmlite import ir

from ..gpu.attention import NEVER
from .llvm import FLOAT, FLOATS, I32, I64, INTS, LANES, OPERAND, POINTER, RESULT, VOID, Call, declare, least, loop, most

_EXP = (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1, 1)
"""Taylor coefficients of exp, highest power first: 2e-8 relative for |r| <= log(2) / 2."""
TOGETHER = 3
"""Queries that read a block of positions together, so that its numbers are loaded once."""
_LOG2_E, _LN2_HIGH, _LN2_LOW, _LEAST = 1 / math.log(2), 0.693359375, -2.12194440e-4, -87.0


def past(name: str, D: int) -> Call:
    """The kernel for a head dimension, a multiple of 16.

    Operands: queries [H, M, D], keys and values [H, T, D], int32 lengths [H], and the ``Partial``
    attention over other rows, [H, M, D + 2]: values, top and weight. Result: the ``Partial`` over
    both, [n, D + 2], for n of the H M queries from the attribute on. T is at least 16.
    """
    call = Call(name)
    build = call.build
    q, k, v, lengths, own = (call.data(OPERAND, i) for i in range(5))
    result = call.data(RESULT, 0)
    M, T = call.size(OPERAND, 0, 1), call.size(OPERAND, 1, 1)
    begin, count = call.attribute(), call.size(RESULT, 0, 0)
    copy = declare(call.module, "llvm.memcpy.p0.p0.i64", VOID, POINTER, POINTER, I64, ir.IntType(1))
    size = build.mul(count, I64(4 * (D + 2)))
    build.call(copy, [result, _row(build, own, begin, D + 2), size, ir.IntType(1)(0)])
    end = build.add(begin, count)
    heads = build.udiv(begin, M), build.udiv(build.add(end, build.sub(M, I64(1))), M)
    with loop(build, *heads, 1) as h:
        length = build.zext(build.load(build.gep(lengths, [h], source_etype=I32), typ=I32), I64)
        with build.if_then(build.icmp_unsigned(">", length, I64(0))):
            with loop(build, I64(0), length, LANES) as first:
                start = least(build, first, build.sub(T, I64(LANES)))  # the last block may overlap the one before
                seen = _between(build, start, first, length)
                row = build.add(build.mul(h, T), start)
                keys, values = (_row(build, of, row, D) for of in (k, v))

                def attend(together: list) -> None:
                    queries = [_row(build, q, m, D) for m in together]
                    sums = [_row(build, result, build.sub(m, begin), D + 2) for m in together]
                    _attend(build, queries, keys, values, seen, sums, D)

                bounds = most(build, begin, build.mul(h, M)), least(build, end, build.mul(build.add(h, I64(1)), M))
                _in_groups(build, *bounds, attend)
    build.ret(POINTER(None))
    return call


def _in_groups(build, first, end, attend: Callable) -> None:
    """Builds ``attend`` for lists of ``TOGETHER`` queries from ``first`` to ``end``.

    Builds it for each of the remaining queries alone.
    """
    alone = build.sub(end, build.urem(build.sub(end, first), I64(TOGETHER)))
    for size, start, stop in ((TOGETHER, first, alone), (1, alone, end)):
        with build.if_then(build.icmp_unsigned("<", start, stop)), loop(build, start, stop, size) as m:
            attend([build.add(m, I64(i)) for i in range(size)])


def _attend(build, queries, keys, values, seen, sums, D: int) -> None:
    """Some queries read a block of positions. ``sums``: their rows of the result."""
    weighed = [_weigh(build, *each, seen, D) for each in zip(_scores(build, queries, keys, D), sums)]
    parts = range(0, D, LANES)
    totals = [[build.fmul(_load(build, row, d), scale) for d in parts] for row, (_, scale) in zip(sums, weighed)]
    for t in range(LANES):
        rows = [_load(build, values, t * D + d) for d in parts]
        for i, (weights, _) in enumerate(weighed):
            weight = _shuffle(build, weights, weights, [t] * LANES)
            totals[i] = [_fma(build, weight, row, total) for row, total in zip(rows, totals[i])]
    for row, total in zip(sums, totals):
        for d, part in zip(parts, total):
            build.store(part, build.gep(row, [I64(d)], source_etype=FLOAT), align=4)


def _weigh(build, scores, sums, seen, D: int) -> tuple:
    """The weights of a block's positions for one query, and the scale of its sums so far."""
    scores = build.select(seen, scores, FLOATS([FLOAT(NEVER)] * LANES))
    top, weight = (build.gep(sums, [I64(d)], source_etype=FLOAT) for d in (D, D + 1))
    highest = _reduce(build, "fmax", scores)
    before = build.load(top, typ=FLOAT)
    after = build.select(build.fcmp_ordered(">", highest, before), highest, before)
    scale = _exp(build, _spread(build, build.fsub(before, after)))
    weights = _exp(build, build.fsub(scores, _spread(build, after)))
    weights = build.select(seen, weights, FLOATS([FLOAT(0)] * LANES))
    build.store(after, top)
    total = build.fmul(build.load(weight, typ=FLOAT), build.extract_element(scale, I32(0)))
    build.store(build.fadd(total, _reduce(build, "fadd", weights)), weight)
    return weights, scale


def _scores(build, queries, keys, D: int) -> list:
    """The products of each query with 16 keys, as one vector."""
    parts = [[_load(build, query, d) for d in range(0, D, LANES)] for query in queries]

    def product(t: int) -> list:
        key = [_load(build, keys, t * D + d) for d in range(0, D, LANES)]
        sums = [build.fmul(query[0], key[0]) for query in parts]
        for i in range(1, len(key)):
            sums = [_fma(build, query[i], key[i], sum_) for query, sum_ in zip(parts, sums)]
        return sums

    def add_up(t: int, stride: int) -> list:
        """For each query the sums of the products t, t + stride, ..., each in lanes of its own."""
        if stride == LANES:
            return product(t)
        pairs = list(zip(add_up(t, 2 * stride), add_up(t + stride, 2 * stride)))
        low = [x for base in range(0, LANES, 2 * stride) for x in range(base, base + stride)]
        pick = lambda lanes: [x for i in range(0, len(lanes), stride) for x in _both(lanes[i : i + stride])]
        lanes = [pick([x + shift for x in low]) for shift in (0, stride)]
        return [build.fadd(*(_shuffle(build, a, b, each) for each in lanes)) for a, b in pairs]

    return add_up(0, 1)


def _both(lanes: list[int]) -> list[int]:
    """These lanes of a first vector, then the same of a second."""
    return [*lanes, *(x + LANES for x in lanes)]


def _exp(build, x):
    """exp(x) for x <= 0: 2^n exp(r), where r is at most log(2) / 2 away from 0."""
    constant = lambda value: FLOATS([FLOAT(value)] * LANES)
    x = build.select(build.fcmp_ordered("<", x, constant(_LEAST)), constant(_LEAST), x)  # NaN stays
    n = build.call(declare(build.module, "llvm.rint.v16f32", FLOATS, FLOATS), [build.fmul(x, constant(_LOG2_E))])
    r = _fma(build, n, constant(-_LN2_HIGH), x)
    r = _fma(build, n, constant(-_LN2_LOW), r)
    y = constant(_EXP[0])
    for coefficient in _EXP[1:]:
        y = _fma(build, y, r, constant(coefficient))
    whole = build.call(declare(build.module, "llvm.fptosi.sat.v16i32.v16f32", INTS, FLOATS), [n])
    exponent = build.shl(build.add(whole, INTS([I32(127)] * LANES)), INTS([I32(23)] * LANES))
    return build.fmul(y, build.bitcast(exponent, FLOATS))


def _between(build, start, first, end):
    """Which of the positions from ``start`` on are from ``first`` to ``end``, excluded."""
    vector = ir.VectorType(I64, LANES)
    spread = lambda x: build.shuffle_vector(
        build.insert_element(vector(ir.Undefined), x, I32(0)), vector(ir.Undefined), INTS([I32(0)] * LANES)
    )
    at = build.add(spread(start), vector([I64(i) for i in range(LANES)]))
    return build.and_(build.icmp_unsigned(">=", at, spread(first)), build.icmp_unsigned("<", at, spread(end)))


def _row(build, of, row, D: int):
    return build.gep(of, [build.mul(row, I64(D))], source_etype=FLOAT)


def _load(build, of, at: int):
    return build.load(build.gep(of, [I64(at)], source_etype=FLOAT), typ=FLOATS, align=4)


def _spread(build, x):
    vector = build.insert_element(FLOATS(ir.Undefined), x, I32(0))
    return _shuffle(build, vector, vector, [0] * LANES)


def _shuffle(build, a, b, lanes: list[int]):
    return build.shuffle_vector(a, b, INTS([I32(lane) for lane in lanes]))


def _fma(build, a, b, c):
    return build.call(declare(build.module, "llvm.fma.v16f32", FLOATS, FLOATS, FLOATS, FLOATS), [a, b, c])


def _reduce(build, operation: str, x):
    name = f"llvm.vector.reduce.{operation}.v16f32"
    operands = [x] if operation == "fmax" else [FLOAT(0), x]
    function = declare(build.module, name, FLOAT, *(value.type for value in operands))
    return build.call(function, operands, fastmath=["reassoc"] if operation == "fadd" else [])
