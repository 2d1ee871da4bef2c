"""``specjax tune``: measures the tree, layers or lookahead sizes that draft best here."""

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

from ..errors import RequestError
from .arguments import HOSTS, MODELS_TOGETHER, NEW_TOKENS, Prompts, prepare_conversations, prepare_prompts
from .fields import flag, flags_of
from .loading import load_given_drafts, load_target
from .output import check_output, write_output
from .terminal import print_table, progress_bar, status

_LONGEST_DRAFT = 8


@dataclasses.dataclass(frozen=True)
class Tune:
    """The flags of the command.

    Attributes:
      tree: tune the shape of a token tree, for methods whose trees have a fixed shape.
      layers: tune the target's layers that draft, for early_exit and layer_skip.
      lookahead: tune the sizes W, N and G of lookahead decoding.
      auto: measure the times by which method auto chooses, once for machine and models.
      anew: with --auto: measure also where a file of this machine exists.
      temperature: 0 is greedy.
      output: write the result to this TOML file; with --auto to this JSON file, by default in the
        cache folder.
      json: print one JSON object.
      batch: rows that will be decoded together, for --tree and --auto (default 1; with --auto the
        most, default 4).
      budget: sets of sub-layers to try (default 8 for each layer), or sizes of lookahead (default
        12), for --layers and --lookahead.
      num_speculative_tokens: the longest draft to consider, for --layers (default 8).
    """

    tree: bool = False
    layers: bool = False
    lookahead: bool = False
    auto: bool = False
    anew: bool = False
    temperature: float = 0.0
    output: Path | None = None
    json: bool = False
    batch: int | None = flag(None, least=1, most=16384)
    budget: int | None = flag(None, least=1)
    num_speculative_tokens: int | None = flag(None, least=1)


@dataclasses.dataclass(frozen=True)
class TuneTree:
    """The flags of --tree.

    Attributes:
      method: the method of the tree: tree (default with a model as draft), token_recycling, or with
        a head medusa, hydra, eagle or eagle3.
      max_nodes: nodes of the largest tree, the root included.
      max_depth: levels of the deepest tree.
    """

    method: str | None = None
    max_nodes: int = flag(32, least=2, most=4096)
    max_depth: int = flag(8, least=1, most=256)


FLAGS = (
    {
        "options": flags_of(Tune),
        "options of --tree": flags_of(TuneTree) | NEW_TOKENS,
        "prompts": flags_of(Prompts),
    }
    | MODELS_TOGETHER
    | HOSTS
)
COMMON = ("tree", "layers", "lookahead", "auto", "model", "draft", "method", "prompts", "output", "json")


def run(args: argparse.Namespace) -> None:
    """Measures the target, prints the result, and writes it to ``--output``."""
    if args.tree + args.layers + args.lookahead + args.auto != 1:
        raise RequestError("give one of --tree, --layers, --lookahead and --auto")
    if args.anew and not args.auto:
        raise RequestError("--anew is for --auto; leave it out")
    check_output(args)
    args.batch = args.batch or (4 if args.auto else 1)
    tune = (
        _tune_tree if args.tree else _tune_layers if args.layers else _tune_lookahead if args.lookahead else _tune_auto
    )
    tune(args)


def _tune_auto(args: argparse.Namespace) -> None:
    from ..tools.tune import auto

    with status("loading"):
        target = load_target(args)
        drafts = load_given_drafts(args, target)
    with progress_bar("measuring") as progress:
        batches = auto.batches_up_to(args.batch)
        record = auto.tune_auto(target, drafts, file=args.output, batches=batches, anew=args.anew, progress=progress)
    if args.json:
        print(json.dumps(record))
    else:
        print_table(auto.table(record), [record["note"], f"{record['file']}; method auto reads it"])


def _prepare(args: argparse.Namespace) -> Callable:
    """Reads ``--prompts``, and returns a function from a loaded target to its prompts."""
    return prepare_conversations(args) if args.chat else prepare_prompts(args)


def _tune_layers(args: argparse.Namespace) -> None:
    from ..tools.tune import layers

    options = dict(longest=args.num_speculative_tokens or _LONGEST_DRAFT, budget=args.budget)
    _tune_settings(args, layers, layers.tune_layers, options)


def _tune_lookahead(args: argparse.Namespace) -> None:
    from ..tools.tune import lookahead

    if args.draft:
        raise RequestError("method 'lookahead' takes no draft; leave --draft out")
    options = dict(max_new_tokens=args.max_new_tokens, budget=args.budget or lookahead.BUDGET)
    _tune_settings(args, lookahead, lookahead.tune_lookahead, options)


def _tune_settings(args: argparse.Namespace, module, tune: Callable, options: dict) -> None:
    """Runs a search for the best settings, of which ``module`` writes the report."""
    from ..parallel import mesh_of, use_mesh

    texts = _prepare(args)
    with status("loading"):
        target = load_target(args)
    with status("preparing texts"):
        texts = texts(target)
    with progress_bar("tuning") as progress, use_mesh(mesh_of(target.model)):
        report = tune(target, texts, temperature=args.temperature, progress=progress, **options)
    write_output(args.output, module.toml(report))
    if args.json:
        print(json.dumps(report))
    else:
        print_table(module.table(report), filter(None, (report["note"], report["flags"])))


def _tune_tree(args: argparse.Namespace) -> None:
    from ..parallel import mesh_of, use_mesh
    from ..text.drafts import load_drafts
    from ..tools.tune import report as tune_report
    from ..tools.tune import tree as tune

    draft = next(iter(args.draft), None)
    names = ("temperature", "max_nodes", "max_depth", "max_new_tokens", "batch")
    settings = {name: getattr(args, name) for name in names}
    tune.check(args.method or "tree", draft, tune.TreeSettings(**settings))
    prompts = _prepare(args)
    with status("loading"):
        target = load_target(args)
        draft = next(iter(load_drafts(target, load_given_drafts(args, target)[:1])), None)
    with status("preparing prompts"):
        prompts = prompts(target)
    with status("measuring acceptance and cost"):
        with use_mesh(mesh_of(target.model)):
            report = tune.tune_tree(target, draft, prompts, method=args.method, **settings)
    write_output(args.output, tune_report.toml(report))
    if args.json:
        print(json.dumps(report))
        return
    print_table(tune_report.table(report), tune_report.notes(report))
    if args.output:
        print(f"now: {tune_report.command(report, args.output)}")
    else:
        print("give --output TREE.toml to keep the best tree")
