"""Set-up of all tests: eight CPU devices, strict dtype promotion, one compilation cache, and models as fixtures."""

import gc
import os
import signal
import time
from importlib.metadata import version
from pathlib import Path

# Tests spend most of their time in the compiler. Machine code without optimisation saves a quarter of it, and XLA's older
# emitters, which jaxlib 0.11 no longer has, save half.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    + " --xla_cpu_use_fusion_emitters=false" * version("jaxlib").startswith("0.10."),
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Processes and commands that tests start share the compiled programs.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

import jax
import pytest
from support.models import disturbed, language_model, tiny_model

from specjax import LanguageModel

jax.config.update("jax_numpy_dtype_promotion", "strict")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background jobs ignore Ctrl-C, and the processes that tests start and interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.set_threshold(20_000, 10, 10)  # tracing makes millions of objects; collecting them took a tenth of the time

EVERYTHING = os.environ.get("SPECJAX_ALL") == "1"
"""Whether this is ``scripts/test.sh --all``. It has every package, so a skipped test is a failure."""


def _fail_if_skipped(report):
    """The report, with a skip turned into a failure in ``scripts/test.sh --all``."""
    if EVERYTHING and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and scripts/test.sh --all must run every test: {report.longrepr[-1]}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return _fail_if_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return _fail_if_skipped((yield))


_looked = [time.monotonic()]


@pytest.fixture(autouse=True)
def room_for_programs():
    """A Linux process may map 65,530 areas of memory. Each compiled program takes a dozen; beyond the limit XLA aborts."""
    yield
    maps = Path("/proc/self/maps")
    if time.monotonic() - _looked[0] > 10 and maps.exists():  # counting takes up to a tenth of a second
        _looked[0] = time.monotonic()
        if len(maps.read_text().splitlines()) > 40_000:
            jax.clear_caches()


@pytest.fixture(scope="session")
def target() -> LanguageModel:
    """A tiny target."""
    return language_model(tiny_model(0), "target")


@pytest.fixture(scope="session")
def draft(target) -> LanguageModel:
    """A draft that often agrees with ``target``."""
    return language_model(disturbed(target.model), "draft")
