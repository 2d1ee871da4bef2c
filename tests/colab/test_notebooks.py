"""Every notebook runs from its first cell to its last, as a reader would run it, and is stored without outputs."""

from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "colab").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs(path, tmp_path, monkeypatch):
    if path.stem == "quickstart":  # optimised: products of halves are then the same for one row and for six
        monkeypatch.setenv("XLA_FLAGS", "")
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    shown = [output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not {"the same text: False", "acceptance rose: False", "the same curve: False"} & set(
        "".join(shown).splitlines()
    )
