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


SWALLOWED = {
    "a callback of the garbage collector": "gc.callbacks.append(lambda phase, _: phase == 'stop' or wait()); gc.collect()",
    "a finaliser": "A = type('A', (), dict(__del__=lambda self: wait())); A()",
}


@pytest.mark.parametrize("inside", SWALLOWED)
def test_an_interrupt_that_python_ignores_ends_the_process_too(inside):
    """The callback gets KeyboardInterrupt, and Python prints it as ignored. The program goes on to its end."""
    wait = "\n    def wait():\n        print('inside', flush=True); time.sleep(30)\n    import gc; "
    path = os.path.join(os.path.dirname(__file__), "..", "..", "specjax", "cli", "interrupt.py")
    program = PROGRAM.format(path=path, body=wait + SWALLOWED[inside] + "; gc.callbacks.clear(); print('done')")
    program = program.replace("_PATIENCE = 0.3", "_PATIENCE = 30")
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n", "inside\n"]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130 and out == "done\n"
    assert "Exception ignored" in err and err.endswith("specjax: interrupted\n")


def test_an_ignored_signal_stays_ignored():
    """As of commands that a shell starts in the background."""
    path = os.path.join(os.path.dirname(__file__), "..", "..", "specjax", "cli", "interrupt.py")
    program = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)" + PROGRAM.format(
        path=path, body="import os, signal; os.kill(os.getpid(), signal.SIGINT); print('done')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ready\ndone\n", "")


IMPORTING = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "jax":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:  # some libraries go on
                print("swallowed")
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("command", [["-m", "specjax", "--version"], ["-c", "import specjax; print('imported')"]])
def test_an_interrupt_while_python_imports(command, tmp_path):
    """It ends the command line, though a library goes on. Other programs keep Python's handler."""
    (tmp_path / "sitecustomize.py").write_text(IMPORTING)
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, *command], env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=120
    )
    if command[0] == "-m":
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "specjax: interrupted\n")
    else:
        assert done.returncode == 0 and done.stdout == "swallowed\nimported\n"
