"""Several hosts: processes that run one command together, and the end of all when one of them dies.

Every process runs the same program on the same arguments. Each process reads and holds the shards
of its own devices. Process 0 prints and writes.
"""

import os
import sys
import threading
import time

import jax

from ..errors import HostError, RequestError
from .private_jax import store_of_processes

JOIN_SECONDS = 60
"""The seconds in which all processes must have joined."""

PATIENCE = 20.0
"""The seconds without a sign of life after which a process counts as dead."""

_BEAT = 2.0
"""The seconds between two signs of life."""

_SIGNS, _ENDED = "specjax/alive", "specjax/ended"


def start(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    timeout: int = JOIN_SECONDS,
) -> bool:
    """Joins the processes of all hosts. Call it before any other function of JAX or specjax.

    On TPU pods, under SLURM and under Open MPI the arguments may be left out. Elsewhere they
    default to the environment variables JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and
    JAX_PROCESS_ID. From then on every process watches the others. If one of them dies, this process
    prints one line and ends with exit code 1.

    Args:
      coordinator: the address and the port of process 0, such as "10.0.0.1:1234".
      num_processes: the number of all processes.
      process_id: the number of this process, from 0.
      timeout: the seconds to wait for the others.

    Returns whether there are several processes. Raises RequestError for arguments that are
    incomplete or do not fit, and HostError if the processes cannot join. If a process does not join
    in time, this process prints one line and ends.
    """
    # 1. The arguments, completed from the environment.
    coordinator = coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS") or None
    num_processes = _from_environment(num_processes, "JAX_NUM_PROCESSES", "--num-processes")
    process_id = _from_environment(process_id, "JAX_PROCESS_ID", "--process-id")
    address = coordinator, num_processes, process_id
    if any(value is not None for value in address):
        _check(*address)

    # 2. A limit on the time.
    # JAX's own time-out would abort the process with a stack trace.
    late = threading.Timer(timeout, end_all, [_not_joined(*address, timeout)])
    late.daemon = True
    late.start()

    # 3. The others.
    try:
        jax.distributed.initialize(*address, initialization_timeout=timeout + 60)
    except (ValueError, RuntimeError) as error:
        if address == (None, None, None) and "should be defined" in str(error):
            return False  # one process, and no cluster that JAX knows
        raise _explain(error) from None
    finally:
        late.cancel()
    if jax.process_count() > 1:
        threading.Thread(target=_watch, daemon=True).start()
    return jax.process_count() > 1


def is_first_host() -> bool:
    """Whether this process prints and writes."""
    return not several_hosts() or jax.process_index() == 0


def several_hosts() -> bool:
    """Whether this process has joined others."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def leave_others(code: int) -> None:
    """Ends this process with an exit code, and tells the others, which then end too.

    It returns only if there are no others.
    """
    if not several_hosts():
        return
    try:
        store_of_processes().key_value_set(f"{_ENDED}/{jax.process_index()}", str(code), allow_overwrite=True)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the command has ended; JAX's clean-up would wait for hosts that are dead or stuck


def _from_environment(value: int | None, name: str, flag: str) -> int | None:
    text = os.environ.get(name)
    if value is not None or not text:
        return value
    if not text.strip().isdecimal():
        raise RequestError(f"{name} is {text!r}; it must be a whole number, or give {flag}")
    return int(text)


def _check(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Raises RequestError for arguments that do not fit one another."""
    if coordinator is not None and not coordinator.rpartition(":")[2].isdecimal():
        raise RequestError(f"coordinator {coordinator!r} has no port; give HOST:PORT, such as 10.0.0.1:1234")
    if num_processes is not None and num_processes < 1:
        raise RequestError(f"the number of processes is {num_processes}; it must be at least 1")
    if process_id is not None and not 0 <= process_id < (num_processes or process_id + 1):
        raise RequestError(
            f"process {process_id} of {num_processes} processes: numbers go from 0 to {num_processes} - 1"
        )


def _not_joined(coordinator: str | None, num_processes: int | None, process_id: int | None, timeout: int) -> str:
    count = num_processes or "several"
    place = coordinator or "the coordinator"
    return f"not all of the {count} processes joined at {place} within {timeout} s"


def _explain(error: Exception) -> Exception:
    text = " ".join(str(error).split())
    if "must be called before" in text:
        return RequestError("processes can only join before JAX has run anything; call specjax.parallel.start() first")
    if "only be called once" in text:
        return RequestError("this process has already joined; call specjax.parallel.start() once")
    if "defined" in text:
        return RequestError(
            "coordinator, number of processes and process number belong together; give --coordinator HOST:PORT, "
            "--num-processes and --process-id, or none of them"
        )
    return HostError(f"the processes could not join ({text[:200]})")


def _watch() -> None:
    """Gives signs of life, and ends this process when another one gives none."""
    client = store_of_processes()
    me = jax.process_index()
    turn = 0
    began = time.monotonic()
    last = {other: ("", began) for other in range(jax.process_count()) if other != me}
    while True:
        try:
            client.key_value_set(f"{_SIGNS}/{me}", str(turn := turn + 1), allow_overwrite=True)
            signs = dict(client.key_value_dir_get(f"{_SIGNS}/"))
            ended = dict(client.key_value_dir_get(f"{_ENDED}/"))
        except Exception:  # the store lives in process 0
            time.sleep(_BEAT)
            if store_of_processes() is None:
                return  # the program has ended in order
            end_all("process 0 has ended")
        now = time.monotonic()
        for other, (sign, since) in last.items():
            new = signs.get(f"{_SIGNS}/{other}", "")
            last[other] = (new, now) if new != sign else (sign, since)
            if f"{_ENDED}/{other}" in ended:
                end_all(f"process {other} has ended with an error")
            elif now - last[other][1] > PATIENCE:
                end_all(f"process {other} gives no sign of life for {PATIENCE:.0f} s")
        time.sleep(_BEAT)


def end_all(reason: str) -> None:
    """Ends this process with one line and exit code 1. The others notice it, and end too."""
    os.write(2, f"specjax: error: {reason}; all processes end; start the command again on every host\n".encode())
    os._exit(1)  # a host is dead, and the main thread may wait for it in compiled code for ever
