"""The command line: ``specjax generate`` and ``specjax compare``. Results go to stdout, figures and errors to stderr."""

import argparse
import dataclasses
import json
import os
import sys
from contextlib import nullcontext, suppress
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from . import __version__
from .errors import RequestError, SpecjaxError

_WIDTH, _HELD_OUT_PROMPTS, _HELD_OUT_TOKENS = 160, 16, 128


def main(argv: list[str] | None = None) -> int:
    """Runs a command and returns its exit code: 2 after one line on stderr for what the user can mend, 130 when interrupted."""
    try:
        args = _parser().parse_args(argv)
        args.handler(args)
        sys.stdout.flush()
        return 0
    except SpecjaxError as error:
        print("specjax: error:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        with suppress(OSError):  # or Python would complain when it flushes at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def run_generate(args: argparse.Namespace) -> None:
    """Continues the prompts and prints text, or JSON."""
    prompts = [_checked(_stdin() if prompt == "-" else prompt) for prompt in args.prompt]
    if args.stream and len(prompts) > 1:
        raise RequestError("--stream takes one prompt; leave it out for several")
    sampling = dict(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, min_p=args.min_p)
    _check_options(args, [args.method or ("draft_model" if args.draft else "none")], sampling)
    from .generate import Generator

    with _status("loading"):
        setting = dict(_drafting(args), rule=args.rule, capacity=args.capacity)
        generator = Generator(_load(args), args.method, args.draft, **setting)
    options = dict(sampling, max_new_tokens=args.max_new_tokens, seed=args.seed, ignore_eos=args.ignore_eos)
    if args.stream:
        results = [_streamed(generator.stream(prompts[0], **options), prompts[0], sys.stderr if args.json else sys.stdout)]
    else:
        with _status("compiling and decoding"):
            results = generator(prompts, **options)
        if not args.json:
            for prompt, result in zip(prompts, results):
                _print_prompt(prompt)
                print(result.text)
    if args.json:
        records = [{**dataclasses.asdict(result), "stats": result.stats.as_dict()} for result in results]
        print(json.dumps(records[0] if len(records) == 1 else records))
    else:
        _print_stats([result.stats for result in results])


def run_compare(args: argparse.Namespace) -> None:
    """Measures the methods and prints a table, or JSON."""
    from .bench import compare, held_out_prompts, read_prompts, report

    default = ["none", "ngram"] + ["draft_model"] * bool(args.draft)
    methods = default if args.methods is None else [m.strip() for m in args.methods.split(",") if m.strip()]
    _check_options(args, methods, {})
    if args.output and not (args.output.parent.is_dir() and os.access(args.output.parent, os.W_OK)):
        raise RequestError(f"--output {args.output}: its directory cannot be written; name one that can")
    prompts = args.prompts and read_prompts(args.prompts)
    with _status("loading"):
        target = _load(args)
        size = min(_HELD_OUT_TOKENS, target.config.context // 4)
        prompts = prompts or held_out_prompts(target.tokenizer, args.num_prompts or _HELD_OUT_PROMPTS, size)
    bar = Progress(
        TextColumn("comparing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty(),
    )  # fmt: skip
    with bar:
        task = bar.add_task("")
        show = lambda done, of: bar.update(task, completed=done, total=of)
        draft = args.draft if "draft_model" in methods else None
        options = dict(_drafting(args), max_new_tokens=args.max_new_tokens, repeats=args.repeats)
        measured = compare(target, methods, prompts[: args.num_prompts], draft=draft, progress=show, **options)
    if args.output:
        args.output.write_text(json.dumps(measured, indent=2) + "\n")
    if args.json:
        print(json.dumps(measured))
    else:
        console = Console() if sys.stdout.isatty() else Console(width=_WIDTH)
        console.print(report.table(measured))
        for note in report.notes(measured):
            console.print(Text(f"note: {note}"))


class _Parser(argparse.ArgumentParser):
    """Complains in one line, as everything here does."""

    def error(self, message):
        self.exit(2, f"specjax: error: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="specjax", description="Speculative decoding for JAX.")
    parser.add_argument("--version", action="version", version=f"specjax {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    command = _command(commands, "generate", run_generate, "continue prompts and say what it cost")
    command.add_argument("--prompt", action="append", required=True, help="text to continue, - for stdin; may be given several times")
    command.add_argument("--method", help="none, ngram or draft_model; by default draft_model if there is a draft, else none")
    command.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    command.add_argument("--top-k", type=int, default=0, help="sample from the k likeliest tokens; 0 for all (default)")
    command.add_argument("--top-p", type=float, default=1.0, help="sample from the likeliest tokens of this probability")
    command.add_argument("--min-p", type=float, default=0.0, help="leave out tokens below this fraction of the likeliest")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--rule", default="auto", help="acceptance rule; auto is the best lossless one (default)")
    command.add_argument("--capacity", type=int, help="positions of the cache; by default as many as needed")
    command.add_argument("--ignore-eos", action="store_true", help="go on past end-of-text tokens")
    command.add_argument("--stream", action="store_true", help="print the text as it grows, on stderr with --json")

    command = _command(commands, "compare", run_compare, "measure methods against plain decoding on the same prompts")
    command.add_argument("--methods", help="separated by commas; by default all that the given models allow")
    command.add_argument("--prompts", type=Path, help="JSON lines with prompt or turns; by default held-out standard-library code")
    command.add_argument("--num-prompts", type=int, help="how many prompts to use; by default all of the file, or 16")
    command.add_argument("--repeats", type=int, default=1, help="runs of each prompt, of which the median counts (default 1)")
    command.add_argument("--output", type=Path, help="also write the JSON to this file")
    return parser


def _command(commands, name: str, handler, description: str) -> argparse.ArgumentParser:
    """A subcommand with the options that all of them have."""
    command = commands.add_parser(name, help=description, description=description)
    command.set_defaults(handler=handler)
    command.add_argument("--model", default="tiny-python", help="embedded name, directory or hub id (default tiny-python)")
    command.add_argument("--draft", help="a smaller model of the same tokenizer")
    command.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="of the weights; by default the checkpoint's")
    command.add_argument("--max-new-tokens", type=int, default=128, help="(default 128)")
    command.add_argument("--num-speculative-tokens", type=int, default=5, help="tokens drafted in a round (default 5)")
    command.add_argument("--prompt-lookup-max", type=int, default=4, help="for ngram, the longest run to look up (default 4)")
    command.add_argument("--prompt-lookup-min", type=int, default=1, help="for ngram, the shortest (default 1)")
    command.add_argument("--json", action="store_true", help="print one JSON object")
    return command


def _drafting(args: argparse.Namespace) -> dict:
    return {name: getattr(args, name) for name in ("num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")}


def _check_options(args: argparse.Namespace, methods: list[str], sampling: dict) -> None:
    """Raises what would be raised later anyway, before a model is loaded."""
    from .drafters import make_drafter
    from .request import whole
    from .sampling import sampling_params
    from .verify import resolve

    if not methods:
        raise RequestError("--methods is empty; name some of none, ngram, draft_model")
    for method in methods:
        resolve(getattr(args, "rule", "auto"), make_drafter(method, **_drafting(args)).sampled)
    if "draft_model" in methods and not args.draft:
        raise RequestError("method 'draft_model' needs a draft; name one with --draft")
    sampling_params(1, **sampling)
    for name in ("max_new_tokens", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min", "num_prompts", "repeats"):
        if getattr(args, name, None) is not None:
            whole(name, getattr(args, name))


def _load(args: argparse.Namespace):
    from .models.hub import load

    target = load(args.model, dtype=args.dtype)
    from transformers.utils import logging

    logging.set_verbosity_error()  # an overlong prompt is refused anyway, in one line
    return target


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


def _status(message: str):
    """A spinner on a terminal."""
    return Console(stderr=True).status(message) if sys.stderr.isatty() else nullcontext()


def _streamed(pieces, prompt: str, out):
    """Prints pieces as they come and returns the result at their end."""
    if out is sys.stdout:
        _print_prompt(prompt)
    while True:
        try:
            print(next(pieces), end="", file=out, flush=True)
        except StopIteration as end:
            print(file=out)
            return end.value


def _print_prompt(prompt: str) -> None:
    if sys.stdout.isatty():
        Console().print(Text(prompt, "dim"), end="", soft_wrap=True)


def _print_stats(stats: list) -> None:
    """The figures on stderr, under the names of vLLM's log. Seconds are those of the whole batch."""
    from .stats import total

    whole, first = total(stats), stats[0]
    rates = ", ".join(f"{rate:.3f}" for rate in whole.acceptance_rate_per_position)
    lines = [
        f"Mean acceptance length: {whole.mean_acceptance_length:.2f}, Accepted: {whole.accepted} tokens, Drafted: {whole.drafted} tokens",
        f"Per-position acceptance rate: {rates}, Avg Draft acceptance rate: {100 * whole.draft_acceptance_rate:.1f}%",
    ]
    speed = whole.generated / first.decode_seconds if first.decode_seconds else 0.0
    lines = lines * bool(whole.accepted_at) + [
        f"{whole.generated} tokens, {speed:.1f} tokens/s; "
        f"prefill {first.prefill_seconds:.3f} s, decode {first.decode_seconds:.3f} s, compile {first.compile_seconds:.1f} s"
    ]
    print(*lines, sep="\n", file=sys.stderr)
