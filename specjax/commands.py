"""What the commands do: from parsed arguments to printed text, tables and JSON. Results go to stdout, figures to stderr."""

import argparse
import dataclasses
import json
import os
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from .errors import RequestError

_WIDTH, _HELD_OUT_PROMPTS, _HELD_OUT_TOKENS = 160, 16, 128
_LONGEST_DRAFT = 8
_VERIFIED_PROMPTS, _VERIFIED_TOKENS = 4, 32  # short: every draw reads its prompt anew

SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "min_new_tokens", "logit_bias",
    "allowed_tokens", "suppressed_tokens", "stop", "stop_token_ids", "logprobs", "regex", "choices", "json_schema", "ignore_eos",
)  # fmt: skip
"""Options of ``options.Options`` that the command line passes on under the same names."""


def run_generate(args: argparse.Namespace) -> None:
    """Continues the prompts and prints text, or JSON."""
    prompts = [_checked(_stdin() if prompt == "-" else prompt) for prompt in args.prompt]
    if args.stream and len(prompts) > 1:
        raise RequestError("--stream takes one prompt; leave it out for several")
    sampling = _sampling(args)
    _check_options(args, [_method(args)], sampling)
    from .generate import Generator

    with _status("loading"):
        setting = dict(_drafting(args), rule=args.rule, capacity=args.capacity)
        generator = Generator(_load(args), args.method, args.draft, **setting)
    options = dict(sampling, max_new_tokens=args.max_new_tokens, seed=args.seed)
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
        records = [{**_given(result), "stats": result.stats.as_dict()} for result in results]
        print(json.dumps(records[0] if len(records) == 1 else records))
    else:
        _print_stats([result.stats for result in results])


def _given(result) -> dict:
    """The fields of a result that have a value: of the optional ones those that were asked for."""
    return {name: value for name, value in dataclasses.asdict(result).items() if value is not None}


