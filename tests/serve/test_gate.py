"""The gate by itself, with a clock of its own, against waits counted by hand."""

import asyncio

import pytest

from specjax.errors import CancelledError
from specjax.serve.errors import EndedError, ServeError
from specjax.serve.gate import Gate, Job


class Handle:
    """A request of an engine that remembers why it was ended."""

    def __init__(self):
        self.ends: list[CancelledError | None] = []

    def cancel(self, reason=None):
        self.ends.append(reason)


@pytest.fixture
def clock():
    """The seconds of the gate, as a list of one number."""
    return [100.0]


@pytest.fixture
def gate(clock):
    return Gate(10, clock=lambda: clock[0])


def refused(gate: Gate, count: int) -> ServeError:
    with pytest.raises(ServeError) as found:
        gate.enter(count)
    return found.value


def test_retry_after_follows_the_pace(gate, clock):
    """Two texts end each second, so three texts have room in two seconds, and ten in five."""
    jobs = [gate.enter(2) for _ in range(5)]
    assert refused(gate, 1).headers == {"Retry-After": "1"}  # nothing has ended yet
    for job in jobs[:3]:
        gate.leave(job)
        clock[0] += 1.0
        gate.enter(2)
    assert refused(gate, 3).headers == {"Retry-After": "2"} and gate.wait_for(10) == 5
    clock[0] += 57.0
    assert gate.wait_for(10) == 100  # six texts in a minute
    clock[0] += 10.0
    assert gate.wait_for(10) == 1  # the pace of an idle minute is unknown


def test_a_job_that_is_over_takes_no_texts(gate):
    job, early, late = gate.enter(2), Handle(), Handle()
    job.add(early)
    gate.leave(job)
    job.add(late)
    assert early.ends == [None] and isinstance(late.ends[0], CancelledError) and gate.count == 0
    gate.leave(job)
    assert gate.wait_for(1) == 1


def test_the_gate_says_that_it_drains_before_it_refuses(gate):
    async def drain() -> list:
        seen = []
        draining = asyncio.ensure_future(gate.drain(0.0, delay=0.1))
        await asyncio.sleep(0.01)
        seen.append((gate.is_draining, gate.is_stopping))
        job, handle = gate.enter(1), Handle()
        job.add(handle)
        await asyncio.sleep(0.2)
        seen += [(gate.is_draining, gate.is_stopping), refused(gate, 1).status, handle.ends]
        gate.leave(job)
        await draining
        return seen

    first, second, status, ends = asyncio.run(drain())
    assert (first, second, status) == ((True, False), (True, True), 503)
    assert isinstance(ends[0], EndedError) and ends[0].problem.status == 503


def test_a_deadline_is_dropped_with_its_job(gate):
    async def run() -> Job:
        job = gate.enter(1)
        job.add(Handle())
        job.deadline = asyncio.get_running_loop().call_later(0.02, job.cancel, CancelledError("late"))
        gate.leave(job)
        await asyncio.sleep(0.05)
        return job

    assert asyncio.run(run()).handles[0].ends == [None]
