"""Every notebook runs from its first cell to its last, as a reader would run it, and is stored with its outputs."""

from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "colab").glob("*.ipynb"))


def texts(notebook) -> str:
    """The printed lines of a notebook."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return "\n".join(output.get("text", "") for cell in cells for output in cell.outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_stored_outputs_are_those_of_a_whole_run(path):
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    shows = [cell for cell in cells if "print(" in cell.source.split("\n")[-1] or "plt.show()" in cell.source]
    assert shows and all(cell.outputs for cell in shows)
    kinds = [(output.output_type, output.get("name")) for cell in cells for output in cell.outputs]
    assert not [kind for kind in kinds if kind[0] == "error" or kind[1] == "stderr"]
    assert "site-packages" not in texts(notebook)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs(path, tmp_path, monkeypatch):
    if path.stem == "quickstart":  # optimised: products of halves are then the same for one row and for six
        monkeypatch.setenv("XLA_FLAGS", "")
    notebook = nbformat.read(path, as_version=4)
    stored = texts(notebook)
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    facts = [fact for fact in ("the same text", "acceptance rose", "the same curve") if f"{fact}: True" in stored]
    assert facts
    for fact in facts:
        assert f"{fact}: True" in texts(notebook) and f"{fact}: False" not in texts(notebook)
