"""Finds the fastest token tree for a target and a drafter, on given texts and this device.

One report holds the measured acceptance, the measured cost, and the trees of the search.
"""

import json
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from ..checkpoints.heads import choose_head
from ..checkpoints.load import LanguageModel
from ..checks import per_row, whole
from ..drafter import TrainedHead
from ..drafters import default_method, needs_of
from ..errors import RequestError
from ..evaluation.comparison import machine
from ..generate import Generator
from ..heads import KINDS, Head
from ..tree import expansion
from . import acceptance, cost, head_trees, tree_search

HEADS = tuple(name for name, kind in KINDS.items() if kind.tuned_trees)
"""The methods with a trained head whose trees have a fixed shape."""

METHODS = ("tree", "token_recycling", *HEADS)
"""All methods whose trees have a fixed shape."""

DRAFT_TEMPERATURES = (0.5, 0.7, 0.85, 1.0, 1.2)
"""The draft temperatures to try, in units of the target's."""

DRAFT_TRUNCATIONS: tuple[dict[str, Any], ...] = (
    {"draft_top_k": 4},
    {"draft_top_k": 16},
    {"draft_top_p": 0.8},
    {"draft_top_p": 0.95},
)
"""The truncations of the draft's distribution to try, at the fastest draft temperature."""

_COLUMNS = ("nodes", "depth", "expected tokens a call", "ms a round", "expected speed-up", "")


def check(
    method: str, draft, temperature: float, max_nodes: int, max_depth: int, batch: int, max_new_tokens: int
) -> None:
    """Raises RequestError for arguments that ``tune_tree`` cannot use."""
    if method not in METHODS:
        raise RequestError(f"method {method!r} has no tree to tune; use one of {', '.join(METHODS)}")
    if method == "tree" and draft is None:
        raise RequestError(
            "tuning a tree needs a draft; name one with --draft, or tune the tree of --method token_recycling"
        )
    if method in ("eagle", "eagle3") and temperature:
        raise RequestError(
            f"method {method!r} draws its tokens above temperature 0, and its trees are tuned at temperature 0 only; "
            "leave --temperature out"
        )
    if method == "token_recycling" and draft is not None:
        raise RequestError("method 'token_recycling' takes no draft; leave it out or use method 'tree'")
    per_row("temperature", temperature, 1, np.float32)
    sizes = dict(max_depth=max_depth, batch=batch, max_new_tokens=max_new_tokens)
    whole("max_nodes", max_nodes, 2)
    for name, value in sizes.items():
        whole(name, value)


