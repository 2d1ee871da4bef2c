"""Fixtures of training: tiny targets, data, and one training without interruption."""

import shutil

import jax
import numpy as np
import pytest
from support.float64_training import Computed
from support.models import byte_tokenizer, language_model, tiny_model
from support.training import train_mtp


@pytest.fixture(autouse=True)
def promotion():
    """optax mixes integers and floats."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(scope="session")
def target():
    """A target of one layer."""
    return language_model(tiny_model(0, num_layers=1), "target")


@pytest.fixture(scope="session")
def out(target):
    return Computed(target.model)


@pytest.fixture(scope="session")
def small():
    """A target of one layer with a short context."""
    return language_model(tiny_model(0, num_layers=1, max_position_embeddings=64), "small")


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """A directory with one file of random letters."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    letters = [letter for letter in byte_tokenizer().get_vocab() if len(letter) == 1]
    (folder / "a.txt").write_text("".join(rng.choice(letters, 900)))
    return folder


@pytest.fixture
def saved(monkeypatch):
    """The heads that were saved, by directory, instead of files."""
    found = {}
    monkeypatch.setattr("specjax.training.run.save_head", lambda head, directory: found.update({str(directory): head}))
    return found


@pytest.fixture(scope="session")
def whole(small, text, tmp_path_factory):
    """A training without interruption: its directory and its head."""
    output = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion("standard"):
        patch.setattr("specjax.training.run.save_head", lambda head, directory: None)
        return output, train_mtp(small, text, output)


@pytest.fixture
def copied(whole, tmp_path):
    """A copy of its directory, with checkpoints of steps 2 and 4."""
    return shutil.copytree(whole[0], tmp_path / "run")
