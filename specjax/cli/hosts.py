"""One command on several hosts: how its processes join, who prints, and how all end."""

import argparse
import os
import subprocess
import sys

from ..errors import RequestError
from ..parallel import is_first_host, start
from . import log_filter


def join_hosts(args: argparse.Namespace) -> None:
    """Joins the processes of all hosts. Only process 0 prints results and progress.

    Raises RequestError for several processes without ``--mesh``, which would all do the same work,
    and with ``--draft-mesh``.
    """
    if not start(args.coordinator, args.num_processes, args.process_id):
        return
    if args.mesh is None:
        raise RequestError("several processes share the devices of a mesh; give --mesh, such as --mesh model=8")
    if args.draft_mesh is not None:
        raise RequestError("the mesh of several processes has all devices; leave out --draft-mesh")
    _part_streams()


def _part_streams() -> None:
    """Gives Python's output files of its own. Files 1 and 2 go to the filter of XLA's log.

    XLA's C++ code writes there: connections, and a stack trace when it ends the process because
    process 0 has died. The filter outlives this process.
    """
    shown = os.dup(1) if is_first_host() else os.open(os.devnull, os.O_WRONLY)
    sys.stdout = os.fdopen(shown, "w")
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    command = [sys.executable, "-S", "-E", log_filter.__file__]
    log = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    assert log.stdin is not None
    for file in (1, 2):
        os.dup2(log.stdin.fileno(), file)
