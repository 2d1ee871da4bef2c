"""Pages of results have one form, and those of embedded models were measured with the models that are embedded now."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts" / "benchmarks"))

from page import PAGES, ZOO, hash_of  # noqa: E402

MOST_PAGES = 24
EMBEDDED = sorted(folder.name for folder in ZOO.iterdir() if folder.is_dir())
MODEL = re.compile(r"((?:tiny-python|smollm2)[\w-]*) `([0-9a-f]{12})`")
WITHOUT_WEIGHTS = ("random weights", "none, shapes alone", "the shape of ")
"""How a page begins its line of models if its figures do not depend on the numbers of weights."""

each_page = pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)


def lines(page: Path, word: str) -> list[str]:
    """The conditions of this name, one for each measurement of the page."""
    return re.findall(rf"^- {word}: (.+)$", page.read_text(), re.M)


def test_results_are_few_pages_without_data():
    assert len(list(PAGES.glob("*.md"))) <= MOST_PAGES
    assert list((ROOT / "docs").rglob("*.json")) == []


@each_page
def test_a_page_has_the_form(page):
    """Title, question, conditions of each measurement, tables, and what follows for a user."""
    text = page.read_text()
    assert re.match(r"# .+\n\n.+\?\n", text)
    assert re.search(r"^## For the user\n\n- ", text, re.M) and "\n| --- |" in text
    counts = {word: len(lines(page, word)) for word in ("Command", "Machine", "Measured", "Models")}
    assert len(set(counts.values())) == 1 and min(counts.values()) > 0, counts
    for command in lines(page, "Command"):
        assert (ROOT / command.strip("`").split()[1]).exists()
    for when in lines(page, "Measured"):
        assert re.fullmatch(r"\d{4}-\d\d-\d\d, commit [0-9a-f]{7,40}", when)


@each_page
def test_a_page_measured_the_models_that_are_embedded_now(page):
    """Other models, such as grown ones, are named by the embedded ones that they came from."""
    for line in lines(page, "Models"):
        if line.startswith(WITHOUT_WEIGHTS):
            continue
        models = dict(MODEL.findall(line))
        assert models.keys() & set(EMBEDDED), "name the embedded models with the hashes of their weights"
        assert models == {name: hash_of(name) for name in models}, "measure this page again, or take it out"


def test_another_hash_is_noticed():
    assert dict(MODEL.findall("tiny-python `0123456789ab`, tiny-python-draft `160ccd21246f`; bfloat16")) == {
        "tiny-python": "0123456789ab",
        "tiny-python-draft": "160ccd21246f",
    }
    assert hash_of("tiny-python") != "0123456789ab"