def tune_tree(
    target: LanguageModel,
    draft: LanguageModel | Head | None,
    prompts: Sequence,
    *,
    method: str | None = None,
    temperature: float = 0.0,
    max_nodes: int = 32,
    max_depth: int = 8,
    max_new_tokens: int = 128,
    batch: int = 1,
    repeats: int = 9,
    nodes: Sequence[int] = cost.NODES,
    widths: Sequence[int] = cost.WIDTHS,
) -> dict:
    """Measures acceptance and cost, and searches the tree with the highest expected speed.

    The target writes a text after each of ``prompts``. Acceptance is measured on these texts, and
    cost at their mean length.

    Args:
      target: the model to decode with.
      draft: the model or the head that drafts; None for token recycling, or for the head embedded
        with the target.
      prompts: strings or token ids.
      method: by default the method of the draft.
      temperature: the temperature of the texts and of later requests.
      max_nodes: the number of nodes of the largest tree, the root included.
      max_depth: the number of levels of the deepest tree.
      max_new_tokens: the number of tokens of each text.
      batch: the number of rows of the timed rounds.
      repeats: the number of timed runs of each program.
      nodes, widths: see ``cost.measure``; sizes above ``max_nodes`` are left out.

    Above temperature 0 a draft model is measured at each of ``DRAFT_TEMPERATURES``, then at the
    fastest of them under each of ``DRAFT_TRUNCATIONS``. The fastest options of all are kept.

    Returns an object for JSON: "machine", "settings", "acceptance", "cost"; "trees", the best tree
    of each size; "chain", the best chain; "best", the best tree; and "draft_options", a list of the
    draft's own sampling options that were tried, with the expected speed of the best tree.

    Raises RequestError for bad input.
    """
    if method is None and isinstance(draft, Head):
        method = default_method((draft,))
    target.config.refuse_encoder("tune")
    method = method or ("token_recycling" if draft is None else "tree")
    check(method, draft, temperature, max_nodes, max_depth, batch, max_new_tokens)
    if method in HEADS:
        needs = needs_of(method)
        assert isinstance(needs, TrainedHead)
        draft = choose_head(target, (draft,) if draft else (), needs.kind, method)
        if draft.config.mask_token is not None:
            raise RequestError(
                f"{draft.name!r} is a P-EAGLE head, whose trees have no fixed shape to tune; "
                "compare values of tree_nodes with specjax compare"
            )
        max_depth = min(max_depth, draft.config.num_heads or max_depth)
    Generator(target, method, draft)  # raises RequestError where the models do not fit
    texts = Generator(target, "none")(
        list(prompts), max_new_tokens=max_new_tokens, temperature=temperature, ignore_eos=True
    )
    length = int(np.mean([len(text.prompt_token_ids) + len(text.token_ids) / 2 for text in texts]))
    nodes = sorted({n for n in nodes if n < max_nodes} | {1, max_nodes})
    widths = sorted({w for w in widths if w < max_nodes} | {1})
    fastest = lambda choices: max(choices, key=lambda choice: choice.speedup)
    setting: dict[str, Any] = dict(length=length, batch=batch, temperature=temperature)
    if method in HEADS and max(len(text.token_ids) for text in texts) <= max_depth:
        raise RequestError(
            f"max_new_tokens must be above {max_depth}, the depth of the trees; raise it or lower max_depth"
        )
    spent = cost.measure(target, draft, method=method, **setting, nodes=nodes, widths=widths, repeats=repeats)
    tried: list[dict[str, Any]] = []
    if isinstance(draft, Head):
        ranks = head_trees.ranks_of(target, draft, texts, depth=max_depth)
        found = head_trees.count_acceptance(ranks)
        trees, chains = head_trees.search(ranks, spent, max_nodes)
        if not trees:
            raise RequestError("the head predicts no token of these texts; use more or other prompts, or another head")
    else:
        search = lambda found: tree_search.search(found.chance, spent, max_nodes, max_depth)
        if draft is None:
            found = acceptance.of_recycling(target, prompts, temperature=temperature, max_new_tokens=max_new_tokens)
        else:
            of_draft = partial(acceptance.of_draft, target, draft, texts, temperature=temperature, depth=max_depth)
            measured = _measure_options(of_draft, lambda found: fastest(search(found)).speedup, temperature)
            tried = [{"options": own, "speedup": speedup} for own, _, speedup in measured]
            found = measured[tried.index(_fastest(tried))][1]
        trees = search(found)
        lengths = range(1, min(max_depth, max_nodes - 1) + 1)
        chains = [tree_search.evaluate(expansion((1,) * length), found.chance, spent) for length in lengths]
    models = dict(method=method, model=target.name, draft=draft and draft.name)
    setting["draft_options"] = _fastest(tried)["options"] if tried else {}
    return {
        "machine": machine(target),
        "settings": models | dict(prompts=len(texts), max_new_tokens=max_new_tokens) | setting,
        "acceptance": {
            name: getattr(found, name).tolist()
            for name in ("tried", "accepted", "tried_at", "accepted_at", "P", "deviation")
        },
        "cost": {"verify": _curve(spent.verify), "level": spent.level and _curve(spent.level)},
        "trees": [_choice(tree) for tree in trees],
        "chain": _choice(fastest(chains)),
        "best": _choice(fastest(trees)),
        "draft_options": tried,
    }


def table(report: dict) -> Table:
    """A table of plain decoding, the best chain, and the best tree of each measured size.

    It marks the best tree of all.
    """
    grid = Table(*_COLUMNS, caption=_about(report), caption_justify="left")
    shown = {*report["cost"]["verify"]["sizes"], report["best"]["nodes"]}
    plain = dict(nodes=1, depth=0, tokens=1.0, seconds=report["cost"]["verify"]["median"][0], speedup=1.0)
    chain, best = report["chain"], report["best"]
    lines = [(plain, "plain decoding")] + [
        (tree, "best" * (tree == best)) for tree in report["trees"] if tree["nodes"] in shown
    ]
    if chain["paths"] != best["paths"]:
        lines.append((chain, "best chain"))
    for tree, mark in lines:
        figures = f"{tree['tokens']:.2f}", f"{1e3 * tree['seconds']:.2f}", f"{tree['speedup']:.2f}"
        cells = map(Text, (str(tree["nodes"]), str(tree["depth"]), *figures, mark))
        grid.add_row(*cells, style="bold" if mark == "best" else None)
    return grid


