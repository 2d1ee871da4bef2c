"""Kernels that several threads compute together, chunk by chunk.

The thread that XLA calls takes chunks itself, and so do helpers from XLA's pool of threads, if they
are free. So a kernel never waits for a thread that has not begun: where other programs use the
cores, the first thread computes all chunks.
"""

from llvmlite import ir

from .llvm import I8, I64, POINTER, VOID, Call, declare, loop

_API, _CONTEXT = 16, 24
"""Bytes from a call frame's start to the pointers of XLA's functions and of the call's context."""

_SCHEDULE = 136
"""Bytes from the start of XLA's functions to XLA_FFI_ThreadPool_Schedule."""

_HOLDERS, _NEXT, _DONE, _COUNT, _FRAME, _REQUEST, _SIZE = *range(0, 48, 8), 80
"""Bytes from the start of the state to its members, and its size.

They are the number of threads that hold it, chunks begun, done and in all, the frame, and a request
to XLA's pool.

A helper may begin after the call has ended. So the last holder frees the state, and a thread reads
the frame only for a chunk that it has begun.
"""


_SCHEDULER = ir.FunctionType(POINTER, [POINTER]).as_pointer()


class SharedCall(Call):
    """A kernel's code, with the builder at the beginning of the chunk of number ``chunk``."""

    def __init__(self, name: str):
        self.module = ir.Module()
        function = declare(self.module, f"{name}_chunk", VOID, POINTER, I64)
        self.frame, self.chunk = function.args
        self.build = ir.IRBuilder(function.append_basic_block())
        self._name, self._function = name, function

    def part(self, size) -> tuple:
        """The bounds of the chunk's part of ``size`` units, which are no fewer than the chunks."""
        bound = lambda chunk: self.build.udiv(self.build.mul(size, chunk), self.attribute())
        return bound(self.chunk), bound(self.build.add(self.chunk, I64(1)))

    def finish(self, helpers: int) -> Call:
        """Ends the chunk's code, and returns the handler. Its attribute counts the chunks.

        ``helpers``: the most threads beside the first.
        """
        self.build.ret_void()
        task, work = self._task()
        call = Call(self._name, self.module)
        build, count = call.build, call.attribute()
        state = build.call(declare(self.module, "malloc", POINTER, I64), [I64(_SIZE)])
        others = build.select(build.icmp_unsigned(">", count, I64(helpers)), I64(helpers), build.sub(count, I64(1)))
        starts = {_HOLDERS: build.add(others, I64(1)), _NEXT: I64(0), _DONE: I64(0), _COUNT: count, _FRAME: call.frame}
        for member, value in starts.items():
            build.store(value, _at(build, state, member))
        with build.if_then(build.icmp_unsigned(">", others, I64(0))), loop(build, I64(0), others, 1):
            self._schedule(call, task, state)
        build.call(work, [state])
        self._wait(build, state, count)
        build.call(_release(self.module), [state])
        build.ret(POINTER(None))
        return call

    def _task(self) -> tuple[ir.Function, ir.Function]:
        """What a helper runs: it computes chunks while there are any, and lets go of the state."""
        work = declare(self.module, f"{self._name}_work", VOID, POINTER)
        state = work.args[0]
        build = ir.IRBuilder(work.append_basic_block())
        body, after = build.append_basic_block(), build.append_basic_block()
        count = build.load(_at(build, state, _COUNT), typ=I64)
        begin = lambda: build.atomic_rmw("add", _at(build, state, _NEXT), I64(1), "monotonic")
        first = begin()
        build.cbranch(build.icmp_unsigned("<", first, count), body, after)
        before = build.block
        build.position_at_end(body)
        chunk = build.phi(I64)
        build.call(self._function, [build.load(_at(build, state, _FRAME), typ=POINTER), chunk])
        build.atomic_rmw("add", _at(build, state, _DONE), I64(1), "release")
        following = begin()
        chunk.add_incoming(first, before)
        chunk.add_incoming(following, build.block)
        build.cbranch(build.icmp_unsigned("<", following, count), body, after)
        build.position_at_end(after)
        build.ret_void()

        task = declare(self.module, f"{self._name}_task", VOID, POINTER)
        build = ir.IRBuilder(task.append_basic_block())
        build.call(work, task.args)
        build.call(_release(self.module), task.args)
        build.ret_void()
        return task, work

    @staticmethod
    def _schedule(call: Call, task: ir.Function, state) -> None:
        """Asks XLA's pool to run the task. Without a pool the state has one holder less."""
        build = call.build
        request = _at(build, state, _REQUEST)
        values = I64(_SIZE - _REQUEST), POINTER(None), call.follow(_CONTEXT), task, state
        for i, value in enumerate(values):
            build.store(value, _at(build, request, 8 * i))
        schedule = build.inttoptr(call.follow(_API, _SCHEDULE, of=I64), _SCHEDULER)
        error = build.call(schedule, [request])
        with build.if_then(build.icmp_unsigned("!=", error, POINTER(None))):
            build.call(_release(build.module), [state])

    @staticmethod
    def _wait(build, state, count) -> None:
        """Waits for the chunks that helpers have begun."""
        body, after = build.append_basic_block(), build.append_basic_block()
        build.branch(body)
        build.position_at_end(body)
        done = build.load_atomic(_at(build, state, _DONE), "acquire", 8, typ=I64)
        build.cbranch(build.icmp_unsigned("<", done, count), body, after)
        build.position_at_end(after)


def _release(module: ir.Module) -> ir.Function:
    """The function by which a thread lets go of the state."""
    function = declare(module, "specjax_release", VOID, POINTER)
    if function.is_declaration:
        function.linkage = "internal"
        build = ir.IRBuilder(function.append_basic_block())
        holders = build.atomic_rmw("sub", _at(build, function.args[0], _HOLDERS), I64(1), "acq_rel")
        with build.if_then(build.icmp_unsigned("==", holders, I64(1))):
            build.call(declare(module, "free", VOID, POINTER), function.args)
        build.ret_void()
    return function


def _at(build, pointer, offset: int):
    return build.gep(pointer, [I64(offset)], source_etype=I8)
