"""A target of one layer, which compiles fast, and its draft: fixtures for files that import them."""

import pytest

from .models import disturbed, language_model, tiny_model


@pytest.fixture(scope="module")
def target():
    return language_model(tiny_model(0, num_layers=1), "target")


@pytest.fixture(scope="module")
def draft(target):
    return language_model(disturbed(target.model), "draft")
