"""The places of XLA's C interface that shared calls use, against the header of the installed jaxlib."""

import re
from pathlib import Path

import jaxlib
import pytest

from specjax.kernels.cpu import shared_call

HEADER = Path(jaxlib.__file__).parent / "include" / "xla" / "ffi" / "api" / "c_api.h"
POINTER = 8


def members(struct: str) -> list[str]:
    body = re.search(rf"struct {struct} \{{(.*?)\n\}};", HEADER.read_text(), re.S)[1]
    return re.findall(r"^\s+(?:_XLA_FFI_API_STRUCT_FIELD\()?([\w* ]+?)(?:\)|);", body, re.M)


@pytest.mark.skipif(not HEADER.exists(), reason="this jaxlib has no headers")
def test_the_places_are_those_of_the_header():
    """A struct begins with its size and an extension. That of the version has two numbers of four bytes more."""
    api = members("XLA_FFI_Api")
    assert [name.split()[-1] for name in api[:4]] == ["struct_size", "extension_start", "api_version", "internal_api"]
    version = 2 * POINTER + 2 * 4
    assert shared_call._SCHEDULE == version + (api.index("XLA_FFI_ThreadPool_Schedule") - 1) * POINTER
    frame = [name.split()[-1] for name in members("XLA_FFI_CallFrame")]
    assert shared_call._API == frame.index("api") * POINTER and shared_call._CONTEXT == frame.index("ctx") * POINTER
    request = [name.split()[-1] for name in members("XLA_FFI_ThreadPool_Schedule_Args")]
    assert request == ["struct_size", "extension_start", "ctx", "task", "data"]
    assert shared_call._SIZE - shared_call._REQUEST == len(request) * POINTER
