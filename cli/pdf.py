"""A page as a PDF, printed by a Chromium that is installed on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from common.config import SettingsError

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
_PATIENCE = 120.0  # seconds


def print_pdf(page: Path, out: Path) -> None:
    """Print an HTML file. The browser gets a home of its own, and no network is needed: the page brings everything."""
    browser = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if browser is None:
        raise SettingsError(
            f"--pdf needs Chromium, and there is none of {', '.join(_NAMES)}: install it, or open {page} and print it"
        )
    with TemporaryDirectory() as home:
        command = [
            browser, "--headless", "--disable-gpu", f"--user-data-dir={home}", "--no-pdf-header-footer",
            # Figures are drawn by a script; Chromium prints once the page's own clock has run this far (ms).
            "--virtual-time-budget=20000", f"--print-to-pdf={out.absolute()}", *_sandbox(), page.absolute().as_uri(),
        ]  # fmt: skip
        try:
            ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            raise SettingsError(f"{browser} did not print {page} within {_PATIENCE:.0f} s") from None
    if ended.returncode or not out.is_file():
        said = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
        raise SettingsError(f"{browser} could not print {page}: {said[-1]}")


def _sandbox() -> list[str]:
    # Chromium refuses its sandbox to root. The page is our own, and made of checked values.
    return ["--no-sandbox"] if os.geteuid() == 0 else []
