"""Measures specjax against the decoding of transformers.

    python scripts/compare_transformers.py [--model tiny-python --draft tiny-python-draft]

Both have the same weights, prompts and number of new tokens. Decoding is greedy, at batch 1. The
runs alternate. Times are those of whole calls after a warm-up, prefill included. Needs torch.
Writes docs/results/transformers_<platform>.json and .md.
"""

import argparse
import copy
import json
import sys
import time
from functools import partial
from pathlib import Path

import jax
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import specjax
from specjax.checkpoints.hub import find
from specjax.evaluation import held_out_prompts, machine

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
COLUMNS = ("decoding", "tokens/s: median (quartiles)")
ASSISTED = {
    "defaults": {},
    "5 tokens, constant": dict(
        num_assistant_tokens=5, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
    ),
    "8 tokens, heuristic": dict(
        num_assistant_tokens=8, num_assistant_tokens_schedule="heuristic", assistant_confidence_threshold=0.0
    ),
}
"""The settings of transformers' assisted generation. The fastest counts."""


def main():
    args = parse_arguments()
    try:
        import torch

        target, draft = specjax.load(args.model), specjax.load(args.draft)
        prompts = [target.tokenizer.encode(p) for p in held_out_prompts(target.tokenizer, args.num_prompts, 128)]
    except ImportError:
        sys.exit("compare_transformers: error: the package torch is missing; install it (the build for CPU is enough)")
    except specjax.SpecjaxError as error:
        sys.exit(f"compare_transformers: error: {error}")
    measured_on = machine(target) | {"torch": torch.__version__}
    torch.set_num_threads(measured_on["cores"])
    contenders = transformers_contenders(args, torch) | specjax_contenders(args, target, draft, max(map(len, prompts)))
    report = summary(args, measured_on, alternate(contenders, prompts))
    show(report)
    write(report)


def transformers_contenders(args: argparse.Namespace, torch) -> dict:
    """Functions from token ids to new token ids, by name."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()

    @torch.no_grad()
    def run(model, prompt, config=None, **options):
        if config is not None:  # A schedule changes the draft length in the configuration.
            options["assistant_model"].generation_config = copy.deepcopy(config)
        ids = torch.tensor([prompt])
        length = dict(max_new_tokens=args.max_new_tokens, min_new_tokens=args.max_new_tokens)
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **length, **options)
        return out[0, len(prompt) :].tolist()

    contenders = {}
    for dtype in ("float32", "bfloat16"):
        load = lambda name: AutoModelForCausalLM.from_pretrained(find(name), dtype=getattr(torch, dtype)).eval()
        model, assistant = load(args.model), load(args.draft)
        contenders[f"transformers plain, {dtype}"] = partial(run, model)
        for name, setting in ASSISTED.items():
            config = copy.deepcopy(assistant.generation_config)
            config.update(**setting)
            assisted = partial(run, model, assistant_model=assistant, config=config)
            contenders[f"transformers assisted, {dtype}, {name}"] = assisted
        contenders[f"transformers prompt lookup, {dtype}"] = partial(run, model, prompt_lookup_num_tokens=10)
    return contenders


def specjax_contenders(args: argparse.Namespace, target, draft, longest: int) -> dict:
    """Functions from token ids to new token ids, for methods of specjax."""

    def run(generator, prompt):
        return generator(prompt, max_new_tokens=args.max_new_tokens, ignore_eos=True).token_ids

    n, contenders = args.num_speculative_tokens, {}
    capacity = longest + args.max_new_tokens + n + 1
    for method in ("none", "ngram", "draft_model"):
        pair = draft if method == "draft_model" else None
        drafting = {} if method == "none" else {"num_speculative_tokens": n}
        generator = specjax.Generator(target, method, pair, capacity=capacity, **drafting)
        contenders[f"specjax {method}"] = partial(run, generator)
    return contenders


def alternate(contenders: dict, prompts: list) -> dict[str, np.ndarray]:
    """The seconds per new token of every contender for every prompt.

    The order rotates. The first two rounds compile programs and do not count.
    """
    names, seconds = list(contenders), {name: [] for name in contenders}
    rounds = [min(prompts, key=len), max(prompts, key=len), *prompts]
    shown = track(rounds, "measuring", console=Console(stderr=True), disable=not sys.stderr.isatty())
    for turn, prompt in enumerate(shown):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            began = time.perf_counter()
            tokens = contenders[name](prompt)
            seconds[name].append((time.perf_counter() - began) / len(tokens))
    return {name: np.array(times[2:]) for name, times in seconds.items()}


def summary(args: argparse.Namespace, measured_on: dict, seconds: dict[str, np.ndarray]) -> dict:
    """The report: medians and quartiles over prompts, and two ratios of the fastest contenders."""
    fastest = lambda *kinds: max((n for n in seconds if n.startswith(kinds)), key=lambda n: np.median(1 / seconds[n]))
    pairs = {
        "plain specjax over plain transformers": ("specjax none", fastest("transformers plain")),
        "best specjax over best assisted transformers": (
            fastest("specjax ngram", "specjax draft"),
            fastest("transformers assisted", "transformers prompt"),
        ),
    }
    ratios = [
        {"ratio": name, "of": ours, "to": theirs, **spread(seconds[theirs] / seconds[ours])}
        for name, (ours, theirs) in pairs.items()
    ]
    tokens_per_second = [{"decoding": name, **spread(1 / times)} for name, times in seconds.items()]
    return {"machine": measured_on, "settings": vars(args), "tokens_per_second": tokens_per_second, "ratios": ratios}


def spread(values: np.ndarray) -> dict:
    return {"median": float(np.median(values)), "quartiles": [float(q) for q in np.percentile(values, (25, 75))]}


def rows(report: dict) -> list[tuple[str, str]]:
    cell = lambda r, form: f"{r['median']:{form}} ({r['quartiles'][0]:{form}} to {r['quartiles'][1]:{form}})"
    speeds = [(r["decoding"], cell(r, ".0f")) for r in report["tokens_per_second"]]
    return speeds + [(f"{r['ratio']} ({r['of']} / {r['to']})", cell(r, ".2f")) for r in report["ratios"]]


def show(report: dict) -> None:
    table = Table(*COLUMNS)
    for name, cell in rows(report):
        table.add_row(name, cell)
    Console().print(table)


def write(report: dict) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"transformers_{jax.default_backend()}.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    on, of = report["machine"], report["settings"]
    lines = [COLUMNS, ("---", "---"), *rows(report)]
    text = ["# specjax and transformers", "", "Written by `scripts/compare_transformers.py`.", ""]
    text += [f"| {name} | {cell} |" for name, cell in lines]
    text += [
        "",
        f"{of['model']} with {of['draft']}; {of['num_prompts']} held-out prompts, "
        f"{of['max_new_tokens']} new tokens each, greedy, batch 1;",
    ]
    text += [f"specjax in {on['dtype']}; {on['cpu']}, {on['cores']} cores; jax {on['jax']}, torch {on['torch']}."]
    path.with_suffix(".md").write_text("\n".join(text) + "\n")
    print(f"written to {path} and .md", file=sys.stderr)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny-python")
    parser.add_argument("--draft", default="tiny-python-draft")
    parser.add_argument("--num-prompts", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--num-speculative-tokens", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
