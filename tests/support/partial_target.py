"""A target whose upper layers matter little, and its logits in numpy without some of its sub-layers or cached tokens."""

from collections.abc import Callable
from functools import cache

import numpy as np

from .models import tiny_model
from .numpy_layer import gate_and_up
from .reference import array

TARGET = tiny_model(0, 5.0, num_layers=3)
for _layer in TARGET.layers[1:]:  # upper layers change little
    _layer.mixer.out[...] *= 0.6
    _layer.mlp.down[...] *= 0.6
TARGET.head[...] *= 5  # the model is often sure


@cache
def _weights() -> tuple:
    """The embedding, the matrices of each layer and the output matrix, in float64."""
    layers = [
        tuple(map(array, (layer.mixer.qkv, layer.mixer.out, layer.mlp.gate_up, layer.mlp.down)))
        for layer in TARGET.layers
    ]
    return array(TARGET.embed), layers, array(TARGET.head)


def logits_without(text: list[int], lacks: dict[str, set[int]], since: int, sees: Callable | None = None) -> np.ndarray:
    """Logits float64 [V] of TARGET after a text.

    Args:
      lacks: layers whose sub-layer is skipped, under "attention" and "mlp".
      since: the tokens from this place on skip them.
      sees: which of the tokens before ``since`` these tokens see in a layer, bool [K, since], from
        rotated queries [K, G, D] of the first of them and rotated keys [since, K, D]; by default all.
    """
    c, S = TARGET.config, len(text)
    K, G, D = c.num_kv_heads, c.num_heads // c.num_kv_heads, c.head_dim
    norm = lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + c.norm_eps)
    angle = np.arange(S)[:, None] / c.rope.theta ** (np.arange(0, D, 2) / D)
    cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    whole = np.arange(S) < since
    embed, layers, head = _weights()
    x = embed[np.array(text)]
    for i, (qkv, out, gate_up, down) in enumerate(layers):
        runs = lambda kind: (whole | (i not in lacks.get(kind, ())))[:, None]
        heads = (norm(x) @ qkv.T).reshape(S, K, G + 2, D)
        a, b = heads[..., : D // 2], heads[..., D // 2 :]
        rotated = np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
        scores = np.einsum("skgd,tkd->kgst", rotated[:, :, :G], rotated[:, :, G]) / np.sqrt(D)
        seen = np.tile(np.tri(S, dtype=bool), (K, 1, 1, 1))
        if sees is not None:
            seen[:, :, since:, :since] = sees(rotated[since, :, :G], rotated[:since, :, G])[:, None, None]
        scores = np.exp(np.where(seen, scores, -np.inf))
        mixed = np.einsum("kgst,tkd->skgd", scores / scores.sum(-1, keepdims=True), heads[:, :, G + 1])
        x = x + runs("attention") * (mixed.reshape(S, -1) @ out.T)
        gate, up = gate_and_up(norm(x) @ gate_up.T)
        x = x + runs("mlp") * ((gate / (1 + np.exp(-gate)) * up) @ down.T)
    return norm(x[-1]) @ head.T
