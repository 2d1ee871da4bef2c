"""The built wheel, beside the packages that it requires and no others, continues a prompt from another directory."""

import os
import subprocess
import sys
import venv
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def link_required(package: Distribution, folder: Path, extras: frozenset[str] = frozenset()) -> None:
    """Links the installed packages that ``package`` requires into ``folder``, with all that they require themselves."""
    for requirement in map(Requirement, package.requires or ()):
        wanted = requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)
        )
        try:
            needed = distribution(requirement.name) if wanted else None
        except PackageNotFoundError:  # a choice for another platform, or the command below fails
            needed = None
        if needed is not None and link(needed, folder, requirement.extras):
            link_required(needed, folder, frozenset(requirement.extras))


def link(package: Distribution, folder: Path, extras: set[str]) -> bool:
    """Links the files of a package into ``folder``. Returns whether it was not there, or has further extras."""
    mark = folder / ".linked" / " ".join([package.name, *sorted(extras)])
    if mark.exists():
        return False
    mark.parent.mkdir(exist_ok=True)
    mark.touch()
    for file in package.files or ():
        top = Path(str(package.locate_file(file.parts[0])))
        is_whole = (
            len(file.parts) == 1 or (top / "__init__.py").exists()
        )  # other folders may be those of several packages
        place = folder / (file.parts[0] if is_whole else file)
        if ".." not in file.parts and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(top if is_whole else package.locate_file(file))
    return True


@pytest.mark.slow
def test_the_wheel_runs_beside_its_requirements(tmp_path):
    """Links in place of an installation, which takes minutes."""

    def run(*command) -> str:
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "XLA_FLAGS")}
        found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
        assert found.returncode == 0, found.stderr[-2000:]
        return found.stdout

    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path / "wheels"), str(ROOT))
    (wheel,) = (tmp_path / "wheels").glob("specjax-*.whl")
    assert wheel.stat().st_size < 50e6
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    run(*pip, "--python", str(python), "install", "--no-deps", "--no-compile", str(wheel))
    packages = Path(run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (installed,) = Distribution.discover(name="specjax", path=[str(packages)])
    link_required(installed, packages)
    where = run(str(python), "-c", "import specjax; print(specjax.__file__)")
    assert str(packages) in where
    assert not (packages / "torch").exists() and not (packages / "fastapi").exists()
    command = str(python.with_name("specjax"))
    text = run(command, "generate", "--method", "ngram", "--prompt", "def f(", "--max-new-tokens", "8")
    assert text.strip()
