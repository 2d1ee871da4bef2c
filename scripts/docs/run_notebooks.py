"""Runs notebooks from the first cell to the last, and stores their outputs.

    python scripts/docs/run_notebooks.py [colab/quickstart.ipynb ...]

Without names it runs all of colab/. Warnings, and the output of a cell that installs a package, are
not stored, because they name folders of the machine.
"""

import sys
import tempfile
from pathlib import Path

import nbclient
import nbformat

NOTEBOOKS = Path(__file__).resolve().parents[2] / "colab"


def run(path: Path) -> None:
    """Runs a notebook in an empty folder, and writes it with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        nbclient.NotebookClient(notebook, timeout=900, record_timing=False, resources=place).execute()
    for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
        shown = [output for output in cell.outputs if output.get("name") != "stderr"]
        cell.outputs = [] if "%pip" in cell.source else shown
    notebook.metadata.language_info = {"name": "python"}
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:] or sorted(NOTEBOOKS.glob("*.ipynb"))):
        run(path)
        print(path)
