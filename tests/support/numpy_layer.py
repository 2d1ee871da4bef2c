"""A decoder layer of Llama in numpy, float64, place by place and head by head."""

import numpy as np


def numbers(param) -> np.ndarray:
    return np.asarray(param[...], np.float64)


def linear(x, weight, bias=None) -> np.ndarray:
    return x @ numbers(weight).T + (0 if bias is None else numbers(bias))


def rms(x, weight, eps) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * numbers(weight)


def rotate(x, position: int, theta: float = 10000.0) -> np.ndarray:
    """One vector rotated to its position: numbers i and i + D / 2 span a plane."""
    half = x.size // 2
    angle = position / theta ** (np.arange(half) / half)
    a, b = x[:half], x[half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)])


def attention(layer, config, read) -> np.ndarray:
    """The output of causal attention, place by place and head by head."""
    K, G, D = config.num_kv_heads, config.num_heads // config.num_kv_heads, config.head_dim
    qkv = linear(read, layer.mixer.qkv).reshape(len(read), K, G + 2, D)
    out = np.zeros((len(read), K, G, D))
    for i in range(len(read)):
        for k in range(K):
            keys = np.array([rotate(qkv[j, k, G], j) for j in range(i + 1)])
            for g in range(G):
                scores = keys @ rotate(qkv[i, k, g], i) / np.sqrt(D)
                weights = np.exp(scores - scores.max())
                out[i, k, g] = weights / weights.sum() @ qkv[: i + 1, k, G + 1]
    return linear(out.reshape(len(read), -1), layer.mixer.out)


def gate_and_up(rows, axis: int = -1) -> tuple[np.ndarray, np.ndarray]:
    """The gate and the up projection, from an array with the rows of ``gate_up`` on an axis: sixteen parts of each in turn.

    If sixteen does not divide the width, there are as many parts as the greatest common divisor.
    """
    both = np.moveaxis(np.asarray(rows), axis, 0)
    parts = both.reshape(np.gcd(len(both) // 2, 16), 2, -1, *both.shape[1:])
    flat = lambda x: np.moveaxis(x.reshape(-1, *both.shape[1:]), 0, axis)
    return flat(parts[:, 0]), flat(parts[:, 1])


def mlp(layer, config, x) -> np.ndarray:
    gate, up = gate_and_up(linear(rms(x, layer.mlp_norm, config.norm_eps), layer.mlp.gate_up))
    return x + linear(gate / (1 + np.exp(-gate)) * up, layer.mlp.down)


def ordinary(layer, config, x) -> np.ndarray:
    """A decoder layer of Llama."""
    return mlp(layer, config, x + attention(layer, config, rms(x, layer.mixer_norm, config.norm_eps)))