def run_compare(args: argparse.Namespace) -> None:
    """Measures the methods and prints a table, or JSON."""
    from .bench import compare, held_out_prompts, read_prompts, report
    from .drafters import METHODS, make_drafter

    default = [name for name in METHODS if len(args.draft) >= make_drafter(name).needs_draft]
    methods = default if args.methods is None else [m.strip() for m in args.methods.split(",") if m.strip()]
    _check_options(args, methods, {})
    _check_output(args.output)
    prompts = args.prompts and read_prompts(args.prompts)
    with _status("loading"):
        target = _load(args)
        size = min(_HELD_OUT_TOKENS, target.config.context // 4)
        prompts = prompts or held_out_prompts(target.tokenizer, args.num_prompts or _HELD_OUT_PROMPTS, size)
    with _bar("comparing") as bar:
        options = dict(_drafting(args), max_new_tokens=args.max_new_tokens, repeats=args.repeats, shares=args.shares)
        measured = compare(target, methods, prompts[: args.num_prompts], draft=args.draft, progress=bar, **options)
    if args.output:
        args.output.write_text(json.dumps(measured, indent=2) + "\n")
    if args.json:
        print(json.dumps(measured))
    else:
        _print_table(report.table(measured), report.notes(measured))


def run_verify(args: argparse.Namespace) -> int:
    """Checks a method against plain decoding; 1 where they disagree."""
    from .bench import held_out_prompts, lossless, read_prompts
    from .generate import Generator
    from .request import whole

    sampling, method = _sampling(args), _method(args)
    _check_options(args, [method], sampling)
    for name in ("samples", "tokens"):
        whole(f"--{name}", getattr(args, name))
    prompts = args.prompts and read_prompts(args.prompts)
    with _status("loading"):
        target = _load(args)
        size = min(_VERIFIED_TOKENS, target.config.context // 4)
        prompts = prompts or held_out_prompts(target.tokenizer, args.num_prompts or _VERIFIED_PROMPTS, size)
        generators = Generator(target, "none"), Generator(target, method, args.draft, **_drafting(args), rule=args.rule)
    with _bar("verifying") as bar:
        report = lossless.verify(
            *generators, prompts[: args.num_prompts or _VERIFIED_PROMPTS], samples=args.samples, tokens=args.tokens,
            max_new_tokens=args.max_new_tokens, seed=args.seed, inject=args.inject, progress=bar, **sampling,
        )  # fmt: skip
    if args.json:
        print(json.dumps(report))
    else:
        print(*lossless.lines(report), sep="\n")
    return 0 if report["agree"] else 1


def run_tune(args: argparse.Namespace) -> None:
    """Measures the target, and prints which options to use; with --tree, writes the best tree to a file."""
    if args.tree == args.layers:
        raise RequestError("say what to tune: --tree or --layers")
    _tune_tree(args) if args.tree else _tune_layers(args)


def _tune_layers(args: argparse.Namespace) -> None:
    from .bench import held_out_prompts, read_prompts
    from .planning import layers
    from .request import whole

    for name in ("num_prompts", "num_speculative_tokens", "budget"):
        if getattr(args, name) is not None:
            whole(name, getattr(args, name))
    texts = args.prompts and read_prompts(args.prompts)
    with _status("loading"):
        target = _load(args)
        size = min(_HELD_OUT_TOKENS, target.config.context // 4)
        texts = texts or held_out_prompts(target.tokenizer, args.num_prompts or _HELD_OUT_PROMPTS, size)
    with _bar("tuning") as bar:
        options = dict(temperature=args.temperature, longest=args.num_speculative_tokens or _LONGEST_DRAFT, budget=args.budget)
        report = layers.tune_layers(target, texts[: args.num_prompts], progress=bar, **options)
    if args.json:
        print(json.dumps(report))
    else:
        _print_table(layers.table(report), filter(None, (report["note"], report["flags"])))


def _tune_tree(args: argparse.Namespace) -> None:
    from .bench import held_out_prompts, read_prompts
    from .models.hub import load
    from .planning import tune
    from .request import whole

    tune.check(args.method, args.draft, args.temperature, args.max_nodes, args.max_depth, args.batch, args.max_new_tokens)
    args.num_prompts is None or whole("num_prompts", args.num_prompts)
    _check_output(args.output)
    prompts = args.prompts and read_prompts(args.prompts)
    with _status("loading"):
        target = _load(args)
        draft = args.draft and load(args.draft, dtype=str(target.model.embed[...].dtype))
        size = min(_HELD_OUT_TOKENS, target.config.context // 4)
        prompts = prompts or held_out_prompts(target.tokenizer, args.num_prompts or _HELD_OUT_PROMPTS, size)
    with _status("measuring acceptance and cost"):
        names = ("temperature", "max_nodes", "max_depth", "max_new_tokens", "batch")
        report = tune.tune_tree(target, draft, prompts[: args.num_prompts], **{name: getattr(args, name) for name in names})
    if args.output:
        args.output.write_text(tune.toml(report))
    if args.json:
        print(json.dumps(report))
        return
    _print_table(tune.table(report), tune.notes(report))
    print(f"now: {tune.command(report, args.output)}" if args.output else "give --output TREE.toml to keep the best tree")


def _method(args: argparse.Namespace) -> str:
    from .drafters import default_method

    return default_method(len(args.draft)) if args.method is None else args.method


def run_ngrams(args: argparse.Namespace) -> None:
    """Counts the n-grams of text files and writes them to a file."""
    from .drafters import statistics
    from .models.hub import load_tokenizer
    from .request import whole
    from .training.data import read_texts

    whole("--contexts", args.contexts)
    try:
        texts = read_texts(args.data)
    except OSError as error:
        raise RequestError(f"--data {error.filename}: cannot be read ({error.strerror}); name text files") from None
    with _status("counting"):
        tokenizer, config = load_tokenizer(args.model)
        ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
        counted = statistics.counted(ids, config.vocab_size, args.contexts)
        statistics.save(counted, config.vocab_size, args.output)
    known = " and ".join(f"{leaf.shape[0]} of {leaf.shape[1]}" for leaf in counted.contexts)
    print(f"{sum(map(len, ids))} tokens; contexts {known} tokens", file=sys.stderr)


def _drafting(args: argparse.Namespace) -> dict:
    """The options of drafting methods that were given."""
    from .drafters import OPTIONS
    from .tree import topology

    given = {name: getattr(args, name) for name in OPTIONS if getattr(args, name, None) is not None}
    return given | ({"tree": topology(given["tree"])} if "tree" in given else {})


def _check_options(args: argparse.Namespace, methods: list[str], sampling: dict) -> None:
    """Raises what would be raised later anyway, before a model is loaded."""
    from .drafters import METHODS, check_drafts, make_drafter
    from .options import Options, checked_numbers
    from .request import whole
    from .verify import resolve

    if not methods:
        raise RequestError(f"--methods is empty; name some of {', '.join(METHODS)}")
    for method in methods:
        drafter = make_drafter(method, **_drafting(args))
        resolve(getattr(args, "rule", "auto"), drafter.sampled)
        check_drafts(method, drafter, len(args.draft))
    checked_numbers(Options.of(sampling), 1)
    numbers = {name: getattr(args, name, None) for name in ("max_new_tokens", "num_prompts", "repeats")} | _drafting(args)
    for name, value in numbers.items():
        if isinstance(value, int):
            whole(name, value)


def _sampling(args: argparse.Namespace) -> dict:
    """The options that were given, as ``Generator`` takes them."""
    given = {name: getattr(args, name) for name in SAMPLING if getattr(args, name, None) is not None}
    for name in ("logit_bias", "json_schema"):
        if name in given:
            given[name] = _json(name, given[name])
    return given


def _json(name: str, text: str):
    """JSON from an argument, or from the file it names behind an @."""
    flag = f"--{name.replace('_', '-')}"
    try:
        value = json.loads(Path(text[1:]).read_text() if text.startswith("@") else text)
    except OSError as error:
        raise RequestError(f"{flag}: {text[1:]} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise RequestError(f"{flag} is not JSON ({error}); give an object, or @FILE") from None
    if not isinstance(value, dict):
        raise RequestError(f"{flag} must be a JSON object")
    return value


@contextmanager
def _bar(title: str):
    """A progress bar on a terminal; yields what to tell ``done`` and ``of``."""
    columns = TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("")
        yield lambda done, of: bar.update(task, completed=done, total=of)


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


def _check_output(path: Path | None) -> None:
    """Raises RequestError where a file could not be written in the end."""
    if path and not (path.parent.is_dir() and os.access(path.parent, os.W_OK) and not path.is_dir()):
        raise RequestError(f"--output {path}: cannot be written; name a file in a directory that can")


def _print_table(table, notes: list[str]) -> None:
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH)
    console.print(table)
    for note in notes:
        console.print(Text(f"note: {note}"))


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
