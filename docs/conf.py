"""The documentation site: `make docs`."""

import os
import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

import adan

ROOT = Path(__file__).resolve().parent.parent
SOURCE = re.search(r'^Source = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)[1]

project = "adan"
copyright = "the contributors of adan"
version = release = adan.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
default_role = "code"
smartquotes_action = "qe"  # not D: --steps keeps its hyphens
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
html_theme = "furo"
html_static_path, html_css_files = ["_static"], ["pages.css"]
html_title = f"adan {release}"
html_theme_options = {"source_repository": SOURCE, "source_branch": "main", "source_directory": "docs/"}


def links(text: str, folder: Path) -> str:
    """Markdown of a folder for the site: pages stay pages, all other links into the repository become its address."""

    def link(match: re.Match[str]) -> str:
        path, anchor = match[2], match[3] or ""
        target = (folder / path).resolve()
        if not target.exists():
            logging.getLogger(__name__).warning("%s links to %s, which does not exist", folder, path)
        if target.is_relative_to(ROOT / "docs") or match[1].startswith("!"):
            return f"{match[1]}{os.path.relpath(target, ROOT / 'docs')}{anchor})"
        return f"{match[1]}{SOURCE}/blob/main/{target.relative_to(ROOT)}{anchor})"

    return re.sub(r"(!?\[[^]]*\]\()(?!https?:)([^)#\s]+)(#[^)]*)?\)", link, text)


def read(app: Sphinx, name: str, content: list[str]) -> None:
    text = links(content[0], ROOT / "docs")
    content[0] = re.sub(r" (?=±|ms\b)|(?<=±) ", "\u00a0", text)  # no line ends before ± or a unit
    if name == "index":  # the home page is the README, then the table of contents
        app.env.note_dependency(ROOT / "README.md")
        content[0] = links((ROOT / "README.md").read_text(encoding="utf-8"), ROOT) + content[0]


def setup(app: Sphinx) -> None:
    app.connect("source-read", read)
