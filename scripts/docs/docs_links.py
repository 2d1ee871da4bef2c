"""A hook of mkdocs, which turns links to files outside docs/ into links to the repository."""

import posixpath
import re

_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")


def on_page_markdown(markdown: str, page, config, **_) -> str:
    """The page's text with such links replaced. mkdocs checks the links between pages."""
    folder = posixpath.dirname(page.file.src_uri)

    def replace(match: re.Match) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, match[1]))
        inside = path == "docs" or path.startswith("docs/")
        return match[1] if inside else f"{config['repo_url']}/blob/main/{path}"

    return _LINK.sub(replace, markdown)
