"""The pages of the documentation's site that are not in docs/: hooks of mkdocs, named in mkdocs.yml.

The README is the first page; SECURITY.md, CONTRIBUTING.md and CHANGELOG.md are pages, and so is each method, from its
entry in the registry.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from cli.method_page import as_page
from server.methods import METHODS

ROOT = Path(__file__).parents[1]
_PAGES = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
_LINK = re.compile(r"\[(?P<words>[^\]]*)\]\((?P<target>[^)\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put one page for each method in the place of `methods/*.md`."""
    assert config.nav is not None
    for entry in config.nav:
        pages = entry.get("Methods")
        if pages:
            pages[1:] = [{name: f"methods/{name}.md"} for name in sorted(METHODS)]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are made of other files."""
    for name, page in _PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    for method in METHODS.values():
        files.append(File.generated(config, f"methods/{method.name}.md", content=as_page(method)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to pages; of a file that is only in the repository the name is left."""

    def followed(match: re.Match[str]) -> str:
        words, target = match["words"], match["target"]
        path, mark, anchor = target.partition("#")
        if target.startswith(("https:", "http:", "#")):
            return match[0]
        place = _PAGES.get(path.removeprefix("../"), path.removeprefix("docs/"))
        outside = place.startswith("../") and not page.file.src_uri.startswith("methods/")
        return words if outside else f"[{words}]({place}{mark}{anchor})"

    return _LINK.sub(followed, markdown)
