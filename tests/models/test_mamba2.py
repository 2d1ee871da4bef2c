"""Mamba-2 against the recurrence of its paper (arXiv 2405.21060, equation 1), in numpy and float64.

The oracle goes token by token and keeps a whole state after each node. The mixer computes all nodes at once.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.states import (
    BATCH,
    MASK,
    PARENT,
    check_rows_of_earlier_calls,
    check_state,
    path_to,
    random_mixer,
    random_tokens,
    run,
)

from specjax import RequestError
from specjax.core.cache import Rows
from specjax.models.mixers.mamba2 import Mamba2, Mamba2Config

CONFIG = Mamba2Config(heads=6, head_dim=5, groups=2, state_dim=4, kernel=3, bias=True)


@pytest.fixture(scope="module")
def mixer() -> Mamba2:
    """A random mixer whose decays lie between 0.02 and 0.99."""
    names = "joint", "joint_bias", "conv", "conv_bias", "out_proj", "out_proj_bias", "log_rate", "step_bias"
    return random_mixer(Mamba2, CONFIG, dict.fromkeys(("norm", "skip"), (1, 0.6)) | dict.fromkeys(names, (0, 0.6)))


def follow(mixer: Mamba2, xs, state=None):
    """The outputs for tokens xs [N, E], and the state after them: S [H, P, D] of the heads, and the last inputs."""
    c, of = CONFIG, lambda name: np.asarray(getattr(mixer, name)[...], np.float64)
    silu = lambda x: x / (1 + np.exp(-x))
    S, inputs = state or (np.zeros((6, 5, 4)), np.zeros((2, c.groups * c.channels)))
    outs = []
    for token in xs:
        stacked = (of("joint") @ token + of("joint_bias")).reshape(c.groups, -1)
        z, mixed, steps = np.split(stacked, [c.width, c.width + c.channels], 1)
        inputs = np.vstack([inputs, mixed.reshape(1, -1)])
        x, B, C = np.split(
            silu((inputs * of("conv")[:, 0].T).sum(0) + of("conv_bias")).reshape(2, -1), [c.width, c.width + 4], 1
        )
        after, heads = np.zeros_like(S), np.zeros((6, 5))
        for h in range(c.heads):
            g, i = divmod(h, 3)
            step = np.log1p(np.exp(steps[g, i] + of("step_bias")[h]))
            own = x[g].reshape(3, 5)[i]
            after[h] = np.exp(-step * np.exp(of("log_rate")[h])) * S[h] + step * np.outer(own, B[g])
            heads[h] = after[h] @ C[g] + of("skip")[h] * own
        y = heads.reshape(2, -1) * silu(z)
        y = y / np.sqrt((y * y).mean(1, keepdims=True) + mixer.eps)
        outs.append(of("out_proj") @ (y.reshape(-1) * of("norm")) + of("out_proj_bias"))
        S, inputs = after, inputs[1:]
    return np.array(outs), (S, inputs)


@pytest.fixture(scope="module")
def prompt(mixer):
    """The state of the layer after 7 random tokens, and that of the oracle for each row."""
    x = random_tokens(7, seed=1)
    found, rows = run(mixer, x, np.tri(7, dtype=bool))
    state, expected = CONFIG.empty(BATCH, 0, jnp.float32).commit(rows, jnp.full(BATCH, 7)), []
    for b in range(BATCH):
        out, after = follow(mixer, x[b])
        np.testing.assert_allclose(found[b], out, rtol=1e-4, atol=1e-5)
        check_state(state, b, after)
        expected.append(after)
    return state, expected


def test_each_node_of_a_tree_follows_its_own_path(mixer, prompt):
    """The outputs of ten nodes, and the states after any path or the beginning of one is accepted."""
    (state, before), x = prompt, random_tokens(len(PARENT))
    found, rows = run(mixer, x, MASK, state)
    commit = jax.jit(lambda path, count: state.commit(Rows((rows,)).gather(path).layers[0], count))
    for node in range(len(PARENT)):
        path = path_to(node)
        count = np.array([len(path), len(path) - 1, 0])
        after = commit(np.tile(path + [0] * (5 - len(path)), (BATCH, 1)), count)
        for b in range(BATCH):
            np.testing.assert_allclose(
                found[b, node], follow(mixer, x[b][path], before[b])[0][-1], rtol=1e-4, atol=1e-5
            )
            check_state(after, b, follow(mixer, x[b][path[: count[b]]], before[b])[1])


def test_uncommitted_rows_of_earlier_calls_are_read_along_the_path(mixer, prompt):
    check_rows_of_earlier_calls(mixer, random_tokens(len(PARENT)), prompt[0], ((0, 4), (4, len(PARENT))))


def test_groups_are_split_over_devices_as_a_whole():
    assert CONFIG.split_over(2) == CONFIG
    with pytest.raises(RequestError, match="groups of Mamba-2"):
        CONFIG.split_over(4)
