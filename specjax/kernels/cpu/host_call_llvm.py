"""The code of ``kernels.cpu.host_call``."""

from llvmlite import ir

from .host_routines import address_of
from .llvm import I64, OPERAND, POINTER, RESULT, VOID, Call


def host_call(name: str, routine: str) -> Call:
    """The kernel: calls a C function, see ``host_routines.address_of``.

    Its arguments are the numbers, the rows and the columns of the operand, then of the result.
    """
    call = Call(name)
    arguments = []
    for kind in (OPERAND, RESULT):
        arguments += [call.data(kind, 0), call.size(kind, 0, 0), call.size(kind, 0, 1)]
    kind = ir.FunctionType(VOID, [POINTER, I64, I64] * 2)
    call.build.call(call.build.inttoptr(I64(address_of(routine)), kind.as_pointer()), arguments)
    call.build.ret(POINTER(None))
    return call
