"""``specjax compare`` and ``verify``: how fast a method is, and whether its output is the target's."""

import argparse
import json

from .arguments import check_arguments, check_output, drafting_of, load_target, method_of, prompts_of, sampling_of
from .terminal import bar_of, print_table, status

_VERIFIED_PROMPTS, _VERIFIED_TOKENS = 4, 32  # short: every draw reads its prompt anew


def run_compare(args: argparse.Namespace) -> None:
    """Measures the methods and prints a table, or JSON."""
    from ..drafter import Models
    from ..drafters import METHODS, needs_of
    from ..evaluation import compare, left_out, report
    from ..generate import load_drafts

    everything = args.methods in (None, "all")
    methods = list(METHODS) if everything else [m.strip() for m in args.methods.split(",") if m.strip()]
    enough = lambda needs: not isinstance(needs, Models) or needs.least <= len(args.draft)
    fit = [method for method in methods if enough(needs_of(method))] if everything else methods
    check_arguments(args, fit, {}, select=True)
    check_output(args.output)
    prompts = prompts_of(args)
    with status("loading"):
        target = load_target(args)
        prompts = prompts(target)
        drafts = load_drafts(target, args.draft)
        reasons = left_out(target, methods, drafts, **drafting_of(args)) if everything else {}
    with bar_of("comparing") as bar:
        options = dict(drafting_of(args), max_new_tokens=args.max_new_tokens, repeats=args.repeats, shares=args.shares)
        fit = [method for method in methods if method not in reasons]
        measured = compare(target, fit, prompts, draft=drafts, progress=bar, **options) | {"left_out": reasons}
    if args.output:
        args.output.write_text(json.dumps(measured, indent=2) + "\n")
    if args.json:
        print(json.dumps(measured))
    else:
        print_table(report.table(measured), report.notes(measured))


def run_verify(args: argparse.Namespace) -> int:
    """Checks a method against plain decoding; 1 where they disagree."""
    from ..checks import whole
    from ..evaluation import lossless
    from ..generate import Generator

    sampling = sampling_of(args)
    check_arguments(args, [method_of(args)], sampling)
    for name in ("samples", "tokens"):
        whole(f"--{name}", getattr(args, name))
    prompts = prompts_of(args, _VERIFIED_TOKENS, _VERIFIED_PROMPTS)
    with status("loading"):
        target = load_target(args)
        prompts = prompts(target)[: args.num_prompts or _VERIFIED_PROMPTS]
        generators = Generator(target, "none"), Generator(target, args.method, args.draft, **drafting_of(args), rule=args.rule)
    with bar_of("verifying") as bar:
        report = lossless.verify(
            *generators, prompts, samples=args.samples, tokens=args.tokens,
            max_new_tokens=args.max_new_tokens, seed=args.seed, inject=args.inject, progress=bar, **sampling,
        )  # fmt: skip
    if args.json:
        print(json.dumps(report))
    else:
        print(*lossless.lines(report), sep="\n")
    return 0 if report["agree"] else 1
