"""scripts/benchmarks/page.py: the conditions of a measurement, and the form of a page."""

import hashlib
import sys

from page import ROOT, ZOO, Result, arguments, hash_of, measured, quartiles, section, with_folder

CONDITIONS = dict(
    command="python a.py", cpu="a CPU", extensions=["avx2"], cores=2, device="cpu", python="3", jax="0", flax="1",
    date="2026-01-02", commit="0123456", models={"m": "00"}, note="bfloat16",
)  # fmt: skip


def test_a_hash_is_that_of_the_weights(tmp_path):
    weights = (ZOO / "tiny-python-draft" / "model.safetensors").read_bytes()
    assert hash_of("tiny-python-draft") == hashlib.sha256(weights).hexdigest()[:12]
    for name, text in (("b", b"second"), ("a", b"first")):
        (tmp_path / f"{name}.safetensors").write_bytes(text)
    assert hash_of(str(tmp_path)) == hashlib.sha256(b"firstsecond").hexdigest()[:12]


def test_conditions_name_no_path_of_the_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", [str(ROOT / "scripts/benchmarks/gpu_report/__main__.py"), "--work", str(tmp_path)])
    found = measured(["tiny-python"], "float32")
    assert found["command"] == f"python scripts/benchmarks/gpu_report --work {tmp_path.name}"
    assert found["models"] == {"tiny-python": hash_of("tiny-python")}
    assert found["cores"] > 0


def test_a_page_has_all_parts(tmp_path):
    result = Result("a", "b", tmp_path / "new")
    result.save({"x": 1})
    assert result.read() == {"x": 1} and result.read_all() == [{"x": 1}] and Result("a", "c", tmp_path).read() == {}
    assert result.picture() == tmp_path / "new" / "a_b.png"
    result.write("Title", "Why?", [section(CONDITIONS, "text", "Part")], "- so\n")
    assert (tmp_path / "new" / "a.md").read_text() == (
        "# Title\n\nWhy?\n\n## Part\n\n- Command: `python a.py`\n"
        "- Machine: a CPU (avx2), 2 cores; Python 3, jax 0, flax 1\n- Measured: 2026-01-02, commit 0123456\n"
        "- Models: m `00`; bfloat16\n\ntext\n\n## For the user\n\n- so\n"
    )


def test_a_gpu_is_named_and_an_empty_note_is_not():
    text = section(CONDITIONS | {"device": "a GPU", "note": ""}, "text")
    assert "2 cores, a GPU; Python" in text
    assert text.endswith("- Models: m `00`\n\ntext")


def test_quartiles_and_arguments(tmp_path):
    assert quartiles([1, 2, 3, 4, 5], ".1f") == "3.0 (2.0 to 4.0)"
    assert with_folder(arguments("text")).parse_args(["--results", str(tmp_path)]).results == tmp_path
