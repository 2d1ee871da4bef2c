"""Checks of single values: what is accepted, and one line about what is not."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core.checks import check_names, per_row, pop_fields, shorten, whole
from specjax.errors import RequestError


@pytest.mark.parametrize(
    "value", [3, np.int64(3), np.uint8(3), np.array(3), jnp.int32(3), [3, 3], (3, 3), np.array([3, 3])]
)
def test_whole_numbers_of_all_kinds_are_taken(value):
    row = per_row("top_k", value, 2, np.int32)
    assert row.dtype == np.int32 and row.tolist() == [3, 3]
    assert whole("capacity", np.int64(512)) == 512 and isinstance(whole("capacity", np.int64(512)), int)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (True, "must be a whole number, at least 0 and at most 9, not True"),
        ([True, False], "not [True, False]"),
        (np.array([True, False]), "must be a whole number"),
        (1.0, "not 1.0"),
        (float("nan"), "not nan"),
        ("3", "not '3'"),
        (b"3", "must be a whole number"),
        (None, "not None"),
        ({}, "not {}"),
        ([], "top_k is empty"),
        ([[]], "top_k is empty"),
        ([[1, 2], [3]], "must be a whole number"),
        ([[1, 2], [3, 4]], "has shape (2, 2)"),
        ([1, None], "not [1, None]"),
        (np.array([1, 2], object), "must be a whole number"),
        (10**30, "at most 9"),
        (10, "at least 0 and at most 9, not 10"),
        (-1, "at least 0 and at most 9, not -1"),
        ([1, 2, 3], "top_k has 3 values for 2 prompts"),
        (list(range(10_000)), "..."),
    ],
)
def test_others_are_named_on_one_line(value, named):
    with pytest.raises(RequestError) as error:
        per_row("top_k", value, 2, np.int32, most=9)
    message = str(error.value)
    assert message.startswith("top_k ") and named in message and "\n" not in message and len(message) < 160


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 0, -1, 1.0001, 1e-50, True, "0.5"])
def test_numbers_out_of_bounds_are_told_both_bounds(value):
    """1e-50 is above 0 and becomes 0 in float32."""
    with pytest.raises(RequestError, match="top_p must be a number, above 0 and at most 1, not"):
        per_row("top_p", value, 1, np.float32, most=1, above=True)


def test_one_whole_number_is_no_list():
    for value in ([3], np.array([3]), (3,), 0, 2**31, "3"):
        with pytest.raises(RequestError, match="n must be"):
            whole("n", value)
    with pytest.raises(RequestError, match="at least 1 and at most 4, not 5"):
        whole("n", 5, most=4)


def test_long_values_are_shortened():
    assert shorten("a\nb") == r"'a\nb'" and len(shorten("x" * 1000)) == 60


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("batsh", "option 'batsh' is unknown; did you mean batch"),
        ("x", "option 'x' is unknown; use one of batch, device"),
    ],
)
def test_an_unknown_option_is_one_line_with_a_name_to_use(name, words):
    check_names(["batch"], ("batch", "device"))
    with pytest.raises(RequestError, match=words):
        check_names(["device", name], ("batch", "device"))


def test_the_fields_of_a_record_are_taken_out_of_the_options():
    record = dataclasses.make_dataclass("Record", ["batch", "device"])
    options = {"device": "cpu", "tree": 3}
    assert pop_fields(record, options) == {"device": "cpu"} and options == {"tree": 3}
