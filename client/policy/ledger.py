"""A site's own record of every question and of what left: a file of JSON lines, each bound to the one before.

A line holds the SHA-256 of the line before it, so that one that was changed or taken out shows. It is on disk before an
answer goes out. A last line without its end was being written when the machine stopped: nothing left the site for it,
and it is taken off.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

from pydantic import Field

from common.config import Names
from common.disk import sync
from common.foreign import parse_json
from common.section import Section

What = Literal["asked", "declined", "sent", "waiting", "approved", "spent"]
# Samples that train, or that are tested on.
Part = Literal["", "train", "test"]
START = "0" * 64


class LedgerBroken(ValueError):
    """A ledger whose lines do not follow on each other; the message says where."""


class Entry(Section):
    """One line: `text` is why a question was declined or what is waited for.

    `run` is Flower's number, `stamp` what tells the run from every other one, `settings` the digest of its
    settings. A yes is to what was shown: `rule`, `rounds` of the run, and what is asked for `beyond` training and
    testing. Of a privacy budget are spent `times` releases about the samples of a `part`, drawn at a `rate`, with
    noise `sigma`.
    """

    at: float
    what: What
    run: str = ""
    stamp: str = ""
    kind: str = ""
    settings: str = ""
    round: int = 0
    rule: str = ""
    rounds: int = 0
    beyond: str = ""
    classes: Names = ()
    watch: bool = False
    text: str = ""
    bytes: int = Field(0, ge=0)
    digest: str = ""
    part: Part = ""
    sigma: float = Field(0.0, ge=0)
    rate: float = Field(1.0, ge=0, le=1)
    times: int = Field(1, ge=0)


class Ledger:
    """The ledger of one site.

    Parameters
    ----------
    path
        Its file; made with the first entry, for its owner alone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self) -> list[Entry]:
        """Return all entries; `LedgerBroken` if one was changed or is missing."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        return [entry for entry, _ in self._read(content)]

    def head(self) -> str:
        """The digest of the last line: who has noted it somewhere else sees whether the end was cut off."""
        digests = [digest for _, digest in self._read(self.path.read_bytes() if self.path.exists() else b"")]
        return digests[-1] if digests else START

    @contextmanager
    def held(self) -> Iterator[Held]:
        """Keep others from writing, so that what is decided from the entries is written beside them."""
        with self._locked() as file:
            file.seek(0)
            read = list(self._read(file.read()))
            yield Held(file, [entry for entry, _ in read], read[-1][1] if read else START)

    def note(self, entry: Entry) -> None:
        """Add a line without reading the others: they were, when the question was admitted."""
        with self._locked() as file:
            Held(file, [], _digest_of_last(file)).append(entry)

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        """Open the file, alone, and take off what was being written when the machine stopped."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = not self.path.exists()
        with os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            if fresh:
                sync(self.path.parent)
            fcntl.flock(file, fcntl.LOCK_EX)
            end = file.seek(0, os.SEEK_END)
            torn = len(_tail(file, end).rpartition(b"\n")[2])
            file.truncate(end - torn)
            yield file

    def _read(self, content: bytes) -> Iterator[tuple[Entry, str]]:
        """Yield each entry with the digest of its line."""
        before = START
        for number, line in enumerate(content.splitlines(keepends=True), start=1):
            if not line.endswith(b"\n"):
                return
            # As they are written, for speed: all of them are read for every question.
            follows = b'{"after": "%s", ' % before.encode()
            try:
                if line.startswith(follows):
                    entry, after = Entry.model_validate_json(b"{" + line[len(follows) :]), before
                else:
                    values = parse_json(line)
                    after = values.pop("after")
                    entry = Entry.model_validate(values)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise LedgerBroken(f"line {number} of {self.path} is no entry") from None
            if after != before:
                raise LedgerBroken(f"line {number} of {self.path} does not follow on the one before: one is missing")
            before = hashlib.sha256(line).hexdigest()
            yield entry, before


def _tail(file: IO[bytes], end: int) -> bytes:
    """The end of a file from somewhere before its last whole line on."""
    length = 4096
    while True:
        start = max(end - length, 0)
        file.seek(start)
        content = file.read(end - start)
        if start == 0 or content.count(b"\n") > 1:
            return content
        length *= 4


def _digest_of_last(file: IO[bytes]) -> str:
    lines = _tail(file, file.seek(0, os.SEEK_END)).splitlines(keepends=True)
    return hashlib.sha256(lines[-1]).hexdigest() if lines else START


class Held:
    """A ledger that nobody else writes to now, and what is in it."""

    def __init__(self, file: IO[bytes], entries: list[Entry], before: str) -> None:
        self._file, self.entries, self._before = file, entries, before

    def append(self, entry: Entry) -> None:
        """Add a line; it is on disk when this returns."""
        values = {"after": self._before} | entry.model_dump(mode="json", exclude_defaults=True)
        line = json.dumps(values, ensure_ascii=False).encode() + b"\n"
        self._file.seek(0, os.SEEK_END)
        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())
        self.entries.append(entry)
        self._before = hashlib.sha256(line).hexdigest()
