"""A target and the same target in a larger shape, and programs that models share."""

import jax
import pytest
from support.grown import LARGE, grow

from specjax import LanguageModel
from specjax.models import decoder


@pytest.fixture(scope="module")
def small_programs():
    """Parts of models are compiled instead of whole models. Most models share them, which is several times faster."""
    with pytest.MonkeyPatch.context() as patch:
        for name, static in {"rotate_and_attend": ("window", "dtype"), "rms_norm": "eps", "linear": ()}.items():
            patch.setattr(decoder, name, jax.jit(getattr(decoder, name), static_argnames=static))
        yield


@pytest.fixture(scope="module")
def pair(target, tmp_path_factory) -> tuple[LanguageModel, LanguageModel]:
    """A target, and the target grown in everything."""
    return target, grow(target.model, tmp_path_factory.mktemp("pair") / "grown", **LARGE)
