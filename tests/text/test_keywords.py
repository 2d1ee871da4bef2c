"""The typed keyword arguments are the options, so that an editor offers each and no other."""

import dataclasses
import inspect

import specjax
from specjax.drafters import all_options
from specjax.requests.options import Options
from specjax.text.generate import _SETTINGS
from specjax.text.keywords import DraftingKeywords, GenerateKeywords, RequestKeywords

OF_OTHERS = {"max_tokens", "min_tokens", "num_return_sequences", "stop_strings", "do_sample", "response_format"}
"""Names of options in other libraries, see docs/options.md."""


def names(keywords) -> set[str]:
    return set(keywords.__annotations__)


def test_options_of_methods():
    assert names(DraftingKeywords) == set(all_options())


def test_options_of_requests():
    assert names(RequestKeywords) == {field.name for field in dataclasses.fields(Options)} | OF_OTHERS
    for name in OF_OTHERS - {"response_format"}:
        Options.of({name: {"do_sample": True, "stop_strings": "."}.get(name, 1)})


def test_generate_takes_both_and_the_settings_of_a_generator():
    assert names(GenerateKeywords) == names(DraftingKeywords) | names(RequestKeywords) | set(_SETTINGS)
    assert set(_SETTINGS) < set(inspect.signature(specjax.Generator).parameters)
