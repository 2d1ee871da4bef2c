"""Numbers in recipes, each declared with its smallest and largest value."""

import dataclasses
from typing import Any

from ..errors import RequestError


def number(default: float, least: float = 0, most: float = float("inf")) -> Any:
    """A dataclass field for a number from ``least`` to ``most``."""
    return dataclasses.field(default=default, metadata={"least": least, "most": most})


def check_numbers(options: Any, where: str = "") -> None:
    """Raises RequestError for a number of the dataclass ``options`` that is too small or too large.

    A field that is not declared by ``number`` starts at 0 and has no largest value. ``where``
    stands before the name of the field in the message.
    """
    for field in dataclasses.fields(options):
        value = vars(options)[field.name]
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        least = field.metadata.get("least", 0)
        most = field.metadata.get("most", float("inf"))
        if not value >= least:  # This refuses nan, too.
            raise RequestError(f"{where}{field.name} {value} is too small; {least} is the least")
        if value > most:
            raise RequestError(f"{where}{field.name} {value} is too large; {most} is the most")
