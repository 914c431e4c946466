"""What sites' own ledgers say of a run, for its page."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from client.policy.ledger import Ledger, LedgerBroken
from common.config import SettingsError
from server.report.record import Noted


def noted_in(words: Iterable[str], stamp: str) -> dict[str, Noted]:
    """Read ledgers, each as SITE=FILE, and tell what they have of the run with a stamp."""
    found = {}
    for word in words:
        site, mark, name = word.partition("=")
        path = Path(name)
        if not (site and mark and path.is_file()):
            raise SettingsError(f"--ledger {word}: write SITE=FILE, such as clinic-a=kit/ledger.jsonl")
        ledger = Ledger(path)
        try:
            entries, head = ledger.entries(), ledger.head()
        except LedgerBroken as error:
            raise SettingsError(str(error)) from None
        of_run = [entry for entry in entries if stamp and entry.stamp == stamp]
        if not of_run:
            raise SettingsError(f"{path} has no line of this run ({stamp or 'which has no stamp'})")
        sent = [entry for entry in of_run if entry.what == "sent"]
        declined = sum(entry.what == "declined" for entry in of_run)
        found[site] = Noted(len(sent), sum(entry.bytes for entry in sent), declined, head)
    return found
