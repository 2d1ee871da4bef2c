"""Writes the table of model families into docs/models.md, from the registry of families.

python scripts/docs/models_page.py
"""

import re
from pathlib import Path

from specjax.checkpoints.families import FAMILIES, WITH_TEXT, Family

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"
HEADER = "| `model_type` | checkpoints | published drafters | refused, besides options that are not listed |\n|---|---|---|---|"
BETWEEN = re.compile(r"(<!-- families -->\n).*(<!-- end -->)", re.S)


def main():
    PAGE.write_text(BETWEEN.sub(lambda match: f"{match[1]}{table()}\n{match[2]}", PAGE.read_text()))


def table() -> str:
    """The table of all families."""
    return "\n".join([HEADER, *map(row, FAMILIES.values())])


def row(family: Family) -> str:
    outside = [name for name, inner in WITH_TEXT.items() if inner == family.model_type]
    names = ", ".join(f"`{name}`" for name in (family.model_type, *outside))
    return f"| {names} | {family.checkpoints} | {family.drafters or '-'} | {family.refused or '-'} |"


if __name__ == "__main__":
    main()
