"""The gated delta rule against the recurrence of its paper (arXiv 2412.06464), in numpy and float64.

The oracle goes token by token and keeps a whole state after each node. The mixer computes all nodes at once.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.golden import golden_model
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

from specjax.core import cache as kv
from specjax.core.cache import Rows
from specjax.core.recurrence import DeltaState
from specjax.errors import RequestError
from specjax.loop.prefill import fill
from specjax.models.mixers.delta_rule import DeltaRule, DeltaRuleConfig

CONFIG = DeltaRuleConfig(key_heads=2, value_heads=6, key_dim=4, value_dim=5, kernel=3)


@pytest.fixture(scope="module")
def mixer() -> DeltaRule:
    """A random mixer whose decays lie between 0.02 and 0.99."""
    spread = dict.fromkeys(("qkvz", "ba", "conv", "out_proj"), (0, 0.6))
    return random_mixer(DeltaRule, CONFIG, spread | {"log_rate": (0, 1.0), "decay_bias": (0, 0.5), "norm": (1, 0.3)})


class Oracle:
    """The layer of one row of the batch, token by token. A state is S of each value head, and the last inputs."""

    def __init__(self, mixer: DeltaRule):
        number = lambda param: np.asarray(param[...], np.float64)
        self.of = {name: number(getattr(mixer, name)) for name in ("qkvz", "ba", "conv", "out_proj", "norm")}
        self.rate, self.bias, self.eps = np.exp(number(mixer.log_rate)), number(mixer.decay_bias), mixer.eps

    def begin(self):
        c = CONFIG
        return np.zeros((c.value_heads, c.value_dim, c.key_dim)), np.zeros((c.kernel - 1, c.key_heads * c.channels))

    def read(self, x, state):
        """The output for a token x [E], and the state after it. S maps keys to values, [Dv, Dk], as in the paper."""
        c, (S, inputs) = CONFIG, state
        silu = lambda x: x / (1 + np.exp(-x))
        unit = lambda x: x / np.sqrt((x * x).sum() + 1e-6)
        stacked, pair = (self.of["qkvz"] @ x).reshape(c.key_heads, -1), (self.of["ba"] @ x).reshape(c.key_heads, 2, -1)
        inputs = np.vstack([inputs, stacked[:, : c.channels].reshape(1, -1)])
        mixed = silu((inputs * self.of["conv"][:, 0].T).sum(0)).reshape(c.key_heads, -1)
        after, out = np.zeros_like(S), []
        for h in range(c.value_heads):
            head, g = divmod(h, c.groups)
            q, k = unit(mixed[head, : c.key_dim]), unit(mixed[head, c.key_dim : 2 * c.key_dim])
            v = mixed[head, 2 * c.key_dim :].reshape(c.groups, -1)[g]
            z = stacked[head, c.channels :].reshape(c.groups, -1)[g]
            beta = 1 / (1 + np.exp(-pair[head, 0, g]))
            alpha = np.exp(-self.rate[h] * np.log1p(np.exp(pair[head, 1, g] + self.bias[h])))
            after[h] = S[h] @ (alpha * (np.eye(c.key_dim) - beta * np.outer(k, k))) + beta * np.outer(v, k)
            o = after[h] @ q / np.sqrt(c.key_dim)
            out.append(o / np.sqrt((o * o).mean() + self.eps) * self.of["norm"] * silu(z))
        return self.of["out_proj"] @ np.concatenate(out), (after, inputs[1:])

    def follow(self, xs, state):
        """The outputs for tokens xs [N, E], and the state after them."""
        outs = []
        for x in xs:
            out, state = self.read(x, state)
            outs.append(out)
        return np.array(outs), state


@jax.jit
def commit(state, rows, count, path=None):
    """The state of the layer after the first ``count`` nodes of a path; after a chain by default."""
    cache = kv.KVCache(((jnp.zeros((BATCH, 1, 32, 2)),), state), jnp.zeros(BATCH, int))
    keys = (jnp.zeros((BATCH, 1, rows.keys.shape[2], 2)),)
    return kv.commit(cache, (keys, rows), path, count, valid=jnp.ones(BATCH, bool)).layers[1]


def chain(count: int) -> np.ndarray:
    return np.tri(count, dtype=bool)


def after_prompt(mixer, count: int = 7):
    """The state of the layer after random tokens, and that of the oracle for each row."""
    x = random_tokens(count, seed=1)
    _, rows = run(mixer, x, chain(count))
    state = commit(CONFIG.empty(BATCH, 0, jnp.float32), rows, np.full(BATCH, count))
    oracle = Oracle(mixer)
    return state, [oracle.follow(row, oracle.begin())[1] for row in x]


def test_a_chain_follows_the_recurrence_of_the_paper(mixer):
    x, oracle = random_tokens(30), Oracle(mixer)
    found, rows = run(mixer, x, chain(30))
    state = commit(CONFIG.empty(BATCH, 0, jnp.float32), rows, np.full(BATCH, 30))
    for b in range(BATCH):
        expected, after = oracle.follow(x[b], oracle.begin())
        np.testing.assert_allclose(found[b], expected, rtol=1e-4, atol=1e-5)
        check_state(state, b, after)


def test_each_node_of_a_tree_follows_its_own_path(mixer):
    (state, before), x, oracle = after_prompt(mixer), random_tokens(len(PARENT)), Oracle(mixer)
    found, rows = run(mixer, x, MASK, state)
    for node in range(len(PARENT)):
        path = path_to(node)
        padded = np.tile(path + [0] * (5 - len(path)), (BATCH, 1))
        after = commit(state, rows, np.full(BATCH, len(path)), padded)
        for b in range(BATCH):
            expected, final = oracle.follow(x[b][path], before[b])
            np.testing.assert_allclose(found[b, node], expected[-1], rtol=1e-4, atol=1e-5)
            check_state(after, b, final)


def test_a_commit_keeps_the_accepted_part_of_each_row(mixer):
    """Rows accept none, two or all of a path. NaN in a rejected node, or in a row that accepts nothing, does not spread."""
    (state, before), x, oracle, count = after_prompt(mixer), random_tokens(5), Oracle(mixer), [0, 2, 5]
    _, rows = run(mixer, x, chain(5), state)
    rows = jax.tree.map(lambda leaf: leaf.at[1, :, 2:].set(jnp.nan).at[0].set(jnp.nan), rows)
    after = commit(state, rows, np.array(count))
    for b in range(BATCH):
        check_state(after, b, oracle.follow(x[b, : count[b]], before[b])[1])


def test_uncommitted_rows_of_earlier_calls_are_read_along_the_path(mixer):
    state, x = after_prompt(mixer)[0], random_tokens(len(PARENT))
    all_rows = check_rows_of_earlier_calls(mixer, x, state, ((0, 3), (3, 4), (4, len(PARENT))))
    blank = state.blank_rows(len(PARENT))
    assert jax.tree.map(jnp.shape, blank) == jax.tree.map(jnp.shape, all_rows)


@pytest.mark.parametrize("chunk", [4, pytest.param(16, marks=pytest.mark.slow)])
def test_prefill_in_chunks_keeps_padding_out_of_the_state(chunk: int):
    model, lengths, rng = golden_model("qwen3_5"), np.array([1, 4, 6, 13]), np.random.default_rng(0)
    tokens = rng.integers(0, 32, (4, 16)).astype(np.int32)
    found, _, _ = jax.jit(fill, static_argnums=(3, 4))(model, tokens, jnp.asarray(lengths), chunk, "float32")

    @jax.jit
    def read(tokens, length):
        cache = kv.empty(model.config, 1, 16, "float32")
        out = model(tokens, jnp.arange(16)[None], chain(16), cache)
        return kv.commit(cache, out.rows, None, length, valid=jnp.ones(1, bool))

    for b, length in enumerate(lengths):
        alone = read(tokens[b : b + 1], np.array([length]))
        for ours, theirs in zip(states(found), states(alone), strict=True):
            np.testing.assert_allclose(ours.memory[b], theirs.memory[0], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(ours.inputs[b], theirs.inputs[0], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("parents", [(0, 0, 1, 2, 3), (0, 0, 0, 1, 1, 2, 3, 5)], ids=["chain", "tree"])
def test_states_do_not_drift_in_500_rounds_of_random_acceptance(parents: tuple):
    """The states after 500 rounds are those of plain decoding on the emitted text. Rows accept 0 to 4 nodes of random paths."""
    model, B, N = golden_model("qwen3_5"), 2, len(parents)
    rng, ones, capacity = np.random.default_rng(0), jnp.ones(B, bool), 2048
    paths = [[0]]
    for node in range(1, N):
        paths.append([*paths[parents[node]], node])
    mask = np.array([[j in path for j in range(N)] for path in paths])
    P = max(map(len, paths))

    @jax.jit
    def play(cache, tokens, mask, path, count):
        positions = cache.length[:, None] + mask.sum(-1) - 1
        out = model(tokens, positions, mask, cache)
        return kv.commit(cache, out.rows, path, cache.length + count, valid=ones)

    cache, texts = kv.empty(model.config, B, capacity, "float32"), [[] for _ in range(B)]
    for _ in range(500):
        tokens = rng.integers(0, 32, (B, N)).astype(np.int32)
        chosen = [paths[i] for i in rng.integers(0, N, B)]
        count = np.array([rng.integers(0, min(len(path), 4) + 1) for path in chosen])
        path = np.array([path + [0] * (P - len(path)) for path in chosen])
        cache = play(cache, tokens, mask, path, count)
        for b in range(B):
            texts[b] += tokens[b, chosen[b][: count[b]]].tolist()
    lengths = np.array([len(text) for text in texts])
    np.testing.assert_array_equal(cache.length, lengths)
    assert lengths.min() > 600

    plain, none = kv.empty(model.config, B, capacity, "float32"), np.zeros((B, 1), np.int32)
    padded = np.array([text + [0] * (lengths.max() - len(text)) for text in texts], np.int32)
    for t in range(lengths.max()):
        plain = play(plain, padded[:, t : t + 1], np.ones((1, 1), bool), none, (t < lengths).astype(np.int32))
    for ours, theirs in zip(states(cache), states(plain), strict=True):
        for name in ("memory", "inputs"):
            a, b = getattr(ours, name), getattr(theirs, name)
            assert np.abs(a - b).max() / np.abs(b).max() < 1e-4


def test_a_cache_with_states_cannot_be_cut():
    model = golden_model("qwen3_5")
    with pytest.raises(RequestError, match="recurrent layers cannot take back"):
        kv.empty(model.config, 1, 8, "float32").cut(jnp.zeros(1, int))


def test_rows_of_states_are_gathered_put_and_joined_as_keys_are(mixer):
    _, rows = run(mixer, random_tokens(4), chain(4))
    all_rows = Rows((rows,))
    again = all_rows.first(2).join(all_rows.last(2)).room(1).put(all_rows.gather(jnp.array([[3]] * BATCH)).layers, 1, 4)
    expected = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[:, :, 3:]], 2), rows)
    jax.tree.map(np.testing.assert_array_equal, again.layers[0], expected)


def states(cache: kv.KVCache) -> list[DeltaState]:
    return [layer for layer in cache.layers if isinstance(layer, DeltaState)]
