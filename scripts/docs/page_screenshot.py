"""Takes the picture of the server's page: docs/pictures/serve_page.png.

    python scripts/docs/page_screenshot.py

Needs playwright and Chromium.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).parents[2] / "docs/pictures/serve_page.png"
SERVE = "serve --model tiny-python --draft tiny-python-draft --slots 2 --capacity 512 --port 0"


def main():
    server = subprocess.Popen([sys.executable, "-m", "specjax", *SERVE.split()], stderr=subprocess.PIPE, text=True)
    try:
        while not (found := re.search(r"http://\S+(?=/v1)", server.stderr.readline())):
            if server.poll() is not None:
                sys.exit("the server did not start")
        take(found[0])
    finally:
        server.terminate()


def take(url: str) -> None:
    """Writes the picture of the page after a text."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 960, "height": 900})
        page.goto(url)
        page.click("#run")
        page.wait_for_selector("#run:not([disabled])", timeout=60_000)
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
