"""Random mixers with a state, random tokens and a tree for them, and the comparison of a state with an oracle's."""

import jax
import jax.numpy as jnp
import numpy as np

from specjax.models.kinds import LayerConfig
from specjax.models.layer import Nodes
from specjax.models.layers import Norm

WIDTH, BATCH = 8, 3
PARENT = np.array([-1, 0, 0, 1, 1, 2, 3, 6, 6, 5])
"""Ten nodes; the root follows the committed tokens."""


def random_mixer(kind, config, spread: dict[str, tuple[float, float]]):
    """A mixer of a class. ``spread`` has the mean and the deviation of each parameter, by its name."""
    layer, rng = LayerConfig(WIDTH, 2, config, config, Norm(eps=1e-5)), np.random.default_rng(0)
    made = kind(layer, jax.random.split(jax.random.key(0)), jnp.float32)
    for name, (mean, deviation) in spread.items():
        param = getattr(made, name)
        param.set_value(jnp.asarray(rng.normal(mean, deviation, param.shape), jnp.float32))
    return made


@jax.jit
def run(mixer, x, seen, past=None, rows=None):
    """The mixer's output and rows for tokens x [B, N, E]; ``seen`` is the mask of its nodes."""
    nodes = Nodes(jnp.zeros(x.shape[:2], int), seen, jnp.dtype("float32"), jnp.zeros(len(x), int))
    return mixer(x.astype(jnp.float32), nodes, past, rows)


def random_tokens(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(BATCH, count, WIDTH))


def path_to(node: int) -> list[int]:
    return [] if node < 0 else [*path_to(PARENT[node]), node]


MASK = np.array([[j in path_to(i) for j in range(len(PARENT))] for i in range(len(PARENT))])


def check_state(found, row: int, expected) -> None:
    """A row of a state is S [H, P, D] and the last inputs of an oracle."""
    np.testing.assert_allclose(found.memory[row].swapaxes(-1, -2), expected[0], rtol=1e-4, atol=1e-5)
    inputs = found.inputs[row].swapaxes(0, 1).reshape(expected[1].shape)
    np.testing.assert_allclose(inputs, expected[1], rtol=1e-4, atol=1e-5)


def check_rows_of_earlier_calls(mixer, x, state, parts) -> tuple:
    """The nodes of the tree in one call and in several; returns the rows."""
    expected, all_rows = run(mixer, x, MASK, state)
    rows, found = state.blank_rows(0), []
    for first, last in parts:
        out, rows = run(mixer, x[:, first:last], MASK[first:last, :last], state, rows)
        found.append(out)
    np.testing.assert_allclose(np.concatenate(found, 1), expected, rtol=1e-4, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), rows, all_rows)
    return all_rows
