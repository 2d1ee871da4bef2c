"""Finds the fastest token tree for a target and a drafter, on texts and this device.

One report holds the measured acceptance, the measured cost, and the trees of the search.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...checkpoints.heads import choose_head
from ...checkpoints.load import LanguageModel
from ...core.checks import check_names, field_names, per_row, whole
from ...core.tree import expansion
from ...drafters import default_method, needs_of
from ...errors import RequestError
from ...heads import KINDS, Head
from ...loop.drafter import TrainedHead
from ...text.generator import Generator
from ...text.machine import machine
from ...text.result import Result
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


@dataclasses.dataclass(frozen=True)
class TreeSettings:
    """The settings of a search for a tree.

    Attributes:
      temperature: the temperature of the texts and of later requests.
      max_nodes: the number of nodes of the largest tree, the root included.
      max_depth: the number of levels of the deepest tree.
      max_new_tokens: the number of tokens of each text.
      batch: the number of rows of the timed rounds.
      repeats: the number of timed runs of each program.
      nodes, widths: see ``tools.tune.cost.measure``; sizes above ``max_nodes`` are left out.

    Raises RequestError for values out of bounds.
    """

    temperature: float = 0.0
    max_nodes: int = 32
    max_depth: int = 8
    max_new_tokens: int = 128
    batch: int = 1
    repeats: int = 9
    nodes: Sequence[int] = cost.NODES
    widths: Sequence[int] = cost.WIDTHS

    def __post_init__(self):
        per_row("temperature", self.temperature, 1, np.float32)
        whole("max_nodes", self.max_nodes, 2)
        for name in ("max_depth", "batch", "max_new_tokens"):
            whole(name, getattr(self, name))


def check(method: str, draft, settings: TreeSettings) -> None:
    """Raises RequestError for a method or a draft for which ``tune_tree`` finds no tree."""
    if method not in METHODS:
        raise RequestError(f"method {method!r} has no tree to tune; use one of {', '.join(METHODS)}")
    if method == "tree" and draft is None:
        raise RequestError(
            "tuning a tree needs a draft; name one with --draft, or tune the tree of --method token_recycling"
        )
    if method in ("eagle", "eagle3") and settings.temperature:
        raise RequestError(
            f"method {method!r} draws its tokens above temperature 0, and its trees are tuned at temperature 0 only; "
            "leave --temperature out"
        )
    if method == "token_recycling" and draft is not None:
        raise RequestError("method 'token_recycling' takes no draft; leave it out or use method 'tree'")


def tune_tree(
    target: LanguageModel,
    draft: LanguageModel | Head | None,
    prompts: Sequence,
    *,
    method: str | None = None,
    **settings,
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
      settings: fields of ``TreeSettings``.

    Above temperature 0 a draft model is measured at each of ``DRAFT_TEMPERATURES``, then at the
    fastest of them under each of ``DRAFT_TRUNCATIONS``. The report has the fastest options of all.

    Returns an object for JSON: "machine", "settings", "acceptance", "cost"; "trees", the best tree
    of each size; "chain", the best chain; "best", the best tree; and "draft_options", a list of the
    draft's own sampling options that were tried, with the expected speed of the best tree.

    Raises RequestError for bad input.
    """
    # 1. The method, its draft and the settings.
    check_names(settings, field_names(TreeSettings))
    options = TreeSettings(**settings)
    target.config.refuse_encoder("tune")
    method = method or _method_for(draft)
    check(method, draft, options)
    if method in HEADS:
        draft = _choose_head(target, draft, method)
        options = dataclasses.replace(
            options, max_depth=min(options.max_depth, draft.config.num_heads or options.max_depth)
        )
    Generator(target, method, draft)  # raises RequestError where the models do not fit
    # 2. Texts of the target.
    texts = Generator(target, "none")(
        list(prompts), max_new_tokens=options.max_new_tokens, temperature=options.temperature, ignore_eos=True
    )
    if method in HEADS and max(len(text.token_ids) for text in texts) <= options.max_depth:
        raise RequestError(
            f"max_new_tokens must be above {options.max_depth}, the depth of the trees; raise it or lower max_depth"
        )
    # 3. The cost of rounds at the mean length of these texts.
    length = int(np.mean([len(text.prompt_token_ids) + len(text.token_ids) / 2 for text in texts]))
    conditions: dict[str, Any] = dict(length=length, batch=options.batch, temperature=options.temperature)
    sizes: dict[str, Any] = dict(
        nodes=sorted({n for n in options.nodes if n < options.max_nodes} | {1, options.max_nodes}),
        widths=sorted({w for w in options.widths if w < options.max_nodes} | {1}),
    )
    costs = cost.measure(target, draft, method=method, **conditions, **sizes, repeats=options.repeats)
    # 4. Acceptance on these texts, and the trees.
    if isinstance(draft, Head):
        search = _search_head(target, draft, texts, costs, options)
    else:
        search = _search_model(target, draft, prompts, texts, costs, options)
    # 5. The report.
    models = dict(method=method, model=target.name, draft=draft and draft.name)
    conditions["draft_options"] = _fastest(search.draft_options)["options"] if search.draft_options else {}
    return {
        "machine": machine(target),
        "settings": models | dict(prompts=len(texts), max_new_tokens=options.max_new_tokens) | conditions,
        "acceptance": {
            name: getattr(search.acceptance, name).tolist()
            for name in ("tried", "accepted", "tried_at", "accepted_at", "P", "deviation")
        },
        "cost": {"verify": _curve(costs.verify), "level": costs.level and _curve(costs.level)},
        "trees": [_choice(tree) for tree in search.trees],
        "chain": _choice(_best(search.chains)),
        "best": _choice(_best(search.trees)),
        "draft_options": search.draft_options,
    }


