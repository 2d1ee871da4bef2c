"""Runs `scripts/demo.sh` and shows its output in the README, as a picture and as text.

    python scripts/docs/draw_demo.py        writes docs/pictures/demo.svg and the block `demo` of README.md

The set-up runs before, outside the picture. The script runs in a pseudo-terminal, so that the picture has
the colours of a terminal: accepted drafts are green. The picture has no fonts from elsewhere.
"""

import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
PICTURE, README = ROOT / "docs" / "pictures" / "demo.svg", ROOT / "README.md"
COLUMNS = 118

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
    subprocess.run(["bash", "scripts/setup.sh"], cwd=ROOT, check=True)  # pip's words stay out of the picture
    shown = run_in_terminal(["bash", "scripts/demo.sh"])
    text = Text.from_ansi(shown.replace("\r\n", "\n"))
    text.rstrip()
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(text, soft_wrap=True)
    PICTURE.write_text(console.export_svg(code_format=SVG, unique_id="demo"))
    block = f"<!-- demo -->\n```\n{text.plain}\n```\n<!-- end of demo -->"
    readme, found = re.subn(
        r"<!-- demo -->.*?<!-- end of demo -->", lambda _: block, README.read_text(), flags=re.DOTALL
    )
    if not found:
        raise SystemExit("README.md has no block between <!-- demo --> and <!-- end of demo -->")
    README.write_text(readme)


def run_in_terminal(command: list[str]) -> str:
    """What a command writes on a terminal of ``COLUMNS`` columns.

    Its standard error is a pipe, so that it draws no bars. Raises CalledProcessError.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"}
    process = subprocess.Popen(command, cwd=ROOT, stdout=slave, stderr=subprocess.PIPE, env=environment)
    os.close(slave)
    output, open_files = b"", [master, process.stderr.fileno()]
    while open_files:
        for file in select.select(open_files, [], [])[0]:
            try:
                piece = os.read(file, 65536)
            except OSError:  # the terminal's last writer has gone
                piece = b""
            output += piece
            if not piece:
                open_files.remove(file)
    if process.wait():
        raise subprocess.CalledProcessError(process.returncode, command, output)
    return output.decode()


if __name__ == "__main__":
    main()
