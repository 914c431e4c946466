"""The commands of README and docs, as somebody new would type them: `python -m tests.support.docs_commands` lists them.

A command in a code block is executed by `tests/test_docs_commands.py`, unless a comment above the block says why not:

    <!-- not run: it needs a Docker engine -->
    <!-- elsewhere: tests/deployment/test_operating.py -->

`elsewhere` names the test that carries the command out. Either may end in `: run, server`, and is then of those
commands of the block alone that have one of these words.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]

_PROGRAMS = ("coterie", "make", "python", "python3", "flwr", "docker", "kubectl", "pip", "uv", "openssl")
_COMMENT = re.compile(r"<!-- (?P<kind>not run|elsewhere): (?P<why>[^:]+?)(?:: (?P<words>[\w\-., ]+))? -->")


@dataclass(frozen=True)
class Command:
    """One command: where it stands, its words, and what a comment says of it: (kind, why), or nothing."""

    page: str
    line: int
    words: tuple[str, ...]
    exempt: tuple[str, str] | None

    @property
    def program(self) -> str:
        return self.words[0]

    @property
    def how(self) -> str:
        """How it is tested, in words."""
        if self.exempt is not None:
            kind, why = self.exempt
            checked = ", arguments checked" if self.program == "coterie" else ""
            return (f"by {why}" if kind == "elsewhere" else f"not run: {why}") + checked
        if self.program == "make":
            return "make --dry-run"
        if self.program == "python":
            return "--help: it takes minutes to hours"
        return "suite read, settings of all its runs checked" if self.words[1] == "bench" else "executed, small"

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {shlex.join(self.words)}"


def commands() -> list[Command]:
    """All commands in code blocks, page by page."""
    return [command for page in PAGES for command in _of(page)]


def _of(page: Path) -> Iterator[Command]:
    name = str(page.relative_to(ROOT))
    lines = page.read_text(encoding="utf-8").splitlines()
    comments: list[re.Match[str]] = []
    inside, plain, pending, first = False, False, "", 0
    for number, line in enumerate(lines, 1):
        if line.startswith("```"):
            inside, plain = not inside, not inside and line in ("```", "```sh")
            if not inside:
                comments = []
        elif not inside:
            comments = [*comments, found] if (found := _COMMENT.fullmatch(line)) else comments if not line else []
        elif plain:
            first = first if pending else number
            pending += line.removesuffix("\\")
            if not line.endswith("\\"):
                for words in _split(pending):
                    yield Command(name, first, words, _exempt(words, comments))
                pending = ""


def _split(line: str) -> Iterator[tuple[str, ...]]:
    """The commands of a line, without what may be left out, and without what is said of them."""
    line = re.sub(r"\s\[[^\]]*\]", "", re.sub(r"(^|\s)#\s.*$", "", line)).removeprefix("$ ")
    for part in line.split(" && "):
        try:
            words = shlex.split(part.replace(".venv/bin/", ""))
        except ValueError:
            # A sentence with an apostrophe, in what a program answers.
            words = part.split()
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        if words and (words[0] in _PROGRAMS or words[0].startswith("flower-")):
            yield tuple(words)


def _exempt(words: tuple[str, ...], comments: list[re.Match[str]]) -> tuple[str, str] | None:
    for comment in comments:
        named = {word.strip() for word in (comment["words"] or "").split(",")} - {""}
        if not named or named & set(words):
            return comment["kind"], comment["why"]
    return None


def main() -> None:
    """List them."""
    for command in commands():
        print(f"{command}\n    {command.how}")


if __name__ == "__main__":
    main()
