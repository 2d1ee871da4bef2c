"""Ctrl-C and a full disk end ``specjax train`` with one line and leave a good checkpoint."""

import subprocess
import sys

import pytest

import specjax
from specjax.training.saving import Checkpoints

STOPPED = """
import os, signal, sys
from specjax.cli import main
from specjax.checkpoints.heads import load_drafter
from specjax.training import saving
if sys.argv[1] == "between":
    from specjax.training import run
    run.Batches.describe = lambda self, step: ""
    batch = run.Batches.read
    run.Batches.read = lambda self, step: os.kill(os.getpid(), signal.SIGINT) if step == 3 else batch(self, step)
else:
    write = saving.compute_checksums
    saving.compute_checksums = lambda path: (os.kill(os.getpid(), signal.SIGINT), write(path))[1]
sys.exit(main(sys.argv[2:]))
"""


FULL = """
import resource, signal, sys
from specjax.cli import main
from specjax.training import saving
save = saving.Checkpoints.save

def limited(self, step, arrays):
    if step == 4:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    save(self, step, arrays)

saving.Checkpoints.save = limited
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_disk_that_takes_no_more_is_one_line(small, text, tmp_path):
    """The threads that write add no traces."""
    done = run_in_a_process(FULL, small, text, tmp_path)
    assert done.returncode == 1, done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("step", "[transformers]"))]
    assert len(lines) == 1, done.stderr
    assert "step 4 cannot be written (File too large); that of step 2 is whole; free some space" in lines[0]
    with Checkpoints(tmp_path / "out") as found:
        assert [c.step for c in found.orbax.checkpoints] == [2] and not found.find_damage(2)


def run_in_a_process(script, small, text, tmp_path, *first):
    specjax.save(small, tmp_path / "model")
    (tmp_path / "r.toml").write_text(
        "kind = 'mtp'\nsteps = 4\nbatch = 4\nlength = 12\nevery = 2\nprompts = 0\n[loss]\nsteps = 2\n"
    )
    options = {"--recipe": "r.toml", "--model": "model", "--data": text, "--output": "out"}
    arguments = [str(x) for option, path in options.items() for x in (option, tmp_path / path)]
    command = [sys.executable, "-c", script, *first, "train", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["between", "in a checkpoint"])
def test_ctrl_c_is_one_line_and_leaves_a_good_checkpoint(small, text, tmp_path, when):
    done = run_in_a_process(STOPPED, small, text, tmp_path, when)
    lines = [line for line in done.stderr.splitlines() if line.startswith("specjax")]
    assert done.returncode == 130, done.stderr
    assert len(lines) == 1 and "interrupted; the checkpoints in" in lines[0]
    assert "Traceback" not in done.stderr
    with Checkpoints(tmp_path / "out") as found:
        assert [c.step for c in found.orbax.checkpoints] == [2] and not found.find_damage(2)
