"""A boosted model: a target with the drafter, the method and the options that were chosen for it.

``specjax boost`` writes the directory.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from ..checkpoints.load import load
from ..core.checks import check_known
from ..core.read_files import read_toml
from ..drafters import check_options, split_methods
from ..errors import RequestError
from .generator import Generator

FILE = "boost.toml"
"""The file in the directory of a boost that names the target, the drafter and the method."""


LOADING = "dtype", "quantize", "revision"
"""The arguments of ``load`` that ``boost.toml`` may have."""


@dataclasses.dataclass(frozen=True)
class Boosted:
    """The choice of a boost. Its fields are the keys of ``boost.toml``.

    Attributes:
      model: the name, the file or the directory of the target.
      method: a name in ``drafters.METHODS``.
      draft: the directory of the drafter, relative to that of ``boost.toml``; "" for none.
      options: options of the method.
      loading: arguments of ``load`` for the target, of the names in ``LOADING``.
    """

    model: str
    method: str
    draft: str = ""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    loading: dict[str, str] = dataclasses.field(default_factory=dict)

    def write(self, directory: Path) -> None:
        """Writes ``boost.toml``."""
        fields = dataclasses.asdict(self)
        tables = {name: fields.pop(name) for name in ("options", "loading")}
        lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
        for table, values in tables.items():
            lines += ["", f"[{table}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items())]
        (directory / FILE).write_text("\n".join(lines) + "\n")


def read_boosted(directory: str | Path) -> Boosted:
    """The choice in a directory of ``specjax boost``. Paths in it are absolute.

    Raises RequestError for a directory without ``boost.toml``, for other keys, and for options that
    the method does not take.
    """
    directory = Path(directory)
    file = directory / FILE
    table = read_toml(file, f"boost {file}", mend="name a directory that specjax boost has finished")
    known = {field.name: field.type for field in dataclasses.fields(Boosted)}
    for name, value in table.items():
        check_known(f"{file}: key", name, known)
        is_table = name in ("options", "loading")
        if not isinstance(value, dict if is_table else str):
            raise RequestError(f"{file}: {name} must be a {'table' if is_table else 'string'}")
    for name in ("model", "method"):
        if not table.get(name):
            raise RequestError(f"{file}: {name} is missing; run specjax boost again")
    for name, value in table.get("loading", {}).items():
        if name not in LOADING or not isinstance(value, str):
            raise RequestError(f"{file}: [loading] has strings of the names {', '.join(LOADING)}, not {name!r}")
    split_methods(table["method"])
    check_options(table["method"], table.get("options", {}))
    boosted = Boosted(**table)
    options = dict(boosted.options)
    if "costs" in options:
        options["costs"] = str(directory / options["costs"])
    draft = str(directory / boosted.draft) if boosted.draft else ""
    return dataclasses.replace(boosted, draft=draft, options=options)


def load_boosted(directory: str | Path, model: str | None = None, **changes) -> Generator:
    """A generator with the target, the drafter and the method of a directory of ``specjax boost``.

    Args:
      model: the target, where it is no longer in its place; by default that of ``boost.toml``.
      changes: arguments of ``load``, such as dtype or mesh.

    Raises the errors of ``read_boosted``, ``load`` and ``Generator``.
    """
    boosted = read_boosted(directory)
    loading: dict[str, Any] = boosted.loading | changes
    target = load(model or boosted.model, **loading)
    return Generator(target, boosted.method, boosted.draft or None, **boosted.options)
