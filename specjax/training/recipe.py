"""Recipes: the options of a training, in TOML files and in frozen dataclasses of the same keys."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from ..core.checks import check_known, shorten, suggest
from ..core.read_files import read_toml
from ..errors import RequestError
from ..parallel import make_mesh, parse_mesh
from .kinds import KINDS, Shape
from .numbers import check_numbers, number
from .optimizers import Optimizer
from .sources import Source, make_sources

_WRITERS = ("", "target", "draft")


@dataclasses.dataclass(frozen=True)
class MeshShape:
    """The devices of a training. Its fields are the keys of [mesh].

    Attributes:
      data: the number of parts into which the windows of a batch are split.
      model: the number of parts into which the parameters are split.
    """

    data: int = number(1, 1, 10**5)
    model: int = number(1, 1, 10**5)

    @classmethod
    def parse(cls, text: str) -> "MeshShape":
        """The devices in a text such as "data=2,model=4". Raises RequestError for other axes."""
        sizes = parse_mesh(text)
        if "nodes" in sizes:
            raise RequestError(f"mesh {shorten(text)}: a training splits data and model only; leave nodes out")
        return cls(**sizes)

    def check_devices(self) -> None:
        """Raises RequestError where the mesh has more devices than there are."""
        devices = self.data * self.model
        present = jax.device_count()
        if devices > present:
            raise RequestError(
                f"the recipe's mesh needs {devices} devices and there are {present}; lower data or model in [mesh]"
            )

    def make(self) -> Mesh | None:
        """The mesh, or None for a single device."""
        return None if self.data == self.model == 1 else make_mesh(self.data, self.model)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The options of a training. The tables of a TOML file are its dataclasses.

    Attributes:
      kind: a name in ``kinds.KINDS``.
      head: the shape of the drafter, see ``Kind.shape``.
      loss: see ``Kind.loss``.
      optimizer, mesh: see their classes.
      model: the target, where the command names none.
      dtype: the type in which the drafter is computed; its parameters stay in float32.
      steps: the number of steps in all.
      batch: the number of windows in a step.
      length: the number of tokens in a window.
      seed: draws parameters, batches and the random parts of losses.
      every: the number of steps between checkpoints, each with a measurement of acceptance.
      prompts: the number of held-out prompts on which acceptance is measured; 0 for none.
      features: the most bytes of the target's features that are kept on disk, see
        ``kept_features``; 0 for none. For kind eagle3 on one device.
      data: the texts, where the command names none; empty for Python's standard library.
      on_policy: "target" or "draft", the model that writes the text: it continues beginnings of the
        data, and writes anew after each checkpoint (DistillSpec, 2310.08461). Empty for the data as
        it is.
      temperature: the temperature at which this model, or the target of kind "online", writes.
        Texts of temperature 0 make drafts of greedy decoding better.
    """

    kind: str
    head: Shape
    loss: Any
    optimizer: Optimizer = Optimizer()
    mesh: MeshShape = MeshShape()
    model: str = ""
    dtype: str = "float32"
    steps: int = number(600, 1, 10**8)
    batch: int = number(8, 1, 10**5)
    length: int = number(256, 1)
    seed: int = number(0, 0, 2**32 - 1)
    every: int = number(100, 1)
    prompts: int = number(16, 0, 10**5)
    features: int = number(0, 0, 10**15)
    data: tuple[Source, ...] = ()
    on_policy: str = ""
    temperature: float = number(1.0, 0, 100)

    def __post_init__(self):
        # 1. Numbers and sources.
        check_numbers(self)
        for name in ("head", "loss", "optimizer", "mesh"):
            check_numbers(vars(self)[name], f"[{name}] ")
        make_sources(self.data)
        # 2. The model that writes the text.
        if self.on_policy not in _WRITERS:
            raise RequestError(f"on_policy {shorten(self.on_policy)} is unknown; use target or draft")
        if self.on_policy == "draft" and KINDS[self.kind].is_head:
            raise RequestError(
                "on_policy 'draft' needs a drafter that writes text by itself; "
                f"use it for kind draft, and 'target' for {self.kind}"
            )
        if self.on_policy and KINDS[self.kind].records:
            raise RequestError("kind 'online' learns from text that the target writes anyway; leave on_policy out")
        if self.on_policy and KINDS[self.kind].reads_log:
            raise RequestError("on_policy writes text, and a log of rounds has its text; leave on_policy out")
        if self.temperature != 1 and not (self.on_policy or KINDS[self.kind].records):
            raise RequestError("temperature is that of a model that writes the text; add on_policy, or leave it out")
        # 3. Features on disk.
        if self.features and not KINDS[self.kind].keeps_features:
            raise RequestError(f"kind {self.kind!r} keeps no features of its windows; leave features out")
        if self.features and (self.on_policy or self.mesh != MeshShape()):
            raise RequestError("features are kept for texts of files on one device; leave on_policy and [mesh] out")
        # 4. The type, and the sizes of batches and windows.
        check_known("dtype", self.dtype, ("float32", "bfloat16"))
        if self.batch % self.mesh.data:
            raise RequestError(
                f"batch {self.batch} cannot be split over data = {self.mesh.data} devices; use a multiple"
            )
        modules = self.head.modules
        reach = self.head.reach(self.loss)
        if modules > reach:
            raise RequestError(
                f"[loss] steps = {reach} leaves out some of the {modules} modules; use {modules} or more"
            )
        if self.length <= reach:
            raise RequestError(
                f"length {self.length} is too short for a drafter that reaches {reach} tokens ahead; "
                f"{reach + 1} is the least"
            )


