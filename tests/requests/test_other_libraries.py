"""Arguments of transformers, vLLM and OpenAI under the names that they have here."""

import pytest

from specjax.errors import RequestError
from specjax.requests.options import Options
from specjax.requests.other_libraries import from_other_libraries, rename_options


def test_methods_of_other_libraries():
    assert from_other_libraries({"rule": "auto"}) == {"rule": "auto"}
    assert from_other_libraries({}, assistant_model="small") == {"method": "draft_model", "draft": "small"}
    assert from_other_libraries({}, prompt_lookup_num_tokens=4) == {"method": "ngram", "num_speculative_tokens": 4}
    config = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3}
    assert from_other_libraries({}, speculative_config=config) == config
    assert from_other_libraries({}, speculative_config={"model": "small"}) == {"draft": "small"}


@pytest.mark.parametrize(
    ("setting", "given", "named"),
    [
        ({}, dict(assistant_model="a", prompt_lookup_num_tokens=3), "give the method once"),
        ({"method": "none"}, dict(assistant_model="a"), "give the method once"),
        ({}, dict(speculative_config={"methud": "ngram"}), "'methud', which is unknown"),
        ({}, dict(speculative_config="ngram"), "must be a dict"),
    ],
)
def test_methods_named_twice_or_not_at_all(setting, given, named):
    with pytest.raises(RequestError, match=named):
        from_other_libraries(setting, **given)


def test_options_of_other_libraries():
    assert Options.of(dict(num_return_sequences=3)).n == 3
    assert Options.of(dict(max_tokens=9)).max_new_tokens == 9
    assert Options.of(dict(min_tokens=2)).min_new_tokens == 2
    assert Options.of(dict(stop_strings=["."])).stop == Options.of(dict(stop=["."])).stop
    schema = {"type": "integer"}
    assert rename_options(
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
    ) == {"json_schema": schema}
    assert rename_options({"response_format": {"type": "json_object"}}) == {"json_schema": {"type": "object"}}
    assert rename_options({"response_format": {"type": "text"}, "seed": 1}) == {"json_schema": None, "seed": 1}


@pytest.mark.parametrize(
    ("given", "temperature"),
    [
        (dict(do_sample=True), 1.0),
        (dict(do_sample=True, temperature=0.5), 0.5),
        (dict(do_sample=False), 0.0),
        (dict(do_sample=False, temperature=0.5), 0.0),
    ],
)
def test_do_sample_is_a_temperature(given, temperature):
    assert Options.of(given) == Options(temperature=temperature)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (dict(max_length=20), "max_length counts the tokens of the prompt too; use max_new_tokens"),
        (dict(min_length=2), "min_length counts the tokens of the prompt too; use min_new_tokens"),
        (dict(do_sample="yes"), "do_sample must be true or false"),
        (dict(n=2, num_return_sequences=2), "n and num_return_sequences are names of one option"),
        (dict(max_tokens=2, max_new_tokens=2), "max_tokens and max_new_tokens are names of one option"),
        (dict(json_schema={}, response_format={"type": "json_object"}), "json_schema and response_format are names"),
        (dict(response_format={"type": "xml"}), "response_format must be"),
        (dict(response_format="json"), "response_format must be"),
        (dict(response_format={"type": "json_schema", "json_schema": {}}), "response_format must be"),
    ],
)
def test_options_given_twice_or_wrongly(given, named):
    with pytest.raises(RequestError, match=named):
        rename_options(given)
