"""The settings of a plan by name, from a TOML file or the command line, and the planned drafter."""

import os
from collections.abc import Mapping
from pathlib import Path

from ...checkpoints.config import read_shape
from ...checkpoints.weight_bytes import stored_bytes
from ...core.checks import check_known, field_names, shorten
from ...core.read_files import read_toml
from ...drafters import check_drafts, check_options, default_method, make_drafter, needs_of
from ...errors import RequestError
from ...heads import KINDS
from ...loop.drafter import Drafter, Models, TrainedHead
from ...models.config import ModelConfig
from ...parallel import AXES
from .plan import PlanSettings, plan

KEYS = {
    "model": str,
    "draft": list,
    "method": str,
    "device": str,
    "mesh": dict,
    "batch": int,
    "max_length": int,
    "dtype": str,
    "quantize": str,
    "draft_quantize": str,
    "offload": bool,
    "options": dict,
}
"""The settings and their types. ``options`` are the options of the method."""

_WORDS = {str: "a string", list: "a list of strings", int: "a whole number", dict: "a table", bool: "true or false"}


def read_settings(path: str | Path) -> dict:
    """The settings in a TOML file. Models are named relative to the file.

    Raises RequestError for a file that is not readable, an unknown key, and a value of another
    type.
    """
    path = Path(os.path.expanduser(path))
    table = read_toml(path, str(path), mend="name a TOML file such as those in configs/plans/")
    for key, value in table.items():
        check_known(f"{path}: key", key, KEYS)
        if type(value) is not KEYS[key] or isinstance(value, list) and not all(isinstance(x, str) for x in value):
            raise RequestError(f"{path}: {key} = {shorten(value)} must be {_WORDS[KEYS[key]]}")
    if unknown := table.get("mesh", {}).keys() - set(AXES):
        raise RequestError(f"{path}: mesh axis {shorten(min(unknown))} is unknown; use {', '.join(AXES)}")

    def beside(name: str) -> str:
        return str(path.parent / name) if os.path.exists(path.parent / name) else name

    if "model" in table:
        table["model"] = beside(table["model"])
    if "draft" in table:
        table["draft"] = [beside(name) for name in table["draft"]]
    return table


def make_plan(settings: Mapping) -> dict:
    """The plan for settings with the names of ``KEYS``; see ``plan.plan.plan``.

    The plan also names ``model``, ``draft`` and ``method``, and has ``stored_weight_bytes``, see
    ``checkpoints.weight_bytes``. By default the method is draft_model with a draft, and none
    without.

    Raises RequestError for settings that are missing or do not fit, CheckpointError for a
    configuration that is not found, and ConfigError for a model that is not supported.
    """
    for key in ("model", "device"):
        if key not in settings:
            raise RequestError(f"no {key} is named; use --{key}, or --config with a TOML file that names it")
    # 1. The method, its options and the number of its drafts.
    drafts = settings.get("draft", [])
    options = settings.get("options", {})
    method = settings.get("method") or default_method(drafts)
    check_options(method, options)
    check_drafts(method, len(drafts))
    needs = needs_of(method)
    most = needs.most if isinstance(needs, Models) else 0
    if most is not None and len(drafts) > most:
        raise RequestError(f"method {method!r} takes {most or 'no'} draft, and {len(drafts)} are named; leave some out")
    # 2. The configurations, and the drafter.
    target, *shapes = (read_shape(name) for name in (settings["model"], *drafts))
    for name, shape in zip(drafts, shapes):
        if shape.vocab_size != target.vocab_size:
            raise RequestError(
                f"{name} has a vocabulary of {shape.vocab_size} tokens and the target one of {target.vocab_size}; "
                "plan with a draft of the same vocabulary"
            )
    drafter = make_planned_drafter(method, target, options)
    drafter.check(target)
    # 3. The plan.
    plan_settings = {key: settings[key] for key in field_names(PlanSettings) if key in settings}
    dtype = PlanSettings(**plan_settings).dtype
    named = {"model": settings["model"], "draft": list(drafts), "method": method}
    stored = stored_bytes(settings["model"], dtype)
    return named | {"stored_weight_bytes": stored} | plan(target, drafter, shapes, **plan_settings)


def make_planned_drafter(method: str, target: ModelConfig, drafting: dict) -> Drafter:
    """The drafter of a method; a method with a trained head gets a head of the usual shape.

    ``drafting``: the method's options.

    Raises RequestError as ``make_drafter`` does.
    """
    needs = needs_of(method)
    head = None
    if isinstance(needs, TrainedHead):
        head = KINDS[needs.kind].usual(target, target.with_layers([0]).like_llama())
    return make_drafter(method, head=head, **drafting)
