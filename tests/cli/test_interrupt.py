"""Ctrl-C ends the process with one line, also where the main thread never returns to Python."""

import os
import signal
import subprocess
import sys
import time

import pytest

INSIDE = {  # the first waits for itself in C, without the interpreter
    "compiled code": "lock = ctypes.CDLL(None).pthread_mutex_lock; mutex = bytes(64); lock(mutex), lock(mutex)",
    "a library that swallows it": "exec('while True:\\n try: time.sleep(60)\\n except KeyboardInterrupt: pass')",
}
PROGRAM = """
import ctypes, importlib.util, time
spec = importlib.util.spec_from_file_location("interrupt", {path!r})
interrupt = importlib.util.module_from_spec(spec)
spec.loader.exec_module(interrupt)
interrupt._PATIENCE = 0.3
with interrupt.watch_interrupts(True):
    print("ready", flush=True)
    {body}
"""


@pytest.mark.parametrize("inside", INSIDE)
def test_the_process_ends_though_the_main_thread_does_not(inside):
    path = os.path.join(os.path.dirname(__file__), "..", "..", "specjax", "cli", "interrupt.py")
    program = PROGRAM.format(path=path, body=INSIDE[inside])
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=30)[1]
    assert (process.returncode, err) == (130, "specjax: interrupted\n")
