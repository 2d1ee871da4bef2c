"""The loss of Medusa and Hydra against loops over positions in float64, written from the papers."""

import numpy as np
import pytest
from support.float64_training import (
    WEIGHT,
    WINDOW,
    Row,
    S,
    attention,
    make_head,
    nll,
    norm,
    soft_cross_entropy,
    value_of,
)
from support.numpy_layer import mlp, numbers

from specjax.training.kinds.medusa import MedusaLoss


@pytest.mark.parametrize(
    "kind, teacher, options", [("medusa", 0.0, {}), ("hydra", 0.3, {}), ("hydra", 1.0, {"prefix": True})]
)
def test_medusa_and_hydra(target, out, kind, teacher, options):
    """Row i of the heads reads hidden state i, or with a prefix layer that layer's output for the states up to i."""
    head = make_head(target, kind, num_heads=3, **options)
    right, count, read = 0.0, S - 3, out.hidden
    if options:
        config, (layer,) = head.config.layers, head.layers
        normed = lambda x: norm(x, layer.mixer_norm, config.norm_eps)
        rows = [[Row(layer, config, normed(x), i) for i, x in enumerate(states)] for states in out.hidden]
        seen = lambda b, i: attention(layer, config, rows[b][i], rows[b][: i + 1])
        read = [
            [mlp(layer, config, x + seen(b, i)) for i, x in enumerate(states[:S])]
            for b, states in enumerate(out.hidden)
        ]
        read = [[norm(x, head.norm, config.norm_eps) for x in states] for states in read]
    for k, part in enumerate(head.heads):
        weights = WEIGHT[:, k + 2 :][:, :count]
        for b, window in enumerate(WINDOW):
            for i in range(count):
                x = kept = read[b][i]
                if kind == "hydra":
                    x = np.concatenate([x, *(out.embed[window[i + 1 + j]] for j in range(k + 1))])
                    kept = numbers(part.blocks[0].residual) @ x + numbers(part.blocks[0].residual_bias)
                z = numbers(part.blocks[0].linear) @ x + numbers(part.blocks[0].linear_bias)
                logits = numbers(part.head) @ (kept + z / (1 + np.exp(-z)))
                logits = logits + (numbers(part.head_bias) if kind == "hydra" else 0)
                hard, soft = nll(logits, window[i + k + 2]), soft_cross_entropy(out.logits[b, i + k + 1], logits)
                value = (1 - teacher) * hard + teacher * soft
                right += 0.8**k * value * weights[b, i] / weights.sum()
    assert value_of(MedusaLoss(teacher=teacher), head, target) == pytest.approx(right, rel=1e-4)
