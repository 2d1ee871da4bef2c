"""The code of ``product_kernel``: y[r, o] = sum over i of x[r, i] w[first + o, i], built and compiled by llvmlite.

A block of outputs is computed for a group of rows, with all sums in registers. Further groups of rows find the
block's weights in the first cache. Meanwhile the next block is fetched into the second cache: a processor
does not fetch far enough ahead by itself.
"""

import functools
from contextlib import contextmanager

import llvmlite.binding as llvm
from llvmlite import ir

_VERSION = 0, 3
"""The version of XLA's C interface for foreign functions that this file implements (xla/ffi/api/c_api.h)."""

_EXTENSION, _ARGUMENTS, _RESULTS, _ATTRIBUTES = 8, 72, 112, 160
"""Bytes from the start of a call's frame to its pointers: an extension, and three lists of pointers."""

_METADATA, _NUMBERS, _DATA, _SHAPE, _VALUE = 24, 24, 24, 40, 8
"""Bytes to the members of the extension, of its metadata, of a buffer (two), and of a scalar attribute."""

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_POINTER, _FLOAT = ir.PointerType(), ir.FloatType()
_SUMS = ir.VectorType(_FLOAT, 16)


class _BFloat(ir.Type):
    """bfloat16, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


@functools.cache  # The machine code lives as long as its engine.
def compiled(rows: int, dot: bool) -> llvm.ExecutionEngine:
    """An engine with the function ``product``, a handler of XLA's foreign functions.

    Args:
      dot: Whether x is bfloat16 and the processor has VDPBF16PS, which adds 32 products to 16 sums. Without it
        x is float32, and the weights are widened.
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )
    module = llvm.parse_assembly(str(_module(rows, dot)))
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


def _module(rows: int, dot: bool) -> ir.Module:
    module = ir.Module()
    function = _declare(module, "product", _POINTER, _POINTER)
    function.attributes.add("nounwind")
    build = ir.IRBuilder(function.append_basic_block())
    value = functools.partial(_follow, build, function.args[0])
    with build.if_then(build.icmp_unsigned("!=", value(_EXTENSION), _POINTER(None))):  # XLA asks for the version
        metadata = value(_EXTENSION, _METADATA)
        for i, number in enumerate(_VERSION):
            build.store(_I32(number), build.gep(metadata, [_I64(_NUMBERS + 4 * i)], source_etype=_I8))
        build.ret(_POINTER(None))
    x, w, y = value(_ARGUMENTS, 0, _DATA), value(_ARGUMENTS, 8, _DATA), value(_RESULTS, 0, _DATA)
    inputs, outputs = value(_ARGUMENTS, 8, _SHAPE, 8, kind=_I64), value(_RESULTS, 0, _SHAPE, 8, kind=_I64)
    first = value(_ATTRIBUTES, 0, _VALUE, 0, kind=_I64)
    block, most = (4, 6) if dot else (4, 1) if rows == 1 else (2, 3)
    count = -(-rows // most)
    with _loop(build, outputs, block) as o:
        start = build.mul(build.add(first, o), inputs)
        for g in range(count):
            group = range(rows * g // count, rows * (g + 1) // count)
            sums = _products(build, x, w, start, inputs, group, block, dot, fetch=g == 0)
            for (r, k), total in sums.items():
                to = build.add(build.mul(outputs, _I64(r)), build.add(o, _I64(k)))
                build.store(total, build.gep(y, [to], source_etype=_FLOAT))
    build.ret(_POINTER(None))
    return module


def _products(build, x, w, start, inputs, group: range, block: int, dot: bool, fetch: bool) -> dict:
    """The sums, by row and output, of a group of rows with a block of outputs, whose weights begin at ``start``."""
    step, number = (32, _BFloat()) if dot else (16, _FLOAT)
    operand = ir.VectorType(number, step)
    sums: dict = {(r, k): _SUMS([_FLOAT(0)] * 16) for r in group for k in range(block)}
    with _loop(build, inputs, step, sums) as i:
        at = [build.add(start, build.add(i, build.mul(inputs, _I64(k)))) for k in range(block)]
        weights = [_weights(build, w, index, operand, dot) for index in at]
        if fetch:
            for index in at:
                later = build.gep(w, [build.add(index, build.mul(inputs, _I64(block)))], source_etype=_BFloat())
                call = _declare(build.module, "llvm.prefetch.p0", ir.VoidType(), _POINTER, _I32, _I32, _I32)
                build.call(call, [later, _I32(0), _I32(2), _I32(1)])  # to read, into the second cache, as data
        for r in group:
            index = build.add(build.mul(inputs, _I64(r)), i)
            row = build.load(build.gep(x, [index], source_etype=number), typ=operand, align=2)
            for k in range(block):
                sums[r, k] = _multiply_add(build, sums[r, k], weights[k], row, dot)
    add = _declare(build.module, "llvm.vector.reduce.fadd.v16f32", _FLOAT, _FLOAT, _SUMS)
    return {at: build.call(add, [_FLOAT(0), sum_], fastmath=["reassoc"]) for at, sum_ in sums.items()}


def _weights(build, w, index, operand, dot: bool):
    """One vector of weights. A bfloat16 number is the upper half of a float32 number."""
    at = build.gep(w, [index], source_etype=_BFloat())
    if dot:
        return build.load(at, typ=operand, align=2)
    wide = build.zext(build.load(at, typ=ir.VectorType(ir.IntType(16), 16), align=2), ir.VectorType(_I32, 16))
    return build.bitcast(build.shl(wide, wide.type([_I32(16)] * 16)), operand)


def _multiply_add(build, sum_, weights, row, dot: bool):
    kind = weights.type
    if dot:
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        return build.call(_declare(build.module, name, _SUMS, _SUMS, kind, kind), [sum_, weights, row])
    return build.call(_declare(build.module, "llvm.fma.v16f32", _SUMS, kind, kind, _SUMS), [weights, row, sum_])


@contextmanager
def _loop(build, end, step: int, carried: dict | None = None):
    """Builds a loop around the code of the ``with`` block; gives the index: 0, step, ... below ``end``.

    Values of ``carried`` go from one iteration to the next: the block reads and replaces them.
    """
    before, body, after = build.block, build.append_basic_block(), build.append_basic_block()
    carried = {} if carried is None else carried
    build.branch(body)
    build.position_at_end(body)
    starts = {"index": _I64(0), **carried}
    phis = {name: build.phi(start.type) for name, start in starts.items()}
    carried.update({name: phis[name] for name in carried})
    yield phis["index"]
    ends = {"index": build.add(phis["index"], _I64(step)), **carried}
    for name, phi in phis.items():
        phi.add_incoming(starts[name], before)
        phi.add_incoming(ends[name], build.block)
    build.cbranch(build.icmp_unsigned("<", ends["index"], end), body, after)
    build.position_at_end(after)


def _follow(build, at, *offsets: int, kind: ir.Type = _POINTER):
    """The value of a type behind a chain of pointers, each at an offset in bytes from the one before."""
    for n, offset in enumerate(offsets, 1):
        at = build.gep(at, [_I64(offset)], source_etype=_I8)
        at = build.load(at, typ=kind if n == len(offsets) else _POINTER)
    return at


def _declare(module: ir.Module, name: str, result, *arguments) -> ir.Function:
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, arguments), name)
