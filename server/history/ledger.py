"""Who changed groups or was examined for it: one entry per site, for the summary, the page and `coterie moves`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from server.history.events import Event, SiteCleared, SitesMoved
from server.history.run_directory import finite
from server.migration import Evidence


@dataclass(frozen=True)
class Ruling:
    """A site moved, or was examined and stays (`target` = `origin`); `founded`: the target is a new group."""

    round_number: int
    site: str
    origin: int
    target: int
    founded: bool
    evidence: Evidence

    @property
    def stays(self) -> bool:
        """Whether the site was cleared."""
        return self.origin == self.target


def rulings(events: Iterable[Event]) -> list[Ruling]:
    """Return the moves and acquittals among events, in order."""
    found: list[Ruling] = []
    for event in events:
        match event:
            case SitesMoved(number, sites, origin, target, founded, evidence):
                found += [Ruling(number, site, origin, target, founded, evidence) for site in sites]
            case SiteCleared(number, site, group, evidence):
                found.append(Ruling(number, site, group, group, False, evidence))
    return found


def evidence_entry(evidence: Evidence) -> dict[str, Any]:
    """Evidence for other programs: the figures of an examination, or the reason where there are none."""
    reason = {"reason": evidence.reason} if evidence.reason else {}
    if reason and evidence == Evidence(reason=evidence.reason):
        return reason
    figures = {one.name: _plain(getattr(evidence, one.name)) for one in fields(evidence) if one.name != "reason"}
    return figures | reason


def _plain(value: float | dict[int, float] | None) -> Any:
    if isinstance(value, dict):
        return {str(group): finite(one) for group, one in value.items()}
    return None if value is None else finite(value)
