"""Kernels for CPUs: parts of code that LLVM compiles for this processor, and their way into XLA.

Needs the extra ``cpu`` (llvmlite). XLA calls a kernel through its interface for foreign functions.
The call's frame holds pointers to the operands, the results and the attributes.
"""

import ctypes
import functools
import threading
from contextlib import contextmanager

import jax
import llvmlite.binding as binding
from llvmlite import ir

from .processor import level

_VERSION = 0, 3
"""The version of XLA's C interface that this file implements (xla/ffi/api/c_api.h)."""

_EXTENSION, _ATTRIBUTES = 8, 160
"""Bytes from a call frame's start to the pointer of an extension and to the list of attributes."""

OPERAND, RESULT = 72, 112
"""Bytes from the start of a call's frame to its lists of buffers."""

_METADATA, _NUMBERS, _DATA, _SHAPE, _VALUE = 24, 24, 24, 40, 8
"""Bytes to members of the extension, its metadata, a buffer (two), and a scalar attribute."""

I8, I16, I32, I64 = map(ir.IntType, (8, 16, 32, 64))
FLOAT, POINTER, VOID = ir.FloatType(), ir.PointerType(), ir.VoidType()
LANES = 16
"""The numbers of a vector, which fill a register of AVX-512, or four of Arm: LLVM splits it."""
FLOATS, INTS = ir.VectorType(FLOAT, LANES), ir.VectorType(I32, LANES)


class Call:
    """A kernel's code: a handler of XLA's foreign functions, with the builder at its beginning."""

    def __init__(self, name: str, module: ir.Module | None = None):
        self.module = module or ir.Module()
        function = declare(self.module, name, POINTER, POINTER)
        function.attributes.add("nounwind")
        self.frame, self.build = function.args[0], ir.IRBuilder(function.append_basic_block())
        extension = self.follow(_EXTENSION)
        with self.build.if_then(self.build.icmp_unsigned("!=", extension, POINTER(None))):  # XLA asks for the version
            metadata = self.follow(_EXTENSION, _METADATA)
            for i, number in enumerate(_VERSION):
                at = self.build.gep(metadata, [I64(_NUMBERS + 4 * i)], source_etype=I8)
                self.build.store(I32(number), at)
            self.build.ret(POINTER(None))

    def data(self, kind: int, i: int):
        """The pointer to the numbers of buffer ``i``, an ``OPERAND`` or a ``RESULT``."""
        return self.follow(kind, 8 * i, _DATA)

    def size(self, kind: int, i: int, axis: int):
        """The length of an axis of a buffer."""
        return self.follow(kind, 8 * i, _SHAPE, 8 * axis, of=I64)

    def attribute(self):
        """The only attribute, an integer."""
        return self.follow(_ATTRIBUTES, 0, _VALUE, 0, of=I64)

    def follow(self, *offsets: int, of: ir.Type = POINTER):
        """The value behind a chain of pointers, each at an offset in bytes from the last."""
        at = self.frame
        for n, offset in enumerate(offsets, 1):
            at = self.build.gep(at, [I64(offset)], source_etype=I8)
            at = self.build.load(at, typ=of if n == len(offsets) else POINTER)
        return at


def register(make, *options) -> str:
    """Registers the kernel ``make(name, *options)``, a finished ``Call``, with XLA.

    Returns its name.

    Any thread may call this.
    """
    with _registering:  # XLA refuses a second kernel of a name
        return _register(make, *options)


@functools.cache
def _register(make, *options) -> str:
    name = "_".join(["specjax", make.__name__, *map(str, options)])
    engine = _compile(make(name, *options).module)
    _engines.append(engine)
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype = ctypes.py_object
    capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    jax.ffi.register_ffi_target(name, capsule(engine.get_function_address(name), None, None), "cpu")
    return name


_engines: list[binding.ExecutionEngine] = []
"""Machine code lives as long as its engine."""

_registering = threading.Lock()


def _compile(module: ir.Module) -> binding.ExecutionEngine:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    oldest = level()
    cpu, features = (oldest, "") if oldest else (binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten())
    machine = binding.Target.from_default_triple().create_target_machine(cpu=cpu, features=features, opt=3)
    engine = binding.create_mcjit_compiler(optimised(module, machine), machine)
    engine.finalize_object()
    return engine


def optimised(module: ir.Module, machine: binding.TargetMachine) -> binding.ModuleRef:
    """The module after LLVM's passes for a machine."""
    parsed = binding.parse_assembly(str(module))
    passes = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(parsed, passes)
    return parsed


@contextmanager
def loop(build, start, end, step: int, carried: dict | None = None):
    """Builds a loop around the code of the ``with`` block.

    It gives the index from ``start`` to below ``end``. The block runs at least once. Values of
    ``carried`` go from one iteration to the next: the block reads and replaces them.
    """
    before, body, after = build.block, build.append_basic_block(), build.append_basic_block()
    carried = {} if carried is None else carried
    build.branch(body)
    build.position_at_end(body)
    starts = {"index": start, **carried}
    phis = {name: build.phi(start.type) for name, start in starts.items()}
    carried.update({name: phis[name] for name in carried})
    yield phis["index"]
    ends = {"index": build.add(phis["index"], I64(step)), **carried}
    for name, phi in phis.items():
        phi.add_incoming(starts[name], before)
        phi.add_incoming(ends[name], build.block)
    build.cbranch(build.icmp_unsigned("<", ends["index"], end), body, after)
    build.position_at_end(after)


def declare(module: ir.Module, name: str, result, *arguments) -> ir.Function:
    """A function of a name, such as one of LLVM's own."""
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, arguments), name)


def least(build, a, b):
    """The smaller of two lengths."""
    return build.select(build.icmp_unsigned("<", a, b), a, b)


def most(build, a, b):
    """The larger of two lengths."""
    return build.select(build.icmp_unsigned(">", a, b), a, b)
