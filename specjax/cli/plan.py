"""``specjax tune`` and ``ngrams``: what to draft with, measured or counted beforehand."""

import argparse
import json
import sys

from ..errors import RequestError
from .arguments import check_output, load_target, prompts_of
from .terminal import bar_of, print_table, status

_LONGEST_DRAFT = 8


def run_tune(args: argparse.Namespace) -> None:
    """Measures the target, and prints which options to use; with --tree, writes the best tree to a file."""
    if args.tree == args.layers:
        raise RequestError("say what to tune: --tree or --layers")
    _tune_tree(args) if args.tree else _tune_layers(args)


def _tune_layers(args: argparse.Namespace) -> None:
    from ..checks import whole
    from ..planning import layers

    for name in ("num_speculative_tokens", "budget"):
        if getattr(args, name) is not None:
            whole(name, getattr(args, name))
    texts = prompts_of(args)
    with status("loading"):
        target = load_target(args)
        texts = texts(target)
    with bar_of("tuning") as bar:
        options = dict(temperature=args.temperature, longest=args.num_speculative_tokens or _LONGEST_DRAFT, budget=args.budget)
        report = layers.tune_layers(target, texts, progress=bar, **options)
    if args.json:
        print(json.dumps(report))
    else:
        print_table(layers.table(report), filter(None, (report["note"], report["flags"])))


def _tune_tree(args: argparse.Namespace) -> None:
    from ..checkpoints.heads import load_drafter
    from ..planning import tune

    draft = next(iter(args.draft), None)
    tune.check(args.method or "tree", draft, args.temperature, args.max_nodes, args.max_depth, args.batch, args.max_new_tokens)
    check_output(args.output)
    prompts = prompts_of(args)
    with status("loading"):
        target = load_target(args)
        draft = draft and load_drafter(draft, target)
    with status("measuring acceptance and cost"):
        names = ("method", "temperature", "max_nodes", "max_depth", "max_new_tokens", "batch")
        report = tune.tune_tree(target, draft, prompts(target), **{name: getattr(args, name) for name in names})
    if args.output:
        args.output.write_text(tune.toml(report))
    if args.json:
        print(json.dumps(report))
        return
    print_table(tune.table(report), tune.notes(report))
    print(f"now: {tune.command(report, args.output)}" if args.output else "give --output TREE.toml to keep the best tree")


def run_ngrams(args: argparse.Namespace) -> None:
    """Counts the n-grams of text files and writes them to a file."""
    from ..checkpoints.load import load_tokenizer
    from ..checks import whole
    from ..drafters.parts import statistics
    from ..training.data import read_texts

    whole("--contexts", args.contexts)
    try:
        texts = read_texts(args.data)
    except OSError as error:
        raise RequestError(f"--data {error.filename}: cannot be read ({error.strerror}); name text files") from None
    with status("counting"):
        tokenizer, config = load_tokenizer(args.model)
        ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
        counted = statistics.count_ngrams(ids, config.vocab_size, args.contexts)
        statistics.save(counted, config.vocab_size, args.output)
    known = " and ".join(f"{leaf.shape[0]} of {leaf.shape[1]}" for leaf in counted.contexts)
    print(f"{sum(map(len, ids))} tokens; contexts {known} tokens", file=sys.stderr)
