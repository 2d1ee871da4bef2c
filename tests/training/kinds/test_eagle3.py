"""The loss of EAGLE-3 and P-EAGLE against a loop over positions in float64, written from the papers."""

import numpy as np
import pytest
from support.float64_training import (
    STREAM,
    WEIGHT,
    WINDOW,
    Row,
    S,
    V,
    continue_layer,
    make_head,
    norm,
    soft_cross_entropy,
    unroll,
    value_of,
)
from support.numpy_layer import numbers

from specjax.training.kinds.eagle3 import Eagle3Loss


@pytest.mark.parametrize("parallel", [False, True])
def test_eagle3(target, out, parallel):
    """P-EAGLE reads its mask in all steps but the first."""
    steps, head = 3, make_head(target, "eagle3", draft_vocab_size=20, taps=(0, 1), parallel=parallel)
    config, layer = head.config.layers, head.layers[0]
    known = [int(d + offset) for d, offset in enumerate(head.draft_to_target[...])]
    assert known == sorted(sorted(range(V), key=lambda t: (-(STREAM == t).sum(), t))[:20])
    count, right = S + 1 - steps, 0.0
    found = []
    for b, window in enumerate(WINDOW):

        def row_of(s, i, hidden):
            feature, token = hidden, window[i + 1 + s]
            if s == 0:
                feature = numbers(head.fc) @ np.concatenate([tap[b, i] for tap in out.taps])
            elif parallel:
                feature, token = numbers(head.fc) @ numbers(head.mask_hidden)[0, 0], head.config.mask_token
            embedded = norm(out.embed[token], layer.mixer_norm, config.norm_eps)
            read = np.concatenate([embedded, norm(feature, layer.hidden_norm, config.norm_eps)])
            return Row(layer, config, read, i + s), feature

        finish = lambda x, row, seen: continue_layer(layer, config, x, row, seen)
        found.append(unroll(steps, count, row_of, finish))
    for s in range(steps):
        values, weights = [], []
        for b in range(2):
            for i in range(count):
                p = out.logits[b, i + 1 + s]
                q = numbers(head.head) @ norm(found[b][s][i], head.norm, config.norm_eps)
                if p.argmax() in known:
                    values.append(soft_cross_entropy(p[known], q))
                    weights.append(WEIGHT[b, i + 2 + s])
        assert 0 < len(values) < 2 * count
        right += 0.8**s * np.average(values, weights=weights)
    assert value_of(Eagle3Loss(steps), head, target) == pytest.approx(right, rel=1e-4)
