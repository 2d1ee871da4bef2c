"""Packages of extras, and compilers of devices, are looked for before the work of a command."""

import importlib.metadata
import re
import sys

import pytest
from support.command_line import assert_one_line, specjax_main

from specjax.core.checks import check_extra
from specjax.errors import RequestError

EXTRA = {
    "design": ("plot", ("design", "--output", "{new}")),
    "serve": ("serve", ("serve",)),
    "traces": ("otel", ("serve", "--otlp-traces-endpoint", "http://a")),
    "suite of the hub": ("eval", ("evaluate", "--suite", "gsm8k", "--methods", "ngram", "--output", "{new}")),
    "suite in Parquet": (
        "eval",
        ("evaluate", "--suite", "gsm8k", "--data", "{table}", "--methods", "ngram", "--output", "{new}"),
    ),
    "training on a dataset": ("eval", ("train", "--recipe", "medusa", "--data", "hf://datasets/a/b")),
    "training on Parquet": ("eval", ("train", "--recipe", "medusa", "--data", "{table}")),
    "pruning on a dataset": ("eval", ("prune", "--data", "hf://datasets/a/b", "--output", "{new}")),
    "pruning on Parquet": ("eval", ("prune", "--data", "{table}", "--output", "{new}")),
    "vocabulary of Parquet": (
        "eval",
        ("explain", "--draft", "x", "--draft-vocab", "9", "--draft-vocab-data", "{table}"),
    ),
    "design for a GPU": ("cuda", ("design", "--device", "h100:1")),
    "design for a TPU": ("tpu", ("design", "--device", "v5e:1")),
    "doctor for a GPU": ("cuda", ("doctor", "--method", "ngram", "--device", "h100:1")),
    "doctor for a TPU": ("tpu", ("doctor", "--method", "ngram", "--device", "v5e:1")),
    "plan for a GPU": ("cuda", ("plan", "--model", "tiny-python", "--device", "h100:1")),
    "plan for a TPU": ("tpu", ("plan", "--model", "tiny-python", "--device", "v5e:1")),
}
PACKAGES = (
    "matplotlib", "fastapi", "uvicorn", "prometheus_client", "datasets", "pyarrow", "libtpu", "llvmlite", "ray",
    "opentelemetry", "jax_plugins", "jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13",
)  # fmt: skip


@pytest.fixture
def bare(monkeypatch):
    """An environment without any extra, in which no model can be loaded."""
    for package in PACKAGES:
        monkeypatch.setitem(sys.modules, package, None)

    def load(*args, **options):
        raise AssertionError("a model was loaded")

    for name in ("specjax.checkpoints.load.load", "specjax.checkpoints.load.load_tokenizer"):
        monkeypatch.setattr(name, load)


@pytest.mark.parametrize("case", EXTRA)
def test_a_missing_package_is_named_before_a_model_is_loaded(case, bare, specjax_main, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    extra, argv = EXTRA[case]
    argv = [word.format(new=tmp_path / "new", table=tmp_path / "table.parquet") for word in argv]
    assert_one_line(specjax_main(*argv), f"pip install 'specjax[{extra}]'")
    assert not (tmp_path / "new").exists()


def test_the_named_extras_exist_and_a_present_package_passes():
    provided = set(importlib.metadata.metadata("specjax").get_all("Provides-Extra") or ())
    assert {extra for extra, _ in EXTRA.values()} <= provided
    check_extra("plot", ("json",), "this")
    with pytest.raises(RequestError, match=re.escape("this needs the package no_such; install it with pip install")):
        check_extra("plot", ("json", "no_such"), "this")