def notes(report: dict) -> list[str]:
    """Warnings where no tree beats plain decoding or the best chain; speed by the draft's options."""
    best, chain = report["best"], report["chain"]
    found = []
    if best["speedup"] <= 1:
        found = [f"no tree beats plain decoding here: the best is expected at {best['speedup']:.2f} times its speed"]
    elif best["paths"] == chain["paths"]:
        found = ["no tree beats the chain here: the best tree has no branches"]
    if len(tried := report["draft_options"]) > 1:
        each = ", ".join(f"{one['speedup']:.2f} with {shlex.join(_flags(one['options']))}" for one in tried)
        found.append(f"expected speed-up by the draft's own options: {each}")
    return found


def toml(report: dict) -> str:
    """The best tree as a file for ``--tree``, the draft's fastest options, and the measurement in comments.

    ``--tree`` reads the paths alone. The options are flags of their own, which a comment names.
    """
    best, own = report["best"], report["settings"]["draft_options"]
    lines = [
        f"{best['nodes']} nodes, depth {best['depth']}: {best['tokens']:.2f} expected tokens a call, "
        f"{best['speedup']:.2f} times plain decoding",
        *_about(report).split("; "),
        *notes(report),
        *([f"use it with {shlex.join(_flags(own))}"] if own else []),
    ]
    values = [f"{name} = {json.dumps(value)}" for name, value in ({"paths": best["paths"]} | own).items()]
    return "".join(f"{line}\n" for line in [*(f"# {line}" for line in lines), *values])


def command(report: dict, file) -> str:
    """The command line that decodes with the tree in ``file``."""
    settings = report["settings"]
    words = ["specjax", "generate", "--model", settings["model"], "--method", settings["method"], "--tree", str(file)]
    if settings["draft"]:
        words += ["--draft", settings["draft"]]
        if settings["temperature"] == 0 and settings["method"] not in ("medusa", "hydra"):
            words += ["--siblings", "top_k"]
    if settings["temperature"]:
        words += ["--temperature", str(settings["temperature"])]
    return shlex.join([*words, *_flags(settings["draft_options"]), "--prompt", "..."])


def _about(report: dict) -> str:
    """One line: models, texts, cost and machine."""
    machine, settings = report["machine"], report["settings"]
    models = " with ".join(filter(None, (settings["model"], settings["draft"] or "token_recycling")))
    return (
        f"{models}, {machine['dtype']}, temperature {settings['temperature']}; "
        f"acceptance on {settings['prompts']} texts of {settings['max_new_tokens']} new tokens; "
        f"cost at batch {settings['batch']} after {settings['length']} tokens; "
        f"{machine['devices']} x {machine['device']}, {machine['cpu']}, {machine['cores']} cores; jax {machine['jax']}"
    )


def _measure_options(of_draft: Callable, speed: Callable, temperature: float) -> list[tuple[dict, Any, float]]:
    """The draft's own sampling options that are tried, each with its acceptance and expected speed.

    Temperatures come first, then truncations at the fastest of them. At temperature 0 no option
    changes a draft.
    """

    def measure(**own) -> tuple[dict, Any, float]:
        found = of_draft(**own)
        return own, found, speed(found)

    if not temperature:
        return [measure()]
    measured = [measure(draft_temperature=round(share * temperature, 4)) for share in DRAFT_TEMPERATURES]
    best, *_ = max(measured, key=lambda one: one[2])
    return measured + [measure(**best, **truncation) for truncation in DRAFT_TRUNCATIONS]


def _fastest(tried: list[dict[str, Any]]) -> dict[str, Any]:
    """The options with the highest expected speed."""
    return max(tried, key=lambda one: one["speedup"])


def _flags(options: dict[str, float]) -> list[str]:
    """The command line's words for sampling options of the draft."""
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", f"{value:g}")]


def _curve(curve: cost.Curve) -> dict:
    low, median, high = curve.quartiles.tolist()
    return {"sizes": list(curve.sizes), "low": low, "median": median, "high": high}


def _choice(choice: tree_search.Choice) -> dict:
    return {
        "nodes": choice.nodes,
        "depth": choice.depth,
        "tokens": choice.tokens,
        "seconds": choice.seconds,
        "speedup": choice.speedup,
        "paths": [list(path) for path in choice.tree.paths[1:]],
    }