def _method_for(draft: LanguageModel | Head | None) -> str:
    """The method of a draft if the user names none."""
    if isinstance(draft, Head):
        return default_method((draft,))
    return "token_recycling" if draft is None else "tree"


def _choose_head(target: LanguageModel, draft, method: str) -> Head:
    """The head of the method. Raises RequestError for one whose trees have no fixed shape."""
    needs = needs_of(method)
    assert isinstance(needs, TrainedHead)
    head = choose_head(target, (draft,) if draft else (), needs.kind, method)
    if head.config.mask_token is not None:
        raise RequestError(
            f"{head.name!r} is a P-EAGLE head, whose trees have no fixed shape to tune; "
            "compare values of tree_nodes with specjax compare"
        )
    return head


class _Search(NamedTuple):
    """Measured acceptance, the best tree of each size, and the chains.

    Attributes:
      draft_options: the draft's own sampling options that were tried, with the expected speed of
        the best tree.
    """

    acceptance: acceptance.Acceptance
    trees: list[tree_search.Choice]
    chains: list[tree_search.Choice]
    draft_options: list[dict[str, Any]]


def _search_head(
    target: LanguageModel, head: Head, texts: list[Result], costs: cost.Cost, settings: TreeSettings
) -> _Search:
    """The trees of a head, from the ranks of the texts' tokens among its predictions."""
    ranks = head_trees.ranks_of(target, head, texts, depth=settings.max_depth)
    trees, chains = head_trees.search(ranks, costs, settings.max_nodes)
    if not trees:
        raise RequestError("the head predicts no token of these texts; use more or other prompts, or another head")
    return _Search(head_trees.count_acceptance(ranks), trees, chains, [])


def _search_model(
    target: LanguageModel,
    draft: LanguageModel | None,
    prompts: Sequence,
    texts: list[Result],
    costs: cost.Cost,
    settings: TreeSettings,
) -> _Search:
    """The trees of a draft model, or of token recycling without one, by measured acceptance."""
    max_nodes = settings.max_nodes
    max_depth = settings.max_depth
    temperature = settings.temperature

    def search(measured: acceptance.Acceptance) -> list[tree_search.Choice]:
        return tree_search.search(measured.chance, costs, max_nodes, max_depth)

    draft_options: list[dict[str, Any]] = []
    if draft is None:
        accepted = acceptance.of_recycling(
            target, prompts, temperature=temperature, max_new_tokens=settings.max_new_tokens
        )
    else:
        of_draft = partial(acceptance.of_draft, target, draft, texts, temperature=temperature, depth=max_depth)
        measured = _measure_options(of_draft, lambda one: _best(search(one)).speedup, temperature)
        draft_options = [{"options": own, "speedup": speedup} for own, _, speedup in measured]
        accepted = measured[draft_options.index(_fastest(draft_options))][1]
    lengths = range(1, min(max_depth, max_nodes - 1) + 1)
    chains = [tree_search.evaluate(expansion((1,) * length), accepted.chance, costs) for length in lengths]
    return _Search(accepted, search(accepted), chains, draft_options)


def _best(choices: list[tree_search.Choice]) -> tree_search.Choice:
    """The tree with the highest expected speed."""
    return max(choices, key=lambda choice: choice.speedup)


def _measure_options(of_draft: Callable, speed: Callable, temperature: float) -> list[tuple[dict, Any, float]]:
    """The draft's own sampling options that are tried, each with its acceptance and expected speed.

    Temperatures come first, then truncations at the fastest of them. At temperature 0 no option
    changes a draft.
    """

    def measure(**options) -> tuple[dict, Any, float]:
        acceptance = of_draft(**options)
        return options, acceptance, speed(acceptance)

    if not temperature:
        return [measure()]
    measured = [measure(draft_temperature=round(share * temperature, 4)) for share in DRAFT_TEMPERATURES]
    best, *_ = max(measured, key=lambda one: one[2])
    return measured + [measure(**best, **truncation) for truncation in DRAFT_TRUNCATIONS]


def _fastest(records: list[dict[str, Any]]) -> dict[str, Any]:
    """The options with the highest expected speed."""
    return max(records, key=lambda one: one["speedup"])


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
