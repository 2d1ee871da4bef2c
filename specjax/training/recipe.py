"""Recipes: what to train and how, as TOML files and as frozen dataclasses of the same keys."""

import dataclasses
import difflib
import tomllib
from pathlib import Path
from typing import Any

from ..errors import RequestError
from .kinds import KINDS
from .optimizers import Optimizer

_DATA = ("", "target", "draft")


@dataclasses.dataclass(frozen=True)
class MeshShape:
    """Devices: windows of a batch are split over ``data``, parameters over ``model``."""

    data: int = 1
    model: int = 1


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What to train and how; the tables of a TOML file are its dataclasses.

    Attributes:
      kind: one of ``kinds.KINDS``.
      head, loss: its shape and its loss, see ``kinds``.
      optimizer, mesh: see there.
      model: the target, where the command names none.
      dtype: in which the drafter is computed; its parameters stay in float32.
      steps: in all.
      batch, length: windows of a step, and the tokens of each.
      seed: of parameters, batches and whatever else is random.
      every: steps between checkpoints, and between measurements of acceptance.
      prompts: how many held-out prompts to measure acceptance on; 0 for none.
      on_policy: who writes the text, anew after each checkpoint, from beginnings in the data: "target", or "draft", the drafter itself
        (DistillSpec); by default the data is taken as it is.
    """

    kind: str
    head: Any
    loss: Any
    optimizer: Optimizer = Optimizer()
    mesh: MeshShape = MeshShape()
    model: str = ""
    dtype: str = "float32"
    steps: int = 600
    batch: int = 8
    length: int = 256
    seed: int = 0
    every: int = 100
    prompts: int = 16
    on_policy: str = ""

    def __post_init__(self):
        for name, part in {"": self, "head": self.head, "loss": self.loss, "optimizer": self.optimizer, "mesh": self.mesh}.items():
            _check_range(part, f"[{name}] " if name else "", _MOST[name])
        if self.on_policy not in _DATA:
            raise RequestError(f"on_policy {self.on_policy!r} is unknown; use target or draft")
        if self.on_policy == "draft" and self.kind != "draft":
            raise RequestError(
                f"on_policy 'draft' needs a drafter that writes text by itself; use it for kind draft, and 'target' for {self.kind}"
            )
        if self.dtype not in ("float32", "bfloat16"):
            raise RequestError(f"dtype {self.dtype!r} is unknown; use float32 or bfloat16")
        if self.mesh.data < 1 or self.mesh.model < 1 or self.batch % self.mesh.data:
            raise RequestError(f"batch {self.batch} cannot be split over data = {self.mesh.data} devices; use a multiple")
        modules = self.head.modules
        if modules > self.reach:
            raise RequestError(f"[loss] steps = {self.reach} leaves out some of the {modules} modules; use {modules} or more")
        if self.length <= self.reach:
            raise RequestError(f"length {self.length} is too short for a drafter that reaches {self.reach} tokens ahead; use a longer one")

    @property
    def reach(self) -> int:
        """How many tokens ahead the loss looks."""
        return self.head.reach(self.loss)


def read_recipe(name: str | Path, **changes) -> Recipe:
    """The recipe of a kind, with its defaults, or of a TOML file, with the top-level ``changes`` that are not None.

    Raises RequestError for a file that cannot be read, unknown keys and values that do not fit, by their names.
    """
    if str(name) in KINDS:
        table, where = {"kind": str(name)}, f"recipe {name}"
    else:
        table, where = _toml(Path(name)), str(name)
    return recipe_of(table | {key: value for key, value in changes.items() if value is not None}, where)


def recipe_of(table: dict, where: str) -> Recipe:
    """The recipe of a parsed TOML file."""
    kind = table.get("kind")
    if kind not in KINDS:
        raise RequestError(f"{where}: kind {kind!r} is unknown; use one of {', '.join(KINDS)}" + _near(str(kind), KINDS))
    parts = {"head": KINDS[kind].shape, "loss": KINDS[kind].loss, "optimizer": Optimizer, "mesh": MeshShape}
    made = {name: _made(made_of, table.get(name, {}), f"{where}: [{name}]") for name, made_of in parts.items()}
    return _made(Recipe, {"kind": kind} | table | made, where)


_MOST = {
    "": {"steps": 10**8, "batch": 10**5, "seed": 2**32 - 1, "prompts": 10**5},
    "head": {
        "num_heads": 256,
        "num_layers": 256,
        "modules": 64,
        "num_taps": 256,
        "block_size": 1024,
        "markov_rank": 10**5,
        "hidden_size": 10**5,
    },
    "loss": {"steps": 64, "decay": 1.0, "teacher": 1.0, "anchors": 10**6},
    "optimizer": {"rate": 10.0},
    "mesh": {"data": 10**5, "model": 10**5},
}
"""The largest numbers, by table: beyond them nothing sensible can be meant, and memory or time would run out without a word."""

_LEAST = {"prompts": 0, "warmup": 0}
"""The smallest ones, where they are not 1, or the default if that is less."""


def _check_range(part: Any, where: str, most: dict) -> None:
    """Raises RequestError for a number that is too small or too large, by its name."""
    for field in dataclasses.fields(part):
        value, name = getattr(part, field.name), where + field.name
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        least = _LEAST.get(field.name, min(field.default, 1) if field.type is int else 0)
        if not value >= least:  # nor is "not a number"
            raise RequestError(f"{name} {value} is too small; {least} is the least")
        if value > most.get(field.name, float("inf")):
            raise RequestError(f"{name} {value} is too large; {most[field.name]} is the most")


def _made(made_of: type, table: Any, where: str):
    """A dataclass from a table of its fields."""
    if dataclasses.is_dataclass(table):
        return table
    if not isinstance(table, dict):
        raise RequestError(f"{where} must be a table, not {table!r}")
    fields = {field.name: field for field in dataclasses.fields(made_of)}
    for key, value in table.items():
        if key not in fields:
            raise RequestError(f"{where}: key {key!r} is unknown" + (_near(key, fields) or f"; use {', '.join(fields)}"))
        if not _fits(value, fields[key].type):
            raise RequestError(f"{where}: {key} = {value!r} is not {_NAMES[fields[key].type]}")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    try:
        return made_of(**values)
    except RequestError as error:
        raise RequestError(f"{where}: {error}") from None


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", tuple[int, ...]: "a list of whole numbers"}


def _fits(value, kind) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == tuple[int, ...]:
        return isinstance(value, list | tuple) and all(_fits(x, int) for x in value)
    return not isinstance(kind, type) or kind not in _NAMES or isinstance(value, kind)


def _near(key: str, names) -> str:
    near = difflib.get_close_matches(key, list(names), 1)
    return f"; did you mean {near[0]}?" if near else ""


def _toml(path: Path) -> dict:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RequestError(
            f"no recipe {str(path)!r}: neither a kind ({', '.join(KINDS)}) nor a TOML file" + _near(str(path), KINDS)
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RequestError(f"{path}: not readable as TOML ({error})") from None
