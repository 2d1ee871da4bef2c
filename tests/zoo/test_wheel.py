"""The built wheel, installed into an empty environment, runs the demo's command from another directory."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_wheel_runs_in_an_empty_environment(tmp_path):
    def run(*command) -> str:
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "XLA_FLAGS")}
        found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
        assert found.returncode == 0, found.stderr[-2000:]
        return found.stdout

    pip = ("-m", "pip", "--quiet", "--disable-pip-version-check")
    run(sys.executable, *pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path / "wheels"), str(ROOT))
    (wheel,) = (tmp_path / "wheels").glob("specjax-*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    run(str(python), *pip, "install", "--no-compile", "--constraint", str(ROOT / "constraints.txt"), str(wheel))
    where = run(str(python), "-c", "import specjax; print(specjax.__file__)")
    assert str(tmp_path) in where
    command = str(python.with_name("specjax"))
    text = run(command, "generate", "--draft", "tiny-python-draft", "--prompt", "def f(", "--max-new-tokens", "8")
    assert text.strip()
