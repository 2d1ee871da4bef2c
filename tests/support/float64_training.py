"""Loops over positions in float64, for the losses of trained drafters: windows, rows of attention, and training-time test."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from specjax.training.kinds import KINDS

from .numpy_layer import mlp, numbers, rotate

V, S = 61, 9
"""The vocabulary, and the tokens of a window without the last."""

WINDOW = np.random.default_rng(0).integers(0, V, (2, S + 1)).astype(np.int32)
WEIGHT = np.random.default_rng(4).choice([0.0, 0.5, 1.0], (2, S + 2)).astype(np.float32)
"""The weight of each token of ``WINDOW``, and of the token after it: some count, some do not."""

STREAM = np.random.default_rng(3).integers(0, V, 400) // 2
KEY = jax.random.key(5)


def norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x) + eps) * numbers(weight)


class Row:
    """The query, key and value of what one row reads, for each head."""

    def __init__(self, layer, config, read, position):
        K, G, D = config.num_kv_heads, config.num_heads // config.num_kv_heads, config.head_dim
        heads = (numbers(layer.mixer.qkv) @ read).reshape(K, G + 2, D)
        self.q = [[rotate(heads[k, g], position, config.rope.theta) for g in range(G)] for k in range(K)]
        self.k = [rotate(heads[k, G], position, config.rope.theta) for k in range(K)]
        self.v = [heads[k, G + 1] for k in range(K)]


def attention(layer, config, row: Row, seen: list) -> np.ndarray:
    """The output of attention in ``row``, which sees the rows ``seen``."""
    out = []
    for k, queries in enumerate(row.q):
        for q in queries:
            weights = softmax(np.array([q @ other.k[k] for other in seen]) / np.sqrt(config.head_dim))
            out.append(sum(w * other.v[k] for w, other in zip(weights, seen)))
    return numbers(layer.mixer.out) @ np.concatenate(out)


def continue_layer(layer, config, x, row: Row, seen: list) -> np.ndarray:
    """The residual stream ``x`` after the layer."""
    return mlp(layer, config, x + attention(layer, config, row, seen))


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def nll(logits, label):
    return -np.log(softmax(logits)[label])


DIVERGENCES = {
    "ce": lambda p, q, label: -np.log(q[label]),
    "forward_kl": lambda p, q, label: sum(p * np.log(p / q)),
    "reverse_kl": lambda p, q, label: sum(q * np.log(q / p)),
    "tv": lambda p, q, label: 1 - sum(np.minimum(p, q)),
    "lk_alpha": lambda p, q, label: -np.log(sum(np.minimum(p, q))),
    "lk_lambda": lambda p, q, label: (
        (w := 0.9 * np.exp(-2 * (a := sum(np.minimum(p, q))))) * sum(p * np.log(p / q)) + (1 - w) * (1 - a)
    ),
}
"""The losses of probabilities p and q and a token of the text, each by its formula; lk_lambda with 0.9 and 2."""


def soft_cross_entropy(p_logits, q_logits):
    return -(softmax(p_logits) * np.log(softmax(q_logits))).sum()


class Computed:
    """Taps, hidden states and logits of a model for ``WINDOW``, float64, by its dense forward."""

    def __init__(self, model):
        mask = jnp.tril(jnp.ones((S + 1, S + 1), bool))
        positions = jnp.broadcast_to(jnp.arange(S + 1), WINDOW.shape)
        forward = jax.jit(lambda m: (o := m(jnp.asarray(WINDOW), positions, mask, taps=(0, 1)), m.logits(o.hidden)))
        out, logits = forward(model)
        self.taps = [np.asarray(tap, np.float64) for tap in out.taps]
        self.hidden, self.logits = np.asarray(out.hidden, np.float64), np.asarray(logits, np.float64)
        self.embed, self.output = numbers(model.embed), numbers(model.head)


def make_head(target, kind: str, **options):
    """A random head, with noise on its weights so that its distributions are far from uniform."""
    head = KINDS[kind].shape(**options).make(target, STREAM, jax.random.key(1))
    graph, params, rest = nnx.split(head, nnx.Param, ...)
    noise = lambda x: x + 0.12 * jax.random.normal(jax.random.key(x.size), x.shape)
    return nnx.merge(graph, jax.tree.map(noise, params), rest)


def value_of(loss, head, target) -> float:
    return float(jax.jit(loss)(head, jnp.asarray(WINDOW), jnp.asarray(WEIGHT), KEY, target.model))


def unroll(steps, count, row_of, finish):
    """Training-time test: hidden states [steps][count].

    In each step row i sees the first step's rows up to i, and its own row of each later step.
    ``row_of(s, i, hidden)`` gives the row of step s and its residual stream, ``finish(x, row, seen)``
    the hidden state.
    """
    first, chains, hidden = [], [[] for _ in range(count)], []
    for s in range(steps):
        states = []
        for i in range(count):
            row, x = row_of(s, i, hidden[-1][i] if s else None)
            if s == 0:
                first.append(row)
                seen = first[: i + 1]
            else:
                chains[i].append(row)
                seen = first[: i + 1] + chains[i]
            states.append(finish(x, row, seen))
        hidden.append(states)
    return hidden
