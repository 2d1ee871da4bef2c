"""The loss of EAGLE-3 and P-EAGLE against a loop over positions in float64, written from the papers."""

import jax
import numpy as np
import pytest
from support.float64_training import (
    DIVERGENCES,
    STREAM,
    WEIGHT,
    WINDOW,
    Row,
    S,
    V,
    continue_layer,
    make_head,
    norm,
    softmax,
    unroll,
    value_of,
)
from support.numpy_layer import numbers
from support.training import are_equal

from specjax.checkpoints.heads import save_head
from specjax.errors import RequestError
from specjax.heads import Head
from specjax.training.kinds import KINDS
from specjax.training.kinds.eagle3 import Eagle3Loss


@pytest.mark.parametrize("parallel", [False, True])
def test_eagle3(target, out, parallel):
    """P-EAGLE reads its mask in all steps but the first."""
    steps, head = 3, make_head(target, "eagle3", draft_vocab_size=20, taps=(0, 1), parallel=parallel)
    named = [name for name in DIVERGENCES if name == "forward_kl" or not parallel]
    config, layer = head.config.layers, head.layers[0]
    known = [int(d + offset) for d, offset in enumerate(head.draft_to_target[...])]
    assert known == sorted(sorted(range(V), key=lambda t: (-(STREAM == t).sum(), t))[:20])
    count, right = S + 1 - steps, dict.fromkeys(named, 0.0)
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
        rows, weights = [], []
        for b in range(2):
            for i in range(count):
                p = out.logits[b, i + 1 + s]
                q = numbers(head.head) @ norm(found[b][s][i], head.norm, config.norm_eps)
                if p.argmax() in known:
                    label = window_label(known, b, i + 2 + s)
                    rows.append((softmax(p[known]), softmax(q), label))
                    weights.append(WEIGHT[b, i + 2 + s])
        assert 0 < len(rows) < 2 * count
        for name in named:
            values = [0.0 if name == "ce" and row[2] is None else DIVERGENCES[name](*row) for row in rows]
            right[name] += 0.8**s * np.average(values, weights=weights)
    for name in named:
        loss = Eagle3Loss(steps, **{"forward_kl": 0.0} | {name: 1.0}, lk_scale=0.9, lk_fall=2.0)
        assert value_of(loss, head, target) == pytest.approx(right[name], rel=1e-4), name


def window_label(known: list[int], b: int, place: int) -> int | None:
    """The place of a token of the text in the draft vocabulary."""
    token = int(WINDOW[b, place]) if place < WINDOW.shape[1] else None
    return known.index(token) if token in known else None


def test_a_head_is_continued(target, tmp_path):
    """Another shape in the recipe changes nothing."""
    head = make_head(target, "eagle3", draft_vocab_size=20, taps=(0, 1))
    saved = Head(head, head.config, "eagle3")
    save_head(saved, tmp_path / "eagle3")
    shape = KINDS["eagle3"].shape(start=str(tmp_path / "eagle3"), num_layers=2)
    assert are_equal(Head(shape.make(target, STREAM, jax.random.key(2)), head.config, "eagle3"), saved)

    medusa = make_head(target, "medusa")
    save_head(Head(medusa, medusa.config, "medusa"), tmp_path / "medusa")
    with pytest.raises(RequestError, match="is no head of kind 'eagle3'"):
        KINDS["eagle3"].shape(start=str(tmp_path / "medusa")).make(target, STREAM, jax.random.key(2))
