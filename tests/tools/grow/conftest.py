"""A target and the same target in a larger shape, and programs that models share."""

import pytest
from support.grown import LARGE, grow
from support.parts import compile_parts

from specjax import LanguageModel


@pytest.fixture(scope="module")
def small_programs():
    """See ``support.parts``."""
    with pytest.MonkeyPatch.context() as patch:
        compile_parts(patch)
        yield


@pytest.fixture(scope="module")
def pair(target, tmp_path_factory) -> tuple[LanguageModel, LanguageModel]:
    """A target, and the target grown in everything."""
    return target, grow(target.model, tmp_path_factory.mktemp("pair") / "grown", **LARGE)
