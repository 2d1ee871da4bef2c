"""Checkpoints survive full disks, damage, lost recipes and other trainings."""

import errno
import fcntl
import shutil

import numpy as np
import pytest
from support.models import tiny_model
from support.training import all_files, are_equal, train_mtp

from specjax import CheckpointError, RequestError
from specjax.training import losses
from specjax.training.loop import BatchSource, fit
from specjax.training.optimizers import Optimizer

WINDOW = np.random.default_rng(0).integers(0, 61, (2, 10)).astype(np.int32)


def test_a_full_disk_leaves_the_checkpoint_before(whole, small, text, tmp_path, saved, monkeypatch):
    from orbax.checkpoint import v1 as ocp

    shutil.copytree(whole[0], tmp_path / "run")

    def full(self, *args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ocp.training.Checkpointer, "save", full)
    with pytest.raises(CheckpointError, match="step 6 cannot be written .*No space.*step 4 is whole"):
        train_mtp(small, text, tmp_path / "run", steps=6)
    assert "4" in [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()]


def test_a_lost_recipe_costs_no_checkpoint(copied, small, text, saved):
    (copied / "recipe.json").unlink()
    before = all_files(copied)
    with pytest.raises(
        RequestError, match="holds checkpoints, but no recipe.json of a training; name another --output"
    ):
        train_mtp(small, text, copied, head={"modules": 2})
    assert all_files(copied) == before


def test_checkpoints_of_another_shape_stay(copied):
    before = all_files(copied / "checkpoints")
    with pytest.raises(CheckpointError, match="step 4 is of another training .*; name another --output") as error:
        fit(
            tiny_model(num_layers=1),
            losses.next_token,
            BatchSource(lambda step: WINDOW),
            Optimizer(name="adamw").make(6),
            6,
            copied,
        )
    assert "\n" not in str(error.value)
    assert all_files(copied / "checkpoints") == before


def flip_a_byte(checkpoint) -> None:
    largest = max((p for p in checkpoint.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)


def test_a_flipped_byte_is_found(copied, whole, small, text, saved, capsys):
    flip_a_byte(copied / "checkpoints" / "4")
    damaged = all_files(copied / "checkpoints" / "4")
    assert are_equal(train_mtp(small, text, copied), whole[1])  # from step 2
    assert "checkpoint 4 is damaged and left out" in capsys.readouterr().err
    assert all_files(copied / "damaged" / "4") == damaged
    for step in ("2", "4"):
        flip_a_byte(copied / "checkpoints" / step)
    with pytest.raises(CheckpointError, match="no checkpoint is whole .*; name another --output, or remove"):
        train_mtp(small, text, copied)
    assert {p.name for p in (copied / "checkpoints").iterdir()} == {"2", "4"}


def test_two_runs_do_not_share_a_directory(copied, small, text, saved):
    with (copied / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(
            CheckpointError, match="another training writes there; wait for its end or name another --output"
        ):
            train_mtp(small, text, copied)
    train_mtp(small, text, copied)
