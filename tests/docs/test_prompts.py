"""The texts that a newcomer meets first: the README's prompts, continued by the embedded model (second tier)."""

import re
from pathlib import Path

import pytest

import specjax

ROOT = Path(__file__).parents[2]
PROMPTS = sorted({
    prompt
    for page in ("README.md", "docs/start.md", "docs/index.md")
    for prompt in re.findall(r'"(def [^"\\]*:)(?:\\n)?"', (ROOT / page).read_text())
})  # fmt: skip


@pytest.mark.slow
def test_the_texts_of_the_first_pages_hardly_repeat_a_line():
    assert len(PROMPTS) >= 4
    generator = specjax.Generator("tiny-python", "none")
    for result in generator(PROMPTS, max_new_tokens=64, stop="\n\n\n"):
        lines = [line.strip() for line in result.text.splitlines() if line.strip()]
        assert len(lines) >= 2 and len(lines) - len(set(lines)) <= 1, result.text
