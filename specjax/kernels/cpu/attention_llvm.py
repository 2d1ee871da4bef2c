"""The code of ``kernels.cpu.attention``: attention of a few queries over the past and over rows.

All queries of a head read a block of positions before the next one, so its keys and values stay in
the first cache. The scores of all blocks come first, then the weights and the sums. So a query
weighs by its largest score from the beginning, and adds values in the order of its text: a row that
it does not see adds zero. The result is the same bits wherever the blocks begin.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir

from ..gpu.attention import NEVER
from .llvm import (
    FLOAT,
    I8,
    I16,
    I32,
    I64,
    LANES,
    OPERAND,
    POINTER,
    RESULT,
    VOID,
    Call,
    declare,
    least,
    loop,
    most,
)
from .shared_call import SharedCall
from .vectors_llvm import between, exp, fma, load, reduce, row_of, same, shuffle, spread, store

TOGETHER = 3
"""Queries that read a block of positions together, so that its numbers are loaded once."""


class _Head(NamedTuple):
    """A head of the keys, and some of its queries.

    Attributes:
      first, end: the queries, by their number n G + g in the head.
      past: gives the keys (0) or the values (1) of the head from a position on.
      rows: the keys and the values of the head.
      length, capacity: valid positions of the past, and all.
      count: the number of rows, a multiple of 16.
      row: gives the number of a query's vector in the operand and in the result.
      seen: gives the mask's bytes of a query.
      number: the type of a key's numbers, see ``vectors_llvm.load``.
      columns: the vectors of each query's sums that registers hold.
      scratch: for each query its largest scores so far [16] and its weight [16]; then the scores
        of each block, [blocks, queries, 16].
    """

    first: Any
    end: Any
    past: Callable
    rows: tuple
    length: Any
    capacity: Any
    count: Any
    row: Callable
    seen: Callable
    number: Any
    columns: int
    scratch: Any


def node_attention(name: str, D: int, helpers: int, wide: bool, S: int | None, halves: bool = False) -> Call:
    """The kernel for a head dimension, a multiple of 16, which ``helpers`` may share.

    ``wide``: whether the processor has the registers of AVX-512. ``halves``: whether keys and
    values are bfloat16.

    Operands: queries [B, N, K, G, D]; keys and values of the past [B, K, T, D]; int32 lengths [B];
    keys and values of the rows [B, K, M, D]; and bytes [B, N, M], 1 for the rows that a node sees.
    Result: [B, N, K, G, D]. T is at least 16, and M a multiple of 16.

    With blocks of S positions, a multiple of 16, the past is [blocks, K, S, D], and the last
    operand is the table, int32 [B, T / S].
    """
    call = SharedCall(name)
    build = call.build
    number = I16 if halves else FLOAT
    q, past_keys, past_values, lengths, row_keys, row_values, mask = (call.data(OPERAND, i) for i in range(7))
    result = call.data(RESULT, 0)
    N, K, G = (call.size(OPERAND, 0, axis) for axis in (1, 2, 3))
    B, T, M = call.size(OPERAND, 0, 0), call.size(OPERAND, 1, 2), call.size(OPERAND, 4, 2)
    table, columns = (None, I64(1)) if S is None else (call.data(OPERAND, 7), call.size(OPERAND, 7, 1))
    T = T if S is None else build.mul(columns, I64(S))
    queries = build.mul(N, G)
    groups = build.udiv(build.add(queries, I64(TOGETHER - 1)), I64(TOGETHER))
    begin, stop = call.part(build.mul(build.mul(B, K), groups))
    heads = build.udiv(begin, groups), build.udiv(build.add(stop, build.sub(groups, I64(1))), groups)
    with loop(build, *heads, 1) as h:
        b, k = build.udiv(h, K), build.urem(h, K)
        before = build.mul(h, groups)
        first = build.mul(build.sub(most(build, begin, before), before), I64(TOGETHER))
        end = build.mul(build.sub(least(build, stop, build.add(before, groups)), before), I64(TOGETHER))
        end = least(build, end, queries)
        length = build.zext(build.load(build.gep(lengths, [b], source_etype=I32), typ=I32), I64)
        width = build.add(build.add(length, M), I64(3 * LANES))
        size = build.mul(build.mul(build.sub(end, first), width), I64(4))
        scratch = build.call(declare(call.module, "malloc", POINTER, I64), [size])

        def row(m, b=b, k=k):
            node = build.add(build.mul(b, N), build.udiv(m, G))
            return build.add(build.mul(build.add(build.mul(node, K), k), G), build.urem(m, G))

        def seen(m, b=b):
            node = build.add(build.mul(b, N), build.udiv(m, G))
            return build.gep(mask, [build.mul(node, M)], source_etype=I8)

        def past(which, start, b=b, k=k, h=h):
            of = (past_keys, past_values)[which]
            if S is None:
                return row_of(build, of, build.add(build.mul(h, T), start), D, number)
            place = build.add(build.mul(b, columns), build.udiv(start, I64(S)))
            block = build.zext(build.load(build.gep(table, [place], source_etype=I32), typ=I32), I64)
            head = build.mul(build.add(build.mul(block, K), k), I64(S))
            return row_of(build, of, build.add(head, build.urem(start, I64(S))), D, number)

        rows = tuple(row_of(build, of, build.mul(h, M), D, number) for of in (row_keys, row_values))
        head = _Head(first, end, past, rows, length, T, M, row, seen, number, 5 if wide else 2, scratch)
        _attend(build, head, q, result, D)
        build.call(declare(call.module, "free", VOID, POINTER), [scratch])
    return call.finish(helpers)


def _attend(build, head: _Head, q, result, D: int) -> None:
    """The queries of a head attend to all that they see."""
    count = build.sub(head.end, head.first)
    state = lambda m: row_of(build, head.scratch, build.sub(m, head.first), 2 * LANES)
    blocks = row_of(build, head.scratch, count, 2 * LANES)
    place = lambda m, at: row_of(build, blocks, build.add(build.mul(count, at), build.sub(m, head.first)), LANES)
    sums = lambda m: row_of(build, result, head.row(m), D)
    with loop(build, head.first, head.end, 1) as m:
        store(build, same(NEVER), state(m), 0)
        for d in range(0, D, LANES):
            store(build, same(0), sums(m), d)
        store(build, same(0), state(m), LANES)

    def score(together: list, keys, at, seen: Callable) -> None:
        queries = [row_of(build, q, head.row(m), D) for m in together]
        for m, scores in zip(together, _scores(build, queries, keys, D, head.number)):
            scores = build.select(seen(m), scores, same(NEVER))
            larger = build.fcmp_unordered(">", scores, load(build, state(m), 0))
            store(build, build.select(larger, scores, load(build, state(m), 0)), state(m), 0)
            store(build, scores, place(m, at), 0)

    def add(together: list, values, at, _) -> None:
        _add(build, [(state(m), sums(m), place(m, at)) for m in together], values, D, head)

    _in_blocks(build, head, 0, D, score)
    with loop(build, head.first, head.end, 1) as m:
        store(build, spread(build, reduce(build, "fmax", load(build, state(m), 0))), state(m), 0)
    _in_blocks(build, head, 1, D, add)
    with loop(build, head.first, head.end, 1) as m:
        for d in range(0, D, LANES):
            store(build, build.fdiv(load(build, sums(m), d), load(build, state(m), LANES)), sums(m), d)


def _in_blocks(build, head: _Head, which: int, D: int, visit: Callable) -> None:
    """Visits each block of 16 positions or rows with each group of queries.

    ``visit`` takes the queries, the block's keys (``which`` 0) or values (1), the block's number,
    and a function that gives the lanes that a query sees.
    """
    with build.if_then(build.icmp_unsigned(">", head.length, I64(0))), loop(build, I64(0), head.length, LANES) as first:
        start = least(build, first, build.sub(head.capacity, I64(LANES)))  # the last block may overlap the one before
        seen = between(build, start, first, head.length)
        block = head.past(which, start)
        at = build.udiv(first, I64(LANES))
        _in_groups(build, head, lambda together: visit(together, block, at, lambda m: seen))
    before = build.udiv(build.add(head.length, I64(LANES - 1)), I64(LANES))
    with loop(build, I64(0), head.count, LANES) as first:
        block = row_of(build, head.rows[which], first, D, head.number)
        at = build.add(before, build.udiv(first, I64(LANES)))

        def seen_rows(m):
            bytes_ = build.load(
                build.gep(head.seen(m), [first], source_etype=I8), typ=ir.VectorType(I8, LANES), align=1
            )
            return build.icmp_unsigned("!=", bytes_, ir.VectorType(I8, LANES)([I8(0)] * LANES))

        _in_groups(build, head, lambda together: visit(together, block, at, seen_rows))


def _in_groups(build, head: _Head, visit: Callable) -> None:
    """Builds ``visit`` for lists of ``TOGETHER`` queries, and for each of the rest alone."""
    alone = build.sub(head.end, build.urem(build.sub(head.end, head.first), I64(TOGETHER)))
    for size, start, stop in ((TOGETHER, head.first, alone), (1, alone, head.end)):
        with build.if_then(build.icmp_unsigned("<", start, stop)), loop(build, start, stop, size) as m:
            visit([build.add(m, I64(i)) for i in range(size)])


def _add(build, queries: list, values, D: int, head: _Head) -> None:
    """Adds a block of values to some queries' sums. ``queries``: their states, sums and scores.

    The first vector of a query's sums is its weight.
    """
    weighed = []
    for state, _, place in queries:
        scores = load(build, place, 0)
        weights = exp(build, build.fsub(scores, load(build, state, 0)))
        weighed.append(build.select(build.fcmp_unordered(">", scores, same(NEVER)), weights, same(0)))
    vectors = [[(state, LANES), *((sums, d) for d in range(0, D, LANES))] for state, sums, _ in queries]
    for first in range(0, 1 + D // LANES, head.columns):
        places = [each[first : first + head.columns] for each in vectors]
        totals = [[load(build, *place) for place in each] for each in places]
        for t in range(LANES):
            read = lambda i: load(build, values, t * D + (i - 1) * LANES, head.number) if i else same(1)
            rows = [read(first + i) for i in range(len(places[0]))]
            for i, weights in enumerate(weighed):
                weight = shuffle(build, weights, weights, [t] * LANES)
                totals[i] = [fma(build, weight, x, y) for x, y in zip(rows, totals[i])]
        for place, total in zip(sum(places, []), sum(totals, [])):
            store(build, total, *place)


def _scores(build, queries, keys, D: int, number) -> list:
    """The products of each query with 16 keys, as one vector."""
    parts = [[load(build, query, d) for d in range(0, D, LANES)] for query in queries]

    def product(t: int) -> list:
        key = [load(build, keys, t * D + d, number) for d in range(0, D, LANES)]
        sums = [build.fmul(query[0], key[0]) for query in parts]
        for i in range(1, len(key)):
            sums = [fma(build, query[i], key[i], sum_) for query, sum_ in zip(parts, sums)]
        return sums

    def add_up(t: int, stride: int) -> list:
        """For each query the sums of the products t, t + stride, ..., each in lanes of its own."""
        if stride == LANES:
            return product(t)
        pairs = list(zip(add_up(t, 2 * stride), add_up(t + stride, 2 * stride)))
        low = [x for base in range(0, LANES, 2 * stride) for x in range(base, base + stride)]
        pick = lambda lanes: [x for i in range(0, len(lanes), stride) for x in _both(lanes[i : i + stride])]
        lanes = [pick([x + shift for x in low]) for shift in (0, stride)]
        return [build.fadd(*(shuffle(build, a, b, each) for each in lanes)) for a, b in pairs]

    return add_up(0, 1)


def _both(lanes: list[int]) -> list[int]:
    """These lanes of a first vector, then the same of a second."""
    return [*lanes, *(x + LANES for x in lanes)]
