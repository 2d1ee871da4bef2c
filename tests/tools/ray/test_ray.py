"""The stage for Ray Data on a local cluster, one of whose workers is killed, against a Generator."""

import importlib
import os
import re
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import specjax
from specjax import Generator, RequestError, Result

PROMPTS = [f"def f{i}({'abcdefg'[i % 7]}):\n    return" for i in range(500)]
ROWS = [
    {"id": i, "prompt": prompt, "temperature": 0.8 * (i % 2), "seed": i, "max_new_tokens": 3 + i % 4}
    for i, prompt in enumerate(PROMPTS)
]
# In bfloat16, the rounding of a batch of another size can decide between two tokens.
SETTING = dict(model="tiny-python", draft="tiny-python-draft", dtype="float32", num_speculative_tokens=2)
BATCH = 64


def wait_for(condition, seconds: float = 600):
    """The first true value of ``condition()``."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)
    return value


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def read_journal(journal: Path) -> list[tuple[int, int]]:
    """The pairs (process, row) in the order in which rows were decoded."""
    return [tuple(map(int, line.split())) for line in journal.read_text().splitlines()]


def decode_alone() -> list[Result]:
    """The results of a Generator for all rows, in batches of other rows than Ray's."""
    target = specjax.load(SETTING["model"], dtype=SETTING["dtype"])
    generator = Generator(target, draft=SETTING["draft"], num_speculative_tokens=2)
    order = [i * 179 % 500 for i in range(-(-500 // BATCH) * BATCH)]  # some rows twice
    results = {}
    for first in range(0, len(order), BATCH):
        ids = order[first : first + BATCH]
        options = {name: [ROWS[i][name] for i in ids] for name in ("temperature", "seed", "max_new_tokens")}
        results |= zip(ids, generator([PROMPTS[i] for i in ids], **options))
    return [results[i] for i in range(500)]


@pytest.mark.slow
def test_a_killed_replica_loses_no_row_and_doubles_none(ray, tmp_path):
    """The replica that decodes row 250 first waits with the results of its batch until it is killed."""
    from specjax.tools.ray.data import Generate

    alone = decode_alone()  # first, so that the replicas find its programs in the compilation cache
    journal, hostage = tmp_path / "journal", tmp_path / "hostage"
    journal.touch()

    class Watched(Generate):
        def __call__(self, batch):
            results = super().__call__(batch)
            ids = results["id"].to_pylist()
            with journal.open("a") as file:
                file.write("".join(f"{os.getpid()} {i}\n" for i in ids))
            if 250 in ids and not hostage.exists():
                hostage.with_suffix(".part").write_text(str(os.getpid()))
                hostage.with_suffix(".part").rename(hostage)
                time.sleep(600)
            return results

    def kill() -> int:
        wait_for(hostage.exists)
        victim = int(hostage.read_text())
        assert victim != os.getpid() and not is_gone(victim)
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: is_gone(victim), 30)
        return victim

    dataset = ray.data.from_items(ROWS).map_batches(
        Watched,
        fn_constructor_kwargs=SETTING,
        batch_size=BATCH,
        num_cpus=1,
        compute=ray.data.ActorPoolStrategy(size=2),
    )
    with ThreadPoolExecutor(1) as thread:
        killing = thread.submit(kill)
        results = dataset.take_all()
        victim = killing.result()

    # Rows were in flight: the victim decoded them, and another process decoded them again.
    decoded = read_journal(journal)
    again = {i for pid, i in decoded if pid != victim} & {i for pid, i in decoded if pid == victim}
    assert 250 in again

    assert [row["id"] for row in results] == list(range(500))
    assert [{name: row[name] for name in ROWS[0]} for row in results] == ROWS
    assert all(row["error"] is None for row in results)

    assert [row["text"] for row in results] == [result.text for result in alone]
    assert [list(row["token_ids"]) for row in results] == [result.token_ids for result in alone]
    for name in ("target_calls", "drafted", "accepted", "generated", "mean_acceptance_length"):
        assert [row[name] for row in results] == [getattr(result.stats, name) for result in alone]
    assert sum(row["accepted"] for row in results) > 0


@pytest.mark.slow
def test_batch_formats_and_refused_rows(ray):
    from specjax.tools.ray.data import COLUMNS, Generate

    rows = [
        {"prompt": "def f(x):", "max_new_tokens": None, "note": 1},
        {"prompt": "", "max_new_tokens": 3, "note": 2},
        {"prompt": "import os", "max_new_tokens": 3, "note": 3},
    ]
    dataset = ray.data.from_items(rows)
    stage = Generate("tiny-python", "none", max_new_tokens=5)
    first, last = stage.generator(["def f(x):", "import os"], max_new_tokens=[5, 3])
    for batch_format in ("numpy", "pyarrow", "pandas"):
        (batch,) = dataset.iter_batches(batch_format=batch_format)
        results = stage(batch).to_pylist()
        assert [row["error"] for row in results] == [None, "the prompt is empty; give at least one token", None]
        assert [row["generated"] for row in results] == [5, None, 3]
        assert [row["text"] for row in results] == [first.text, None, last.text]
        assert [row["note"] for row in results] == [1, 2, 3]
        assert list(results[0]) == [*rows[0], *COLUMNS]


@pytest.mark.slow
def test_a_job_ends_at_a_refused_row_where_that_is_asked_for(ray):
    from specjax.tools.ray.data import Generate

    setting = dict(model="tiny-python", method="none", on_error="raise")
    pool = ray.data.ActorPoolStrategy(size=1)
    dataset = ray.data.from_items([{"prompt": ""}])
    with pytest.raises(ray.exceptions.RayTaskError) as error:
        dataset.map_batches(Generate, fn_constructor_kwargs=setting, compute=pool).take_all()
    assert "RequestError: the prompt is empty; give at least one token" in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(temperature=-1), "temperature must be a number, at least 0"),
        (dict(max_new_token=3), "did you mean max_new_tokens"),
        (dict(on_error="stop"), "on_error 'stop' is unknown; use 'column' or 'raise'"),
        (dict(mesh="model=1000"), "1000 devices"),
    ],
)
def test_arguments_that_do_not_fit(arguments, message):
    from specjax.tools.ray.data import Generate

    with pytest.raises(RequestError, match=message):
        Generate("tiny-python", "none", **arguments)


@pytest.mark.parametrize(
    ("missing", "module", "message"),
    [
        ("ray.data.block", "data", r"needs Ray Data .*; install it with pip install 'specjax\[ray\]'$"),
        ("pyarrow", "data", r"needs Ray Data .*; install it with pip install 'specjax\[ray\]'$"),
        ("ray", "serve", r"needs Ray Serve .*; install it with pip install 'specjax\[ray,serve\]'$"),
    ],
)
def test_without_ray_one_line_names_the_extra(missing, module, message, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, f"specjax.tools.ray.{module}", raising=False)
    with pytest.raises(ImportError, match=message):
        importlib.import_module(f"specjax.tools.ray.{module}")


def test_no_other_module_imports_ray():
    folder = Path(specjax.__file__).parent
    importing = [path for path in folder.rglob("*.py") if re.search(r"^\s*(import|from) ray\b", path.read_text(), re.M)]
    assert sorted(importing) == [folder / "tools" / "ray" / "data.py", folder / "tools" / "ray" / "serve.py"]
