"""The rule that a drifted site cannot turn against its peers."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from common.config import MigrationSettings
from server.migration.directions import Directions
from server.migration.record import Record
from server.migration.vectors import Vector, cosine_of, length, medians_of_others
from server.migration.verdict import Evidence, Suspect, Verdict

# Rounds for which a group's model still bears the marks of a drifted member after that one was moved.
_AFTERSHOCK = 2
# Without signatures a group of one's own is founded late: a disturbed group needs a round or two to settle.
_FOUNDING_PATIENCE = 3

_NOTHING: Mapping[str, float] = MappingProxyType({})


class GuardedRule:
    """Leave-one-out unit directions, a norm gate, patience, a trial, and rests that grow.

    A round goes: `suspects` names who is to be examined; for each of them in turn the caller finds the verdict
    `by_direction` or `by_signature`, carries it out, and has it noted with `settle`.

    Parameters
    ----------
    settings
        Thresholds.
    looks_again
        Whether a site that founded a group, or whose verdict is in doubt, is examined again later, because it may have
        been in the middle of a change. Only of use where an examination shows more than the direction of its updates.
    """

    def __init__(self, settings: MigrationSettings, *, looks_again: bool = False) -> None:
        self._settings = settings
        self._looks_again = looks_again
        self._records: dict[str, Record] = {}
        self._shaken: dict[int, int] = {}
        self._founded: dict[int, Vector] = {}

    def state(self) -> dict[str, Any]:
        """What must be remembered from round to round."""
        records = {site: record.state() for site, record in self._records.items()}
        return {"records": records, "shaken": {str(group): last for group, last in self._shaken.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Remember what an earlier `state` said."""
        self._records = {site: Record.restored(record) for site, record in state["records"].items()}
        self._shaken = {int(group): last for group, last in state["shaken"].items()}

    def suspects(
        self,
        round_number: int,
        changes: Mapping[str, Vector],
        groups: Mapping[str, int],
        *,
        losses: Mapping[str, float] = _NOTHING,
        raised: Mapping[str, float] = _NOTHING,
    ) -> list[Suspect]:
        """Judge one round.

        Parameters
        ----------
        round_number
            Of the updates.
        changes
            The head updates of the sites that trained.
        groups
            Of all sites.
        losses
            Of the sites while they trained. Without them no move is on trial.
        raised
            By how many standard deviations sites find their data changed, of those that do.
        """
        self._founded = {}
        heard = {site: changes[site] for site in sorted(changes) if np.any(changes[site])}
        self._remember(round_number, heard, groups)
        norms = {site: length(change) for site, change in heard.items()}
        peer_norms = self._peer_norms(norms)
        loud = {site for site in heard if self._is_loud(self._records[site], norms[site], peer_norms[site])}
        before = {site for site, record in self._records.items() if record.strikes}
        self._shaken |= dict.fromkeys((self._records[site].group for site in before), round_number)
        # A drifted member spoils its group's model, and then the others have reason to be loud as well.
        disturbed = {group for group, last in self._shaken.items() if round_number <= last + _AFTERSHOCK}
        present = {site: record for site, record in self._records.items() if not record.is_lost(round_number)}
        witnesses = Directions(
            {
                site: record
                for site, record in present.items()
                if site not in before and (site not in loud or record.group in disturbed)
            }
        )
        everybody = Directions(present)
        sizes = Counter(groups.values())
        found = []
        for site in heard:
            record = self._records[site]
            cosine = witnesses.with_peers(site, record)
            if cosine is None:
                # Where nobody is above suspicion, those who are not may speak for each other: if they agree, it is the
                # whole group that has changed, and it stays together.
                cosine = everybody.with_peers(site, record)
            # With nobody else in the group the norm alone counts, unless the group is still shaken by one who left.
            unexplained = site in before or record.group not in disturbed
            outlier = site in loud and (unexplained if cosine is None else cosine < self._settings.tau)
            resting = round_number < record.rests_until
            # What has changed since it was last examined is news; for that a short rest will do.
            news = site in raised and round_number > record.settled + self._settings.dwell
            if outlier and resting:
                self._shaken[record.group] = round_number
            record.strikes = record.strikes + 1 if outlier and not resting else 0
            # Who is in line with a group that is disturbed gets used to that. Who is at rest may have changed itself.
            if not record.strikes and not (site in loud and resting):
                record.note(norms[site], peer_norms[site])
            back = record.trials.judge(losses.get(site), sizes, self._settings.patience)
            again = record.in_doubt or (record.founder and sizes[record.group] == 1)
            if back is not None or news or (not resting and (record.strikes >= self._settings.patience or again)):
                evidence = Evidence(
                    cosine=cosine,
                    cosines=witnesses.with_others(record),
                    norm=norms[site],
                    peer_norm=peer_norms[site],
                    usual_norm=record.usual_norm,
                    changed=raised.get(site),
                )
                if back is not None:
                    evidence = replace(
                        evidence,
                        reason=f"moving did not help: its loss is {losses[site]:.3g} here and was "
                        f"{record.trials.loss_there:.3g} there",
                    )
                found.append(Suspect(site, record.group, record.strikes, evidence, back))
        return found

    def raised_hands(self, round_number: int, groups: Mapping[str, int], raised: Mapping[str, float]) -> list[Suspect]:
        """Judge a round whose updates nobody sees: only who finds its own data changed is to be examined.

        Whoever was in the middle of a change when it was examined is examined again, as in `suspects`.
        """
        found = []
        sizes = Counter(groups.values())
        for site in sorted(groups):
            if site in raised and site not in self._records:
                self._records[site] = Record(groups[site], np.zeros(0), round_number, round_number)
            if (record := self._records.get(site)) is None:
                continue
            record.group = groups[site]
            news = site in raised and round_number > record.settled + self._settings.dwell
            again = record.in_doubt or (record.founder and sizes[record.group] == 1)
            if news or (again and round_number >= record.rests_until):
                found.append(Suspect(site, record.group, 0, Evidence(changed=raised.get(site))))
        return found

    def by_direction(self, suspect: Suspect) -> Verdict | None:
        """Judge by the update alone: the group with the largest cosine, if it fits. None: not sure yet.

        A site that fits nowhere for long founds a group of its own, together with those who found one in the same
        round and head the same way; a site that is alone already stays. Who was moved and is not far better off goes
        back, and does not try that group again while nothing has changed.
        """
        if suspect.back is not None:
            return Verdict(suspect.site, suspect.group, suspect.back, suspect.evidence)
        if suspect.rounds < self._settings.patience:
            # One that is looked at again, not an outlier: calm directions are noise and prove nothing.
            return Verdict(suspect.site, suspect.group, suspect.group, suspect.evidence)
        cosines = {group: cosine for group, cosine in suspect.evidence.cosines.items() if cosine >= self._settings.fit}
        refuted = self._records[suspect.site].trials.refuted
        target = max(cosines.keys() - refuted.keys(), key=lambda group: (cosines[group], -group), default=None)
        if target is None and cosines:
            tried = ", ".join(map(str, sorted(cosines)))
            evidence = replace(suspect.evidence, reason=f"group {tried} was no better, and nothing has changed since")
            return Verdict(suspect.site, suspect.group, suspect.group, evidence)
        if target is None:
            usual = suspect.evidence.usual_norm
            loud = usual is not None and (suspect.evidence.norm or 0.0) >= self._settings.norm_ratio * usual
            if not loud or suspect.rounds < _FOUNDING_PATIENCE * self._settings.patience:
                return None
            unit = self._records[suspect.site].unit
            alike = [group for group, other in self._founded.items() if cosine_of(unit, other) >= self._settings.fit]
            members = sum(record.group == suspect.group for record in self._records.values())
            target = alike[0] if alike else suspect.group if members == 1 else None
        return Verdict(suspect.site, suspect.group, target, suspect.evidence)

    def is_suspected(self, site: str) -> bool:
        """Whether the site was an outlier in its last round."""
        return site in self._records and self._records[site].strikes > 0

    def settle(self, verdict: Verdict, group: int, round_number: int) -> None:
        """Note that a verdict was carried out and the site belongs to `group`; it is left in peace for a while."""
        record = self._records[verdict.site]
        # Where a signature was sent, somebody has seen its data; else the next rounds tell.
        record.trials.settle(record.group, group, known=verdict.target is None or bool(verdict.evidence.distances))
        if verdict.target is None:
            # Its group's model is a copy of the one it had, so its last update speaks for the new group too.
            self._founded[group] = record.unit
            record.founder = self._looks_again
        elif group != record.group:
            # Its last update was made with another group's model and says nothing about the new one.
            record.unit = np.zeros_like(record.unit)
            record.founder = False
        record.in_doubt = self._looks_again and verdict.in_doubt
        record.group = group
        record.strikes, record.norms, record.ratios = 0, [], []
        record.rest_from(round_number, self._settings.dwell)

    def _remember(self, round_number: int, heard: Mapping[str, Vector], groups: Mapping[str, int]) -> None:
        for site, change in heard.items():
            if site not in self._records:
                self._records[site] = Record(groups[site], change, round_number, round_number)
            self._records[site].hear(groups[site], change, round_number)
        self._records = dict(sorted(self._records.items()))
        for record in self._records.values():
            if record.strikes and record.is_lost(round_number):
                record.strikes = 0

    def _peer_norms(self, norms: Mapping[str, float]) -> dict[str, float | None]:
        """The median norm of the other members of each site's group that were heard this round."""
        by_group: dict[int, list[str]] = {}
        for site in norms:
            by_group.setdefault(self._records[site].group, []).append(site)
        medians: dict[str, float | None] = {}
        for members in by_group.values():
            if len(members) == 1:
                medians[members[0]] = None
                continue
            others = medians_of_others(np.array([norms[site] for site in members]))
            medians |= dict(zip(members, others.tolist(), strict=True))
        return medians

    def _is_loud(self, record: Record, norm: float, peer_norm: float | None) -> bool:
        """Whether an update is far longer than the site's own of late, or than its peers', as it usually compares."""
        # Who is suspected already need not be that loud again: its group's model has begun to follow it.
        ratio = math.sqrt(self._settings.norm_ratio) if record.strikes else self._settings.norm_ratio
        usual = record.usual_norm
        if usual is not None and norm >= ratio * usual:
            return True
        # Some sites' updates are always longer than those of their peers; that is no sign of change.
        usual_ratio = max(1.0, statistics.median(record.ratios)) if record.ratios else 1.0
        return peer_norm is not None and norm >= ratio * usual_ratio * peer_norm
