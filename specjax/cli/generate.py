"""``specjax generate``: continues prompts. Text goes to stdout, figures to stderr."""

import argparse
import dataclasses
import json
import sys

from ..errors import RequestError
from .arguments import check_arguments, drafting_of, load_target, method_of, sampling_of
from .terminal import print_prompt, print_stats, status, streamed


def run_generate(args: argparse.Namespace) -> None:
    """Continues the prompts and prints text, or JSON."""
    prompts = [_checked(_stdin() if prompt == "-" else prompt) for prompt in args.prompt]
    if args.stream and len(prompts) > 1:
        raise RequestError("--stream takes one prompt; leave it out for several")
    sampling = sampling_of(args)
    check_arguments(args, [method_of(args)], sampling)
    from ..generate import Generator

    with status("loading"):
        setting = dict(drafting_of(args), rule=args.rule, capacity=args.capacity)
        generator = Generator(load_target(args), args.method, args.draft, **setting)
    options = dict(sampling, max_new_tokens=args.max_new_tokens, seed=args.seed)
    if args.stream:
        results = [streamed(generator.stream(prompts[0], **options), prompts[0], sys.stderr if args.json else sys.stdout)]
    else:
        with status("compiling and decoding"):
            results = generator(prompts, **options)
        if not args.json:
            for prompt, result in zip(prompts, results):
                print_prompt(prompt)
                print(result.text)
    if args.json:
        records = [{**_given(result), "stats": result.stats.as_dict()} for result in results]
        print(json.dumps(records[0] if len(records) == 1 else records))
    else:
        print_stats([result.stats for result in results])


def _given(result) -> dict:
    """The fields of a result that have a value: of the optional ones those that were asked for."""
    return {name: value for name, value in dataclasses.asdict(result).items() if value is not None}


def _checked(prompt: str) -> str:
    if not prompt:
        raise RequestError("the prompt is empty; give at least one character")
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise RequestError("the prompt is not UTF-8; convert it") from None
    return prompt


def _stdin() -> str:
    """All of it, less one line end, which the shell's tools add."""
    return sys.stdin.buffer.read().decode("utf-8", "surrogateescape").removesuffix("\n")
