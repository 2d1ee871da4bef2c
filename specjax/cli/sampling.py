"""The flags of sampling options, from the fields and docstring of ``Options``."""

import argparse
import dataclasses
import sys
from typing import Any

from ..core.read_files import parse_json, read_json, read_text
from ..errors import RequestError
from ..requests.options import Options, read_numbers
from .fields import Flags, flags_of
from .parser import integer
from .terminal import describe_sampling

LARGEST_SEED = 2**32 - 1

_TOKEN = dict(type=int, action="append", metavar="ID")
_TEXT = dict(type=str, action="append", metavar="TEXT")
_FORMS: dict[str, dict[str, Any]] = {
    "logit_bias": dict(type=str, metavar="JSON", help='numbers to add to logits: {"token id": number}, or @FILE'),
    "allowed_tokens": dict(_TOKEN, flags=("--allow-token",), help="allow only such tokens"),
    "suppressed_tokens": dict(_TOKEN, flags=("--suppress-token",), help="forbid this token"),
    "seed": dict(type=integer(0, LARGEST_SEED), metavar="N"),
    "stop": dict(_TEXT, help="end the text before this string"),
    "stop_token_ids": dict(_TOKEN, flags=("--stop-token-id",), help="end at this token"),
    "ignore_eos": dict(default=False),
    "regex": dict(type=str, metavar="TEXT"),
    "choices": dict(_TEXT, flags=("--choice",), help="the text must be one of these"),
    "json_schema": dict(type=str, metavar="JSON", help="the text must be JSON for this schema, or @FILE"),
    "grammar": dict(type=str, metavar="TEXT", help="the text must match this Lark grammar, or @FILE"),
}
"""Forms that the fields do not state. Most options have a value or a list of them."""

_OPTIONS = tuple(field.name for field in dataclasses.fields(Options))
_RECORDS = ("logprobs", "policy_logprobs")
_ENDS = ("min_new_tokens", "stop", "stop_token_ids", "ignore_eos", "regex", "choices", "json_schema", "grammar")
_GROUPS = {
    "sampling": tuple(name for name in _OPTIONS if name not in ("max_new_tokens", "n", *_ENDS, *_RECORDS)),
    "end and form of the text": _ENDS,
}

SAMPLING = tuple(name for name in _OPTIONS if name not in ("max_new_tokens", "seed", "n"))
"""The options of a request that commands pass on under the same names."""


def sampling_flags(**forms) -> dict[str, Flags]:
    """Groups of flags of a request's options. ``forms`` changes single flags."""
    forms = _FORMS | {name: _FORMS.get(name, {}) | form for name, form in forms.items()}
    return {title: flags_of(Options, *names, unset=True, forms=forms) for title, names in _GROUPS.items()}


def sampling_options(args: argparse.Namespace) -> dict:
    """The sampling options that the user gave, by their names in ``Options``.

    Raises RequestError for numbers that are out of range.
    """
    options = {name: getattr(args, name) for name in SAMPLING if getattr(args, name, None) is not None}
    for option in ("logit_bias", "json_schema"):
        if option in options:
            options[option] = _read_json(f"--{option.replace('_', '-')}", options[option])
    if str(options.get("grammar")).startswith("@"):
        options["grammar"] = read_text(options["grammar"][1:], "--grammar")
    read_numbers(Options.of(options), 1)
    return options


def recommended_options(args: argparse.Namespace, target) -> dict:
    """The options that the model's checkpoint recommends for conversations, told in one line."""
    if not args.chat or args.generation_config == "none" or not target.sampling:
        return {}
    print(describe_sampling(target.sampling), file=sys.stderr)
    return target.sampling


def _read_json(flag: str, text: str) -> dict:
    """The JSON object in an argument, or in the file that the argument names after an @."""
    value = read_json(text[1:], f"{flag} {text[1:]}") if text.startswith("@") else parse_json(flag, text)
    if not isinstance(value, dict):
        raise RequestError(f'{flag} must be a JSON object such as {{"a": 1}}')
    return value
