"""Batches cover the text once an epoch, and held-out modules are not trained on."""

import numpy as np

from specjax.training import data


def test_an_epoch_covers_the_stream_once():
    stream, length, batch = np.arange(1000, dtype=np.int32), 10, 7
    rows = (stream.size - 1) // length - 1
    steps = [data.cut_windows(stream, seed=3, step=s, batch=batch, length=length) for s in range(rows // batch)]
    windows = np.concatenate(steps)
    assert windows.shape[1] == length + 1
    assert (np.diff(windows, axis=1) == 1).all()
    assert np.unique(windows[:, 0]).size == len(windows)  # no window twice
    assert (data.cut_windows(stream, 3, 5, batch, length) == steps[5]).all()
    assert (data.cut_windows(stream, 4, 5, batch, length) != steps[5]).any()


def test_epochs_differ():
    stream = np.arange(101, dtype=np.int32)
    first, second = (np.sort(data.cut_windows(stream, 0, step, 9, 10)[:, 0]) for step in (0, 1))
    assert (first != second).any()


def test_held_out_modules_are_not_trained_on():
    trained, held = (set(data.standard_library(held_out=h)) for h in (False, True))
    assert trained and held and not trained & held
    assert 0.02 < len(held) / len(trained | held) < 0.1
