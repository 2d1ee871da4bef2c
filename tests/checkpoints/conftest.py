"""Programs that models share."""

import pytest
from support.parts import compile_parts


@pytest.fixture(scope="module")
def small_programs():
    """See ``support.parts``."""
    with pytest.MonkeyPatch.context() as patch:
        compile_parts(patch)
        yield
