"""``specjax generate``: continues prompts. Text goes to stdout, figures to stderr.

See ``prompt_file`` for the prompts of a file.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ..checkpoints.generation_config import GENERATION_CONFIGS
from ..core.read_files import LARGEST_JSON
from ..errors import RequestError
from ..requests.limits import MOST_PROMPTS, MOST_SAMPLES
from ..requests.options import Options
from .arguments import BOOST, CHAT_TEMPLATE, HOSTS, METHOD, MODELS, NEW_TOKENS, check_method, choose_method
from .drafting import drafting_flags, drafting_options
from .fields import flag, flags_of
from .loading import apply_boost, load_given_drafts, load_target
from .output import check_directory
from .sampling import recommended_options, sampling_flags, sampling_options
from .terminal import print_prompt, print_stats, print_text, status


@dataclasses.dataclass(frozen=True)
class Generate:
    """The flags of the command.

    Attributes:
      prompt: text to continue, or - for standard input.
      prompts: JSON lines with the texts to continue, by continuous batching; the same command
        resumes after an interruption.
      output: with --prompts: the file of the results, JSON lines.
      slots: with --prompts: texts that are decoded together (default 16).
      chat: write each prompt as a user's turn in the model's chat template.
      generation_config: with --chat: auto takes the sampling options in the model's
        generation_config.json as defaults, none ignores them.
      capacity: positions of the cache; by default as many as needed, with --prompts 4096.
      stream: print the text as it grows; with --json, on standard error.
      json: print one JSON object.
      feedback_log: write the rounds, with the texts of prompts and answers, to this directory, for
        specjax train --recipe feedback; by default nothing is kept.
      feedback_log_mb: size of that log in megabytes; the oldest files are deleted beyond it
        (default 256).
    """

    prompt: tuple[str, ...] | None = flag(None, action="append", type=str, metavar="TEXT")
    prompts: Path | None = None
    output: Path | None = None
    slots: int | None = flag(None, least=1, most=MOST_PROMPTS)
    chat: bool = False
    generation_config: str = flag("auto", choices=GENERATION_CONFIGS)
    capacity: int | None = flag(None, least=1)
    stream: bool = False
    json: bool = False
    feedback_log: Path | None = flag(None, metavar="DIR")
    feedback_log_mb: int | None = flag(None, least=1)


_RECORDED = dict(
    n=dict(flags=("-n", "--n"), least=1, most=MOST_SAMPLES),
    logprobs=dict(type=int, metavar="N", help="with --json, log-probabilities of new tokens and of the N likeliest"),
    policy_logprobs=dict(
        default=None, help="with --json, log-probabilities of new tokens under the distribution that drew them"
    ),
)

USAGE = "specjax generate (--prompt TEXT | --prompts FILE --output FILE) [option ...]"
FLAGS = (
    {"options": flags_of(Generate) | CHAT_TEMPLATE | NEW_TOKENS | flags_of(Options, *_RECORDED, forms=_RECORDED)}
    | MODELS
    | {"method": BOOST | METHOD["method"]}
    | sampling_flags()
    | drafting_flags()
    | HOSTS
)
COMMON = ("prompt", "model", "draft", "method", "max_new_tokens", "temperature", "seed", "chat", "stream", "json")


def run(args: argparse.Namespace) -> None:
    """Continues the prompts, and prints text or JSON."""
    # 1. Read and check the flags.
    apply_boost(args)
    sampling = sampling_options(args)
    drafting = drafting_options(args)
    options = dict(sampling, max_new_tokens=args.max_new_tokens, seed=args.seed)
    if args.prompts is not None:
        from .prompt_file import continue_file

        check_method(args, choose_method(args), drafting)
        return continue_file(args, options, drafting)
    if not args.prompt:
        raise RequestError("no prompt is given; name one with --prompt, or a file of prompts with --prompts")
    for name, value in {"--output": args.output, "--slots": args.slots}.items():
        if value is not None:
            raise RequestError(f"{name} is for --prompts; leave it out, or put the prompt into a file")
    prompts = [_check(_read_stdin() if prompt == "-" else prompt) for prompt in args.prompt]
    if args.stream and len(prompts) * args.n > 1:
        raise RequestError("--stream takes one prompt and one sample; leave it out for several")
    check_method(args, choose_method(args), drafting)
    setting = dict(drafting, rule=args.rule, capacity=args.capacity) | _log_options(args)
    # 2. Load the models.
    from ..text.generator import Generator

    with status("loading"):
        target = load_target(args)
        generator = Generator(target, args.method, load_given_drafts(args, target), **setting)
    # 3. Decode, and print texts as they come.
    options = recommended_options(args, target) | options | {"n": args.n}
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts] if args.chat else None
    table = _spell_tokens(generator.target)
    if args.stream:
        if not args.json:
            print_prompt(prompts[0])
        request = {"messages": chats[0]} if chats else {"prompt": prompts[0]}
        results = generator.stream_results(**request, **options)
        results = [print_text(results, table, sys.stderr if args.json else sys.stdout)]
    else:
        with status("compiling and decoding"):
            output = generator(messages=chats, **options) if chats else generator(prompts, **options)
        results = output if isinstance(output, list) else [output]
        if not args.json:
            for i, result in enumerate(results):
                print_prompt(prompts[i // args.n])
                print_text([result], table, sys.stdout)
    # 4. Print JSON or figures.
    if args.json:
        records = [result.as_dict() for result in results]
        print(json.dumps(records[0] if len(records) == 1 else records))
    else:
        print_stats([result.stats for result in results])


def _log_options(args: argparse.Namespace) -> dict:
    """The options of the feedback log that the user gave."""
    if args.feedback_log is None and args.feedback_log_mb is not None:
        raise RequestError("--feedback-log-mb bounds a log and none is written; name one with --feedback-log")
    if args.feedback_log is not None:
        check_directory(args.feedback_log, "--feedback-log")
    names = ("feedback_log", "feedback_log_mb")
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def _spell_tokens(target) -> Sequence[bytes | None]:
    """The bytes of each token; empty for a tokenizer that ``token_bytes`` cannot read."""
    from ..requests.vocabulary import token_bytes

    try:
        return token_bytes(target.tokenizer, target.config.vocab_size)
    except RequestError:
        return ()


def _check(prompt: str) -> str:
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise RequestError("the prompt is not UTF-8; convert it") from None
    return prompt


def _read_stdin() -> str:
    """The whole of stdin without its last line end, which the shell's tools add."""
    if sys.stdin is None:
        raise RequestError("--prompt -: standard input is closed; pipe the prompt in, or give it as text")
    content = sys.stdin.buffer.read(LARGEST_JSON + 1)
    if len(content) > LARGEST_JSON:
        raise RequestError(f"--prompt -: standard input is above the limit of {LARGEST_JSON:,} bytes; shorten it")
    return content.decode("utf-8", "surrogateescape").removesuffix("\n")
