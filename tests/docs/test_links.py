"""Pages of the documentation: links lead somewhere, commands parse, Python compiles."""

import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from specjax.cli.main import make_parser

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "specjax" / "checkpoints" / "zoo").glob("*/README.md")),
]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
WEB = re.compile(r"[a-z]+:")
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.M | re.S)
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def without_code(text: str) -> str:
    """The text without code, whose brackets are no links and whose ``#`` is no heading."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


def links(text: str) -> list[str]:
    return [link for link in LINK.findall(without_code(text)) if not WEB.match(link)]


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs name them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.M)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower() for heading in headings]
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading)) for heading in plain}


def broken(page: Path, text: str) -> list[str]:
    """The links of ``page`` that name no file, or no heading of the file."""
    found = []
    for link in links(text):
        path, _, anchor = link.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or anchor and anchor not in anchors(file):
            found.append(link)
    return found


def blocks(text: str, *languages: str) -> list[str]:
    return [code for language, code in FENCE.findall(text) if language in languages]


def commands(text: str) -> list[str]:
    """The lines of shell blocks that call ``specjax``, with continued lines joined."""
    shell = "\n".join(blocks(text, "bash", "sh", "console")).replace("\\\n", " ")
    return [line.strip() for line in shell.splitlines() if line.strip().startswith("specjax ")]


def arguments(command: str) -> list[str]:
    """The words of a command up to a pipe or a redirection. ``$'\\n'`` of bash is read as a quoted string."""
    words = shlex.split(command.replace("$'", "'"), comments=True)
    end = next((i for i, word in enumerate(words) if word in ("|", ">", "2>", "&&", ";")), len(words))
    return words[1:end]


@each_page
def test_links_lead_to_files_and_headings(page):
    assert broken(page, page.read_text()) == []


@each_page
def test_commands_parse(page):
    for command in commands(page.read_text()):
        make_parser().parse_args(arguments(command))  # an error ends in SystemExit


@each_page
def test_python_compiles(page):
    for i, code in enumerate(blocks(page.read_text(), "python", "py")):
        compile(code, f"{page.name}, block {i}", "exec")


def test_the_checks_find_faults(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One two\n[a](page.md#one-two) [b](page.md#three) [c](gone.md) `[d](gone.md)` [e](https://f.g)\n")
    assert broken(page, page.read_text()) == ["page.md#three", "gone.md"]
    text = "```bash\nspecjax generate --prompt 'a b' \\\n    --no-such-flag  # comment\n```\n"
    (command,) = commands(text)
    assert arguments(command) == ["generate", "--prompt", "a b", "--no-such-flag"]
    with pytest.raises(SystemExit):
        make_parser().parse_args(arguments(command))


def test_pages_contain_links_commands_and_python():
    """The patterns above match something: an empty list of commands would pass every test."""
    texts = [page.read_text() for page in PAGES]
    assert sum(len(links(text)) for text in texts) > 40
    assert sum(len(commands(text)) for text in texts) > 10
    assert sum(len(blocks(text, "python")) for text in texts) > 5


def test_modules_of_the_reference_exist():
    pages = sorted((ROOT / "docs" / "api").glob("*.md"))
    modules = [name for page in pages for name in re.findall(r"^::: (\S+)", page.read_text(), re.M)]
    assert len(modules) > 40
    for module in modules:
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__init__.py").exists(), module


def test_index_lists_every_page():
    linked = {
        (ROOT / "docs" / link.partition("#")[0]).resolve() for link in links((ROOT / "docs" / "index.md").read_text())
    }
    assert {page.resolve() for page in (ROOT / "docs").glob("*.md")} - {ROOT / "docs" / "index.md"} <= linked
