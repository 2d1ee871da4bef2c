"""The loss of EAGLE against a loop over positions in float64, written from the paper."""

import jax
import numpy as np
import pytest
from support.float64_training import (
    KEY,
    WEIGHT,
    WINDOW,
    Row,
    S,
    continue_layer,
    make_head,
    soft_cross_entropy,
    value_of,
)
from support.numpy_layer import linear

from specjax.training.kinds.eagle import EagleLoss


def test_eagle(target, out):
    """Row i reads feature i and token i + 1, and predicts feature i + 1, which predicts token i + 2."""
    head = make_head(target, "eagle")
    config, layer = head.config.layers, head.layers[0]
    noise = (np.asarray(jax.random.uniform(KEY, (2, S, 32)), np.float64) - 0.5) * 0.2 * 512 / S
    distance = entropy = 0.0
    weights = WEIGHT[:, 2:] / WEIGHT[:, 2:].sum()
    for b, window in enumerate(WINDOW):
        rows = []
        for i in range(S):
            read = np.concatenate([out.embed[window[i + 1]], out.hidden[b, i] + noise[b, i]])
            x = linear(read, head.fc, head.fc_bias)
            rows.append(Row(layer, config, x, i))  # The first layer has no norm before attention.
            feature = continue_layer(layer, config, x, rows[i], rows)
            far = np.abs(feature - out.hidden[b, i + 1])
            distance += np.where(far < 1, far**2 / 2, far - 0.5).mean() * weights[b, i]
            entropy += soft_cross_entropy(out.logits[b, i + 1], out.output @ feature) * weights[b, i]
    assert value_of(EagleLoss(), head, target) == pytest.approx(distance + 0.1 * entropy, rel=1e-4)
