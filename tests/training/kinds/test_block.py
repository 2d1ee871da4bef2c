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


def silu(x):
    return x * sigmoid(x)


def hidden_states(head, out, b: int, a: int) -> list[np.ndarray]:
    """The hidden states of the four places of the block at anchor a."""
    config, layer, window = head.config.layers, head.layers[0], WINDOW[b]
    fuse = lambda i: norm(numbers(head.fc) @ np.concatenate([tap[b, i] for tap in out.taps]), head.hidden_norm, eps)
    eps = config.norm_eps
    context = [Row(layer, config, fuse(i), i) for i in range(a)]
    xs = [out.embed[window[a] if j == 0 else head.config.mask_token] for j in range(4)]
    rows = [Row(layer, config, norm(x, layer.mixer_norm, eps), a + j) for j, x in enumerate(xs)]
    end = lambda j: continue_layer(layer, config, xs[j], rows[j], context + rows)
    return [norm(end(j), head.norm, eps) for j in range(4)]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(dict(markov="selector", markov_rank=4, candidates=3, conv_taps=2), marks=pytest.mark.slow),
        dict(refiner_rank=3, refiner_size=5),
    ],
    ids=["DFlash 2", "XPress"],
)
def test_corrections_and_the_loss_before_them(target, out, options):
    """The refiner reads true tokens before all places, the token before the anchor among them.

    The convolutions of an untrained head change nothing.
    """
    loss = BlockLoss(anchors=3, gamma=2.0, ce=0.5, tv=0.5, uncorrected=0.7)
    head = make_head(target, "block", num_layers=1, block_size=4, taps=(0, 1), **options)
    if options.get("conv_taps"):
        one = head.layers[0]
        for conv in (one.mixer_conv, one.mlp_conv):
            conv.base[...] = np.zeros(conv.base.shape, np.float32)
            conv.base[...] = conv.base[...].at[:, 0].set(1)
            conv.kernels[...] = np.zeros(conv.kernels.shape, np.float32)
    anchors, top, bottom = np.asarray(choose_anchors(KEY, 2, S - 2, 3)), 0.0, 0.0
    for b, window in enumerate(WINDOW):
        for a in anchors[b]:
            hidden, xs = hidden_states(head, out, b, a), []
            for k, place in enumerate(hidden):
                before = window[max(a + k - 1, 0)]
                if head.refiner is not None:
                    get = lambda name: numbers(getattr(head.refiner, name))
                    parts = get("own") @ place, get("mean") @ np.mean(hidden, 0), get("first")[before]
                    xs.append(get("join") @ np.concatenate(parts))
                    code = xs[k] + sum(get("mix")[:, k, j] * xs[j] for j in range(k + 1))
                    code = code + get("down") @ (silu(get("gate") @ code) * (get("up") @ code))
                    correction = get("second") @ code
                else:
                    code = numbers(head.markov.first)[before] * (numbers(head.markov.gate) @ place)
                    correction = numbers(head.markov.second) @ code
                if k == 0:
                    continue
                q, P = out.output @ place, softmax(out.logits[b, a + k - 1])
                of = lambda q: 0.5 * nll(q, window[a + k]) + 0.5 * np.abs(P - softmax(q)).sum() / 2
                weight = np.exp(-(k - 1) / 2.0) * WEIGHT[b, a + k]
                top, bottom = top + weight * (of(q + correction) + 0.7 * of(q)), bottom + weight
    assert value_of(loss, head, target) == pytest.approx(top / bottom, rel=1e-4)
