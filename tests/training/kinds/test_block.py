"""The loss of block heads against a loop over positions in float64, written from the papers."""

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
    nll,
    norm,
    softmax,
    value_of,
)
from support.numpy_layer import linear, numbers

from specjax.training.kinds.block import BlockLoss, choose_anchors

BLOCKS = {
    "dflash": (dict(), BlockLoss(anchors=3, gamma=2.0)),
    "jetspec and dspark": (
        dict(causal=True, from_root=True, markov_rank=4, confidence=True),
        BlockLoss(anchors=3, gamma=0.0, ce=0.1, forward_kl=0.5, tv=0.9, confidence=0.7),
    ),
}
BLOCKS["a recurrent Markov head"] = (
    BLOCKS["jetspec and dspark"][0] | dict(markov="rnn"),
    BLOCKS["jetspec and dspark"][1],
)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("name", BLOCKS)
def test_block(target, out, name):
    options, loss = BLOCKS[name]
    head = make_head(target, "block", num_layers=1, block_size=4, taps=(0, 1), **options)
    config, layer = head.config.layers, head.layers[0]
    eps, drafts, mask = config.norm_eps, head.config.drafts, head.config.mask_token
    anchors = np.asarray(choose_anchors(KEY, 2, S + 1 - drafts, 3))
    assert all(len(set(row)) == 3 and 0 <= row.min() and row.max() + drafts <= S for row in anchors)
    top = bottom = 0.0
    for b, window in enumerate(WINDOW):
        context = []
        for i in range(S):
            fused = norm(numbers(head.fc) @ np.concatenate([tap[b, i] for tap in out.taps]), head.hidden_norm, eps)
            context.append(Row(layer, config, fused, i))
        for a in anchors[b]:
            xs = [out.embed[window[a] if j == 0 else mask] for j in range(4)]
            rows = [Row(layer, config, norm(x, layer.mixer_norm, eps), a + j) for j, x in enumerate(xs)]
            memory = np.zeros(4)
            for j in range(4):
                k = j + 1 if options.get("from_root") else j  # The place predicts the k-th token after the anchor
                if k == 0:
                    continue
                seen = context[:a] + (rows[: j + 1] if options.get("causal") else rows)
                hidden = norm(continue_layer(layer, config, xs[j], rows[j], seen), head.norm, eps)
                q, p = out.output @ hidden, out.logits[b, a + k - 1]
                value = nll(q, window[a + k])
                if options:
                    before = code = numbers(head.markov.first)[window[a + k - 1]]
                    if "markov" in options:
                        gate = linear(np.concatenate([memory, before, hidden]), head.markov.gate, head.markov.gate_bias)
                        stays, becomes, code = sigmoid(gate[:4]), np.tanh(gate[4:8]), np.tanh(gate[8:])
                        memory = stays * memory + (1 - stays) * becomes
                    q = q + numbers(head.markov.second) @ code
                    (sure,) = sigmoid(linear(np.concatenate([hidden, before]), head.confidence, head.confidence_bias))
                    P, Q = softmax(p), softmax(q)
                    tv = np.abs(P - Q).sum() / 2
                    value = 0.1 * nll(q, window[a + k]) + 0.5 * (P * np.log(P / Q)).sum() + 0.9 * tv
                    value -= 0.7 * ((1 - tv) * np.log(sure) + tv * np.log(1 - sure))
                weight = np.exp(-(k - 1) / loss.gamma) if loss.gamma else 1.0
                weight *= WEIGHT[b, a + k]
                top, bottom = top + weight * value, bottom + weight
    assert value_of(loss, head, target) == pytest.approx(top / bottom, rel=1e-4)
