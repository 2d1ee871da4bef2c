"""The loss of multi-token prediction against a loop over positions in float64, written from the paper."""

import numpy as np
import pytest
from support.float64_training import WEIGHT, WINDOW, Row, S, continue_layer, make_head, nll, norm, unroll, value_of
from support.numpy_layer import numbers

from specjax.training.kinds.mtp import MtpLoss


@pytest.mark.parametrize("modules, weights", [(1, (1, 0.6, 0.36)), (2, (1, 1, 0.6)), (3, (1, 1, 1))])
def test_mtp(target, out, modules, weights):
    """Each module sees its own rows alone. The last is used again as in training-time test."""
    steps, head = 3, make_head(target, "mtp", modules=modules)
    config, eps, count, right = head.config.layers, head.config.layers.norm_eps, S - 3, 0.0
    for b, window in enumerate(WINDOW):

        def run(module, features, s, steps):
            """Steps s, s + 1, ... of a module that starts from ``features`` [count]."""
            layer = module.layers[0]

            def row_of(again, i, hidden):
                embedded = norm(out.embed[window[i + 1 + s + again]], module.embedding_norm, eps)
                feature = norm(features[i] if again == 0 else hidden, module.hidden_norm, eps)
                x = numbers(module.join) @ np.concatenate([embedded, feature])
                return Row(layer, config, norm(x, layer.mixer_norm, eps), i + again), x

            finish = lambda x, row, seen: continue_layer(layer, config, x, row, seen)
            return unroll(steps, count, row_of, finish)

        hidden = [out.hidden[b]]
        for k, module in enumerate(head.modules):
            hidden += run(module, hidden[-1], k, 1 if k + 1 < modules else steps - k)
        for s in range(steps):
            module = head.modules[min(s, modules - 1)]
            for i in range(count):
                logits = out.output @ norm(hidden[s + 1][i], module.norm, eps)
                counted = WEIGHT[b, i + 2 + s] / WEIGHT[:, 2 + s :][:, :count].sum()
                right += 0.3 * weights[s] / sum(weights) * nll(logits, window[i + 2 + s]) * counted
    assert value_of(MtpLoss(steps), head, target) == pytest.approx(right, rel=1e-4)
