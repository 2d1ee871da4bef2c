"""Runs the README's first command, and shows its output there as a picture and as text.

    python scripts/docs/draw_demo.py        writes docs/pictures/demo.svg and the block `demo` of README.md

The command runs in a pseudo-terminal, so that the picture has the colours of a terminal: accepted drafts
are green. Its figures go to stderr and are left out. The picture has no fonts from elsewhere.
"""

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
PICTURE, README = ROOT / "docs" / "pictures" / "demo.svg", ROOT / "README.md"
COMMAND = ["generate", "--draft", "tiny-python-draft", "--prompt", "def find_files(directory):", "--stop", "\n\n\n"]
COLUMNS = 68

SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px;
  line-height: {line_height}px; font-variant-east-asian: full-width; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>{lines}</defs>
<rect fill="#292929" width="{width}" height="{height}" rx="8"/>
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


def main() -> None:
    text = Text.from_ansi(run_in_terminal([sys.executable, "-m", "specjax", *COMMAND, "--stream"]))
    text.rstrip()
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(text, soft_wrap=True)
    PICTURE.write_text(console.export_svg(code_format=SVG, unique_id="demo"))
    block = f"<!-- demo -->\n```\n{text.plain}\n```\n<!-- end of demo -->"
    readme, count = re.subn(
        "<!-- demo -->.*?<!-- end of demo -->", lambda _: block, README.read_text(), flags=re.DOTALL
    )
    if not count:
        raise SystemExit("README.md has no block between <!-- demo --> and <!-- end of demo -->")
    README.write_text(readme)


def run_in_terminal(command: list[str]) -> str:
    """What a command writes on a terminal, without its standard error. Raises CalledProcessError."""
    master, slave = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"}
    process = subprocess.Popen(command, cwd=ROOT, stdout=slave, stderr=subprocess.DEVNULL, env=environment)
    os.close(slave)
    output = b""
    try:
        while piece := os.read(master, 65536):
            output += piece
    except OSError:  # the terminal's last writer has gone
        pass
    if process.wait():
        raise subprocess.CalledProcessError(process.returncode, command, output)
    return output.decode().replace("\r\n", "\n")


if __name__ == "__main__":
    main()
