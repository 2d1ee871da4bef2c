"""From parsed arguments to what the library takes, with everything checked that can be before a model is loaded."""

import argparse
import os
from pathlib import Path

from ..errors import RequestError

SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "min_new_tokens", "logit_bias",
    "allowed_tokens", "suppressed_tokens", "stop", "stop_token_ids", "logprobs", "regex", "choices", "json_schema", "ignore_eos",
)  # fmt: skip
"""Options of ``options.Options`` that the command line passes on under the same names."""


def method_of(args: argparse.Namespace) -> str:
    """The method that was named, or the one for as many drafts as were given; whether they are heads, loading them shows."""
    from ..drafters import default_method

    return default_method(args.draft) if args.method is None else args.method


def drafting_of(args: argparse.Namespace) -> dict:
    """The options of drafting methods that were given."""
    from ..drafters import all_options
    from ..tree import topology

    given = {name: getattr(args, name) for name in all_options() if getattr(args, name, None) is not None}
    return given | ({"tree": topology(given["tree"])} if "tree" in given else {})


def check_arguments(args: argparse.Namespace, methods: list[str], sampling: dict, select: bool = False) -> None:
    """Raises before a model is loaded what the library would raise later.

    ``select``: options of other methods are passed over, so that one set of options serves all methods.
    """
    from ..checks import whole
    from ..drafter import TrainedHead
    from ..drafters import METHODS, check_drafts, check_options, make_drafter, needs_of
    from ..evaluation.comparison import select_options
    from ..requests.options import Options, read_numbers
    from ..verify import resolve

    if not methods:
        raise RequestError(f"--methods is empty; name some of {', '.join(METHODS)}")
    for method in methods:
        options = select_options(method, drafting_of(args)) if select else drafting_of(args)
        check_options(method, options)
        check_drafts(method, len(args.draft))
        if not isinstance(needs_of(method), TrainedHead):  # a head's method is made when the head is loaded
            resolve(getattr(args, "rule", "auto"), make_drafter(method, **options).drawn)
    read_numbers(Options.of(sampling), 1)
    numbers = {name: getattr(args, name, None) for name in ("max_new_tokens", "num_prompts", "repeats", "num_speculative_tokens")}
    for name, value in numbers.items():
        if isinstance(value, int):
            whole(name, value)


def sampling_of(args: argparse.Namespace) -> dict:
    """The options that were given, as ``Generator`` takes them."""
    given = {name: getattr(args, name) for name in SAMPLING if getattr(args, name, None) is not None}
    for name in ("logit_bias", "json_schema"):
        if name in given:
            given[name] = _json(name, given[name])
    return given


def _json(name: str, text: str):
    """JSON from an argument, or from the file it names behind an @."""
    from ..checks import parse_json

    flag = f"--{name.replace('_', '-')}"
    try:
        text = Path(text[1:]).read_text() if text.startswith("@") else text
    except OSError as error:
        raise RequestError(f"{flag}: {text[1:]} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"{flag}: {text[1:]} is not UTF-8 ({error.reason})") from None
    value = parse_json(flag, text)
    if not isinstance(value, dict):
        raise RequestError(f"{flag} must be a JSON object")
    return value


def check_output(path: Path | None) -> None:
    """Raises RequestError where a file could not be written in the end."""
    if path and not (path.parent.is_dir() and os.access(path.parent, os.W_OK) and not path.is_dir()):
        raise RequestError(f"--output {path}: cannot be written; name a file in a directory that can")


def prompts_of(args: argparse.Namespace, tokens: int = 128, count: int = 16):
    """What makes the prompts once the target is there: those of ``--prompts``, which is read now, or held-out pieces of code."""
    from ..checks import whole
    from ..evaluation import held_out_prompts, read_prompts

    if args.num_prompts is not None:
        whole("num_prompts", args.num_prompts)
    given = args.prompts and read_prompts(args.prompts)

    def prompts(target) -> list[str]:
        size = min(tokens, target.config.context // 4)
        return (given or held_out_prompts(target.tokenizer, args.num_prompts or count, size))[: args.num_prompts]

    return prompts


def load_target(args: argparse.Namespace):
    from ..checkpoints.load import load

    target = load(args.model, dtype=args.dtype)
    from transformers.utils import logging

    logging.set_verbosity_error()  # an overlong prompt is refused anyway, in one line
    return target