def read_recipe(name: str | Path, **changes) -> Recipe:
    """The recipe of a TOML file, or the default recipe of a kind.

    Args:
      name: the file or the kind.
      changes: top-level keys with other values; None leaves the recipe's value.

    Raises RequestError for an unreadable file, unknown keys and values that do not fit.
    """
    if str(name) in KINDS:
        table = {"kind": str(name)}
        where = f"recipe {name}"
    else:
        mend = f"give a kind ({', '.join(KINDS)}) or a TOML file" + suggest(str(name), KINDS)
        table = read_toml(name, f"recipe {shorten(str(name), 150)}", mend=mend)
        where = str(name)
    return make_recipe(table | {key: value for key, value in changes.items() if value is not None}, where)


def make_recipe(table: dict, where: str) -> Recipe:
    """The recipe of a parsed TOML file. ``where`` stands at the beginning of error messages.

    Raises RequestError for unknown keys and values that do not fit.
    """
    kind: Any = table.get("kind")
    check_known(f"{where}: kind", kind, KINDS)
    parts = {"head": KINDS[kind].shape, "loss": KINDS[kind].loss, "optimizer": Optimizer, "mesh": MeshShape}
    tables = {"optimizer": KINDS[kind].optimizer} | table
    options = {name: _make(part, tables.get(name, {}), f"{where}: [{name}]") for name, part in parts.items()}
    return _make(Recipe, {"kind": kind} | table | options | {"data": _make_sources(table, where)}, where)


def _make_sources(table: dict, where: str) -> tuple[Source, ...]:
    tables = table.get("data", ())
    if not isinstance(tables, list | tuple):
        raise RequestError(f"{where}: [[data]] must be a list of tables, not {shorten(tables)}")
    return tuple(entry if isinstance(entry, Source) else _make(Source, entry, f"{where}: [[data]]") for entry in tables)


def _make(options: type, table: Any, where: str):
    """A dataclass made from a table of its fields. ``where`` begins error messages."""
    if not isinstance(table, dict):
        raise RequestError(f"{where} must be a table, not {shorten(table)}")
    fields = {field.name: field for field in dataclasses.fields(options)}
    for key, value in table.items():
        check_known(f"{where}: key", key, fields)
        name, fits = _TYPES.get(fields[key].type, ("", lambda value: True))
        if not fits(value):
            raise RequestError(f"{where}: {key} = {shorten(value)} is not {name}")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    try:
        return options(**values)
    except RequestError as error:
        raise RequestError(f"{where}: {error}") from None


def _is_whole(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_TYPES = {
    int: ("a whole number", _is_whole),
    float: ("a number", lambda value: _is_whole(value) or isinstance(value, float)),
    bool: ("true or false", lambda value: isinstance(value, bool)),
    float | None: ("a number", lambda value: _is_whole(value) or isinstance(value, float)),
    str: ("a string", lambda value: isinstance(value, str)),
    tuple[int, ...]: (
        "a list of whole numbers",
        lambda value: isinstance(value, list | tuple) and all(map(_is_whole, value)),
    ),
}
"""The name of each type of a field in messages, and a test of a value."""
