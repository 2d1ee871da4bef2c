"""Translates the names of arguments in transformers, vLLM and OpenAI to those of specjax."""

from collections.abc import Mapping

from ..core.checks import shorten
from ..errors import RequestError

_RENAMED = {
    "num_return_sequences": "n", "max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "stop_strings": "stop",
}  # fmt: skip
"""Options by their names in transformers and vLLM, with their names in specjax."""

_TOTALS = {"max_length": "max_new_tokens", "min_length": "min_new_tokens"}
"""Options of transformers that count the prompt too, with those that do not."""


def from_other_libraries(
    setting: dict, assistant_model=None, prompt_lookup_num_tokens=None, speculative_config: Mapping | None = None
) -> dict:
    """The arguments of a Generator: ``setting``, and the arguments of transformers and vLLM.

    Raises RequestError where the method is named twice, and for an unknown field of
    ``speculative_config``.
    """
    is_set = [x is not None for x in (assistant_model, prompt_lookup_num_tokens, speculative_config)]
    if sum(is_set) > 1 or any(is_set) and (setting.get("method") or setting.get("draft") is not None):
        raise RequestError(
            "give the method once: method and draft, assistant_model, prompt_lookup_num_tokens or speculative_config"
        )
    if assistant_model is not None:
        return setting | {"method": "draft_model", "draft": assistant_model}
    if prompt_lookup_num_tokens is not None:
        return setting | {"method": "ngram", "num_speculative_tokens": prompt_lookup_num_tokens}
    if speculative_config is None:
        return setting
    if not isinstance(speculative_config, Mapping):
        raise RequestError(f"speculative_config must be a dict, not {shorten(speculative_config)}")
    known = ("method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")
    unknown = [name for name in speculative_config if name not in known]
    if unknown:
        raise RequestError(f"speculative_config has {unknown[0]!r}, which is unknown; it takes {', '.join(known)}")
    return setting | {"draft" if name == "model" else name: value for name, value in speculative_config.items()}


def rename_options(options: Mapping) -> dict:
    """The options of a request under the names of ``options.Options``.

    Raises RequestError where an option is given under two names.
    """
    renamed = {}
    options = _read_do_sample(options)
    for name, value in options.items():
        if name in _TOTALS:
            raise RequestError(f"{name} counts the tokens of the prompt too; use {_TOTALS[name]}, which does not")
        if name == "response_format":
            name = "json_schema"
            value = _read_response_format(value)
        name = _RENAMED.get(name, name)
        if name in renamed:
            same = lambda other: name in (other, _RENAMED.get(other)) or other == "response_format"
            others = [other for other in options if same(other)]
            raise RequestError(f"{' and '.join(others)} are names of one option; give one of them")
        renamed[name] = value
    return renamed


def _read_do_sample(options: Mapping) -> Mapping:
    """The options with a temperature in place of transformers' ``do_sample``."""
    if "do_sample" not in options:
        return options
    drawn = options["do_sample"]
    others = {name: value for name, value in options.items() if name != "do_sample"}
    if not isinstance(drawn, bool):
        raise RequestError(f"do_sample must be true or false, not {shorten(drawn)}; or give temperature alone")
    return {"temperature": 1.0} | others if drawn else others | {"temperature": 0.0}


def _read_response_format(value):
    """The schema of OpenAI's ``response_format``; None for plain text."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    held = value.get("json_schema") if kind == "json_schema" else None
    if not isinstance(held, Mapping) or not isinstance(held.get("schema"), Mapping):
        raise RequestError(
            'response_format must be {"type": "json_schema", "json_schema": {"schema": ...}}, json_object or text'
        )
    return held["schema"]
