"""`coterie site ledger` and `coterie site approve`: what a site was asked, what left it, and who may go on asking."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

from cli.deployment.site_start import as_node_config
from cli.deployment.start_file import SiteFile
from client.identity import identify
from client.policy.gate import ledger_of
from client.policy.ledger import Entry, Ledger, LedgerBroken
from client.privacy.budget import spent_of
from common.config import SettingsError
from common.readable import megabytes


def show_ledger(path: Path, settings: SiteFile) -> int:
    """Print the ledger of a site; return 1 if a line was changed or is missing."""
    ledger = _ledger(path, settings)
    try:
        entries, head = ledger.entries(), ledger.head()
    except LedgerBroken as error:
        print(f"BROKEN: {error}")
        return 1
    for entry in entries:
        print(_line(entry))
    sent = [entry for entry in entries if entry.what == "sent"]
    print(
        f"{ledger.path}: {len(entries)} lines; {len(sent)} answers left, {megabytes(sum(one.bytes for one in sent))}; "
        f"{sum(entry.what == 'declined' for entry in entries)} questions declined; all lines follow on each other"
    )
    if (privacy := settings.policy.privacy).is_on:
        spent = spent_of(entries, privacy.delta)
        print(f"privacy budget: epsilon = {spent:.3g} of {privacy.epsilon:g} is spent, at delta = {privacy.delta:g}")
    print(f"the last line is {head}: note it elsewhere, and you will see whether lines were cut off")
    return 0


def approve_run(path: Path, settings: SiteFile, run: str) -> int:
    """Say yes to a run, or list those that wait if none is named."""
    ledger = _ledger(path, settings)
    try:
        waiting = list(_waiting(ledger.entries()))
        if not run:
            for entry in waiting:
                print(f"run {entry.run} wants: {entry.text}")
            print(f"coterie site approve {path.name} RUN says yes" if waiting else "no run waits")
            return 0
        chosen = [entry for entry in waiting if entry.run == run]
        if not chosen:
            raise SettingsError(
                f"no run {run} waits for a yes; waiting: {', '.join(entry.run for entry in waiting) or 'none'}"
            )
        with ledger.held() as held:
            for entry in chosen:
                yes = {"at": time.time(), "what": "approved", "kind": "", "round": 0, "classes": (), "text": ""}
                held.append(entry.model_copy(update=yes))
                print(f"approved: run {entry.run} gets {entry.text}")
    except LedgerBroken as error:
        raise SettingsError(str(error)) from None
    return 0


def _waiting(entries: list[Entry]) -> Iterator[Entry]:
    """What waits for a yes, each once."""
    approved = {_terms(entry) for entry in entries if entry.what == "approved"}
    waiting = {_terms(entry): entry for entry in entries if entry.what == "waiting"}
    yield from (entry for terms, entry in waiting.items() if terms not in approved)


def _terms(entry: Entry) -> tuple[str, str, str, int, str]:
    return entry.run, entry.settings, entry.rule, entry.rounds, entry.beyond


def _ledger(path: Path, settings: SiteFile) -> Ledger:
    return ledger_of(identify(tomllib.loads(as_node_config(path, settings)), 0))


def _line(entry: Entry) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.at))
    about = f"{entry.kind} (round {entry.round})" if entry.kind else ""
    left = f" {entry.bytes:,} bytes, SHA-256 {entry.digest[:16]}…" if entry.what == "sent" else ""
    if entry.what == "spent":
        left = f" on {entry.part} samples, {entry.times} × noise {entry.sigma:.3g} at rate {entry.rate:g}"
    text = f": {entry.text}" if entry.text else ""
    return f"{at}  run {entry.run}  settings {entry.settings[:8]}  {entry.what:8} {about}{left}{text}"
