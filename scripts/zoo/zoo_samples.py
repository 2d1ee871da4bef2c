"""Prints ten samples of the embedded model at temperature 0.8, and counts those that are Python.

    python scripts/zoo/zoo_samples.py [MODEL]

A sample is a beginning and its continuation, 20 lines together, cut after the last complete
statement. It counts if at least ten lines are left and parse. The exit code is 1 if fewer than six
samples count.
"""

import ast
import sys
import warnings

import specjax

BEGINNINGS = (
    "import os\nimport sys\n\n\ndef main():",
    '"""Read and write configuration files."""\n\nimport os\nimport re',
    'import os\n\n\nclass Stack:\n    """A stack of items."""\n\n    def __init__(self):',
    'import io\n\n\ndef read_lines(path):\n    """Return the lines of a file."""',
    "from collections import namedtuple",
    "class HTTPServer(BaseServer):\n    def __init__(self",
    'import re\n\n\ndef _parse(text, *, strict=False):\n    """Parse a text."""',
    "class Error(Exception):",
    "import unittest\n\n\nclass TestStack(unittest.TestCase):\n    def setUp(self):",
    'def _fixup(self, name, value):\n    """Set the value of an option."""',
)
"""They end where a token ends: a line end belongs to the token of the next line's indentation."""

LINES, LEAST, ENOUGH, TOKENS = 20, 10, 6, 400


def main() -> int:
    model = specjax.load(sys.argv[1] if len(sys.argv) > 1 else "tiny-python")
    generator = specjax.Generator(model, "none")
    results = generator(list(BEGINNINGS), max_new_tokens=TOKENS, temperature=0.8, seed=list(range(len(BEGINNINGS))))
    whole = [beginning + result.text for beginning, result in zip(BEGINNINGS, results)]
    texts = [whole_statements("\n".join(text.split("\n")[:LINES])) for text in whole]
    good = [len(text.split("\n")) >= LEAST for text in texts]
    for text, is_good in zip(texts, good):
        print(f"# {'-' * 60} {'parses' if is_good else 'does not parse, or is short'}\n{text}\n")
    print(f"{sum(good)} of {len(good)} parse with {LEAST} lines or more")
    return int(sum(good) < ENOUGH)


def whole_statements(text: str) -> str:
    """The longest beginning of the text, in whole lines, that parses."""
    lines = text.rstrip().split("\n")
    while lines and not parses("\n".join(lines)):
        lines.pop()
    return "\n".join(lines).rstrip()


def parses(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of unknown escapes in strings.
            ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
