"""Plants known bugs, one at a time, in a copy of the code, and runs tests of the first tier.

    python scripts/benchmarks/planted_bugs.py [--only NAME ...]

The tests must fail for each bug. The first four bugs are the faults of `specjax verify --inject`,
which were found in published code. The others are in the loop, the cache and a head. A run ends at
the first test that fails. The exit code is 1 if the tests pass in spite of a bug. Writes the page
planted_bugs.md.
"""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from page import RANDOM, ROOT, Result, arguments, measured, section

from specjax.tools.evaluate.report import markdown_table

TITLE = "Planted bugs"
QUESTION = """Would the tests notice a wrong rule, a wrong cache or a wrong head?

Each bug was planted alone. Then the tests of the first tier in one file ran until a test failed."""
FOLLOWS = """
- Every bug is noticed within minutes, before a change is merged.
- For your own changes run `scripts/test.sh`; for your own models run `specjax verify`.
"""


@dataclasses.dataclass(frozen=True)
class Bug:
    """A line of a file, the wrong line that replaces it, and the file of tests that must fail."""

    name: str
    file: str
    right: str
    wrong: str
    tests: str


BUGS = (
    Bug(
        "equality-residual: a draft is accepted if it equals a draw from p",
        "specjax/rules/chains.py",
        "accepted = random.uniform(accept_key, p_drafted.shape) * q_drafted < p_drafted",
        "accepted = tree.tokens[1:] == random.categorical(accept_key, jnp.log(p))[:-1]",
        "tests/rules/test_acceptance.py",
    ),
    Bug(
        "q-before-top-p: q is reported before truncation",
        "specjax/drafters/parts/chains.py",
        "q=put(chain.q, jnp.where(chain.going[:, None], q, 0), i),",
        "q=put(chain.q, jnp.where(chain.going[:, None], jax.nn.softmax(logits[:, 0]), 0), i),",
        "tests/test_lossless.py",
    ),
    Bug(
        "softmax-q-for-argmax: the likeliest token is taken and the q of a draw reported",
        "specjax/drafters/parts/chains.py",
        "token = sample(key, q, options)",
        "token = jnp.argmax(q, -1).astype(jnp.int32)",
        "tests/test_lossless.py",
    ),
    Bug(
        "ratio-epsilon: an epsilon in the denominator of p / q",
        "specjax/rules/chains.py",
        "accepted = random.uniform(accept_key, p_drafted.shape) * q_drafted < p_drafted",
        "accepted = random.uniform(accept_key, p_drafted.shape) * (q_drafted + 0.1) < p_drafted",
        "tests/rules/test_acceptance.py",
    ),
    Bug(
        "loop: all rounds of a row draw with the same keys",
        "specjax/loop/decode.py",
        "return jax.vmap(of_row)(state.request.keys, state.cache.length)",
        "return jax.vmap(of_row)(state.request.keys, jnp.zeros_like(state.cache.length))",
        "tests/test_lossless.py",
    ),
    Bug(
        "cache: the rows of a branching tree are kept in the order of nodes",
        "specjax/core/cache.py",
        "on_path = Rows(rows) if path is None else Rows(rows).gather(path)",
        "on_path = Rows(rows) if path is None else Rows(rows).first(path.shape[1])",
        "tests/drafters/test_tree_drafts.py",
    ),
    Bug(
        "head: a feature is read beside its own token, not beside the next",
        "specjax/drafters/parts/feature_reader.py",
        "tokens = jnp.take_along_axis(state.tokens, jnp.minimum(positions + 1, n[:, None]), 1)",
        "tokens = jnp.take_along_axis(state.tokens, jnp.minimum(positions, n[:, None]), 1)",
        "tests/drafters/test_eagle.py",
    ),
)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="plant only the bugs whose names begin so")
    only = parser.parse_args().only
    bugs = [bug for bug in BUGS if only is None or bug.name.startswith(tuple(only))]
    found = {}
    for bug in bugs:
        found[bug] = first_failure(bug)
        print(f"{bug.name}: {found[bug] or 'NOT NOTICED'}", flush=True)
    if only is None:
        rows = [[bug.name, f"`{bug.file}`", f"`{test}`" if test else "**none**"] for bug, test in found.items()]
        table = markdown_table(["bug", "file", "the test that failed"], rows)
        Result("planted_bugs").write(TITLE, QUESTION, [section(measured(note=RANDOM), table)], FOLLOWS)
    return int(not all(found.values()))


def first_failure(bug: Bug) -> str | None:
    """The first of the bug's tests in the first tier that fails; None if all pass.

    Raises SystemExit where the code no longer has the line, and where pytest itself fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "specjax"
        for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
        text = (copy / bug.file).read_text()
        if text.count(bug.right) != 1:
            raise SystemExit(f"{bug.file} does not have this line once; change it in BUGS: {bug.right}")
        (copy / bug.file).write_text(text.replace(bug.right, bug.wrong))
        cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "jax"))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", bug.tests]
        environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": cache, "PYTHONPATH": str(copy)}
        run = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    failed = re.search(r"^FAILED (.+?)(?: - |$)", run.stdout, re.MULTILINE)
    if run.returncode not in (0, 1) or bool(run.returncode) != bool(failed):
        raise SystemExit(f"pytest ended with {run.returncode}:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    return failed and failed[1]


if __name__ == "__main__":
    sys.exit(main())
