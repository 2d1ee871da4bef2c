"""One engine, and one Generator as its oracle, for all tests of the folder: they compile each program once."""

from collections.abc import Callable

import pytest
from support.engine import COMMON, SETTING

from specjax import Engine, Generator, Result


@pytest.fixture(scope="session")
def alone(target) -> Callable[..., Result]:
    """The result of a request alone."""
    generator = Generator(target, **SETTING, capacity=256)
    return lambda prompt, **options: generator(prompt, **COMMON | options)


@pytest.fixture(scope="session")
def engine(target) -> Engine:
    sizes = dict(slots=3, chunk=16, rounds=1, logprobs=2, constraint_states=48, constraint_classes=16)
    return Engine(target, **SETTING, **sizes)
