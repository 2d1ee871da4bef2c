"""Questions to the host, in the program's memory and by JAX's callback."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core.ask_host import ask_host
from specjax.kernels.cpu import host_call


def count(asked: np.ndarray, answer: np.ndarray) -> None:
    """Writes the sum and the largest number of each row, and the number of columns."""
    answer[:] = np.stack([asked.sum(1), asked.max(1), np.full(len(asked), asked.shape[1])], 1)


@pytest.mark.parametrize("by_kernel", [True, False])
@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint32])
def test_each_round_gets_its_own_answer(by_kernel, dtype, monkeypatch):
    if not by_kernel:
        monkeypatch.setattr(host_call, "fits", lambda: False)

    def program(asked):
        def body(sums, i):
            found = ask_host(count, jax.ShapeDtypeStruct((2, 3), dtype), asked + i)
            return sums + found.astype(jnp.int32), found

        return jax.lax.scan(body, jnp.zeros((2, 3), jnp.int32), jnp.arange(4))

    asked = np.random.default_rng(0).integers(0, 1000, (2, 5), np.int32)
    expected = [np.stack([x.sum(1), x.max(1), [5, 5]], 1) for x in (asked + i for i in range(4))]
    for _ in range(3):
        sums, found = jax.jit(program)(asked)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(sums, np.sum(expected, 0))
        asked, expected = asked + 1, [x + [5, 1, 0] for x in expected]


PROGRAM = """
import jax, jax.numpy as jnp
from specjax.core.ask_host import ask_host
from specjax.requests.grammar_masks import write_forced

asked = jnp.zeros((1, 5), jnp.int32)
print(jax.jit(lambda asked: ask_host(write_forced, jax.ShapeDtypeStruct((1, 3), jnp.int32), asked))(asked).tolist())
"""


def test_a_kept_program_asks_the_function_of_its_own_process(tmp_path):
    """The second process loads the machine code of the first, whose functions are elsewhere in memory."""
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }  # fmt: skip
    kept = []
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, check=True, text=True
        )
        assert run.stdout == "[[-1, -1, -1]]\n"
        kept.append(sorted(path.name for path in tmp_path.glob("*-cache")))
    assert kept[0] and kept[0] == kept[1]
