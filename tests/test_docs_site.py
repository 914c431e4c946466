"""The documentation as a site: no broken link, a page for every method, nothing fetched from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from server.methods import METHODS

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    # Strict: a link that leads nowhere is an error.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    made = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert made.returncode == 0, made.stderr
    assert "does not contain an anchor" not in made.stderr, made.stderr
    return folder


def test_every_method_has_a_page(site: Path) -> None:
    for method in METHODS.values():
        assert method.title in (site / "methods" / f"{method.name}.html").read_text(encoding="utf-8")


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        found = re.findall(
            r'<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="(https?://[^"]+)', page.read_text("utf-8")
        )
        assert not found, f"{page.name}: {found}"


def test_every_document_is_in_the_navigation(site: Path) -> None:
    start = (site / "index.html").read_text(encoding="utf-8")
    for document in (ROOT / "docs").glob("*.md"):
        assert f'href="{document.stem}.html"' in start, f"{document.name} is not in mkdocs.yml"
