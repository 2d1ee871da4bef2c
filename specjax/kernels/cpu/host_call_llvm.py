"""The code of ``kernels.cpu.host_call``."""

from llvmlite import ir

from .llvm import I64, OPERAND, POINTER, RESULT, VOID, Call


def host_call(name: str) -> Call:
    """The kernel: calls the function whose address is the attribute.

    Its arguments are the numbers, the rows and the columns of the operand, then of the result.
    """
    call = Call(name)
    arguments = []
    for kind in (OPERAND, RESULT):
        arguments += [call.data(kind, 0), call.size(kind, 0, 0), call.size(kind, 0, 1)]
    kind = ir.FunctionType(VOID, [POINTER, I64, I64] * 2)
    call.build.call(call.build.inttoptr(call.attribute(), kind.as_pointer()), arguments)
    call.build.ret(POINTER(None))
    return call
