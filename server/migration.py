"""Who should change groups, judged by the direction of the updates (FedCM) and, where there are any, by signatures.

Pure rules: head updates and memberships in, suspects and verdicts with their evidence out. Two rules:

* `PublishedRule`: FedCM's equations 6 to 9 as printed, for reproduction. A drifted site's update dwarfs those of its
  converged peers, so in the magnitude-weighted mean it *is* the group's direction, and the innocent ones are moved.
* `GuardedRule`: the direction of a site's group is made of the other members' unit vectors, an outlier must also show
  an unusual norm, and it must do so for some rounds in a row. Who is under suspicion does not testify about others.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.config import MigrationSettings

Vector = NDArray[np.float64]

# Rounds of calm that make up what is usual for a site.
_HISTORY = 5
# Rounds for which a group's model still bears the marks of a drifted member after that one was moved.
_AFTERSHOCK = 2
# A site that has been silent for so many times its usual gap is no longer waited for.
_LOST = 5
# Without signatures a group of one's own is founded late: a disturbed group needs a round or two to settle.
_FOUNDING_PATIENCE = 3


@dataclass(frozen=True)
class Evidence:
    """Why a site was suspected or moved: the figures of an examination, or only a reason in words.

    Attributes
    ----------
    cosine
        With the direction of its own group; None where nobody else could testify.
    cosines
        With the directions of the other groups.
    norm, peer_norm, usual_norm
        Length of its head update, the median of its peers', the median of its own last calm rounds; None: unknown.
    distances
        Mean distance of its fresh signature to each group; empty where none was asked for.
    reason
        Of a move by the method's own rule or by the site's choice; empty for an examination.
    """

    cosine: float | None = None
    cosines: dict[int, float] = field(default_factory=dict)
    norm: float | None = None
    peer_norm: float | None = None
    usual_norm: float | None = None
    distances: dict[int, float] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True)
class Suspect:
    """A site that has been an outlier for long enough to be examined."""

    site: str
    group: int
    rounds: int
    evidence: Evidence


@dataclass(frozen=True)
class Verdict:
    """Where a site belongs from now on: a group, perhaps the one it is in, or (None) a new one of its own."""

    site: str
    origin: int
    target: int | None
    evidence: Evidence


class PublishedRule:
    """FedCM's migration, equations 6 to 9."""

    def __init__(self, settings: MigrationSettings) -> None:
        self._tau = settings.tau
        self._directions: dict[int, Vector] = {}

    def state(self) -> dict[str, Any]:
        """What must be remembered from round to round."""
        return {str(group): direction for group, direction in self._directions.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Remember what an earlier `state` said."""
        self._directions = {int(group): direction for group, direction in state.items()}

    def moves(self, changes: Mapping[str, Vector], groups: Mapping[str, int]) -> list[Verdict]:
        """Judge one round; `changes` are the head updates of the sites that trained, `groups` holds every member."""
        sites = sorted(site for site in changes if np.any(changes[site]))
        sums: dict[int, Vector] = {}
        for site in sites:
            group = groups[site]
            sums[group] = sums[group] + changes[site] if group in sums else changes[site]
        self._directions |= {group: _unit(total) for group, total in sums.items()}  # (7)
        # A group nobody belongs to any more is kept out of the arg-max.
        alive = sorted(self._directions.keys() & set(groups.values()))
        self._directions = {group: self._directions[group] for group in alive}
        moves = []
        for site in sites:
            theta = _unit(changes[site])  # (6)
            cosines = {group: float(theta @ self._directions[group]) for group in alive}
            own = groups[site]
            if cosines[own] < self._tau:  # (8)
                target = max(alive, key=lambda group: cosines[group])  # (9)
                if target != own:
                    evidence = Evidence(cosines.pop(own), cosines, _norm(changes[site]))
                    moves.append(Verdict(site, own, target, evidence))
        return moves


@dataclass
class _Record:
    """What is remembered of a site."""

    group: int
    unit: Vector
    first_round: int
    last_round: int
    times_heard: int = 0
    # Of the last calm rounds: the norm of the update, and how many times the median of the peers it was.
    norms: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    strikes: int = 0
    rests_until: int = 0
    # A founder of a group of its own is looked at again after so many rounds; 0: it is not.
    probation: int = 0
    look_again: int = 0

    @property
    def usual_norm(self) -> float | None:
        """The median norm of the site's last calm rounds."""
        return statistics.median(self.norms) if self.norms else None

    def hear(self, group: int, change: Vector, round_number: int) -> None:
        """Take in a head update."""
        self.group, self.unit, self.last_round = group, _unit(change), round_number
        self.times_heard += 1

    def note(self, norm: float, peer_norm: float | None) -> None:
        """Take a round into what is usual for the site."""
        self.norms = [*self.norms, norm][-_HISTORY:]
        if peer_norm:
            self.ratios = [*self.ratios, norm / peer_norm][-_HISTORY:]

    def is_lost(self, round_number: int) -> bool:
        """Whether the site has been silent for far longer than it usually is."""
        usual_gap = (self.last_round - self.first_round + 1) / self.times_heard
        return round_number - self.last_round > _LOST * usual_gap


class GuardedRule:
    """Leave-one-out unit directions, a norm gate, patience and rest.

    A round goes: `suspects` names who is to be examined; for each of them in turn the caller finds the verdict
    `by_direction` or `by_signature`, carries it out, and has it noted with `settle`.

    Parameters
    ----------
    settings
        Thresholds.
    probation
        Whether a site that founded a group is examined again later, because it may have been in the middle of a
        change. Only of use where an examination shows more than the direction of its updates.
    """

    def __init__(self, settings: MigrationSettings, *, probation: bool = False) -> None:
        self._settings = settings
        self._probation = probation
        self._records: dict[str, _Record] = {}
        self._shaken: dict[int, int] = {}
        self._founded: dict[int, Vector] = {}

    def state(self) -> dict[str, Any]:
        """What must be remembered from round to round."""
        records = {site: vars(record) for site, record in self._records.items()}
        return {"records": records, "shaken": {str(group): last for group, last in self._shaken.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Remember what an earlier `state` said."""
        self._records = {site: _Record(**record) for site, record in state["records"].items()}
        self._shaken = {int(group): last for group, last in state["shaken"].items()}

    def suspects(self, round_number: int, changes: Mapping[str, Vector], groups: Mapping[str, int]) -> list[Suspect]:
        """Judge one round; `changes` are the head updates of the sites that trained, `groups` are those of all."""
        self._founded = {}
        heard = {site: changes[site] for site in sorted(changes) if np.any(changes[site])}
        self._remember(round_number, heard, groups)
        norms = {site: _norm(change) for site, change in heard.items()}
        peer_norms = self._peer_norms(norms)
        loud = {site for site in heard if self._is_loud(self._records[site], norms[site], peer_norms[site])}
        before = {site for site, record in self._records.items() if record.strikes}
        self._shaken |= dict.fromkeys((self._records[site].group for site in before), round_number)
        # A drifted member spoils its group's model, and then the others have reason to be loud as well.
        disturbed = {group for group, last in self._shaken.items() if round_number <= last + _AFTERSHOCK}
        present = {site: record for site, record in self._records.items() if not record.is_lost(round_number)}
        witnesses = _Directions(
            {
                site: record
                for site, record in present.items()
                if site not in before and (site not in loud or record.group in disturbed)
            }
        )
        everybody = _Directions(present)
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
            if outlier and resting:
                self._shaken[record.group] = round_number
            record.strikes = record.strikes + 1 if outlier and not resting else 0
            # A loud round becomes the usual only where nothing else explains it.
            if not record.strikes and (site not in loud or not (resting or record.group in disturbed)):
                record.note(norms[site], peer_norms[site])
            on_probation = record.probation and round_number >= record.look_again and sizes[record.group] == 1
            if record.strikes >= self._settings.patience or on_probation:
                evidence = Evidence(
                    cosine=cosine,
                    cosines=witnesses.with_others(record),
                    norm=norms[site],
                    peer_norm=peer_norms[site],
                    usual_norm=record.usual_norm,
                )
                found.append(Suspect(site, record.group, record.strikes, evidence))
        return found

    def by_direction(self, suspect: Suspect) -> Verdict | None:
        """Judge by the update alone: the group with the largest cosine, if it fits. None: not sure yet.

        A site that fits nowhere for long founds a group of its own, together with those who found one in the same
        round and head the same way; a site that is alone already stays.
        """
        if suspect.rounds < self._settings.patience:
            # A founder on probation, not an outlier: calm directions are noise and prove nothing.
            return Verdict(suspect.site, suspect.group, suspect.group, suspect.evidence)
        cosines = suspect.evidence.cosines
        target: int | None = max(cosines, key=lambda group: cosines[group], default=None)
        if target is None or cosines[target] < self._settings.fit:
            usual = suspect.evidence.usual_norm
            loud = usual is not None and (suspect.evidence.norm or 0.0) >= self._settings.norm_ratio * usual
            if not loud or suspect.rounds < _FOUNDING_PATIENCE * self._settings.patience:
                return None
            unit = self._records[suspect.site].unit
            alike = [group for group, other in self._founded.items() if _cosine(unit, other) >= self._settings.fit]
            members = sum(record.group == suspect.group for record in self._records.values())
            target = alike[0] if alike else suspect.group if members == 1 else None
        return Verdict(suspect.site, suspect.group, target, suspect.evidence)

    def is_suspected(self, site: str) -> bool:
        """Whether the site was an outlier in its last round."""
        return site in self._records and self._records[site].strikes > 0

    def settle(self, verdict: Verdict, group: int, round_number: int) -> None:
        """Note that a verdict was carried out and the site belongs to `group`; it is left in peace for a while."""
        record = self._records[verdict.site]
        if verdict.target is None:
            # Its group's model is a copy of the one it had, so its last update speaks for the new group too.
            self._founded[group] = record.unit
            record.probation = self._settings.dwell + 1 if self._probation else 0
        elif group != record.group:
            # Its last update was made with another group's model and says nothing about the new one.
            record.unit = np.zeros_like(record.unit)
            record.probation = 0
        else:
            record.probation *= 2
        record.look_again = round_number + record.probation
        record.group = group
        record.strikes, record.norms, record.ratios = 0, [], []
        record.rests_until = round_number + 1 + self._settings.dwell

    def _remember(self, round_number: int, heard: Mapping[str, Vector], groups: Mapping[str, int]) -> None:
        for site, change in heard.items():
            if site not in self._records:
                self._records[site] = _Record(groups[site], change, round_number, round_number)
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

    def _is_loud(self, record: _Record, norm: float, peer_norm: float | None) -> bool:
        """Whether an update is far longer than the site's own of late, or than its peers', as it usually compares."""
        # Who is suspected already need not be that loud again: its group's model has begun to follow it.
        ratio = math.sqrt(self._settings.norm_ratio) if record.strikes else self._settings.norm_ratio
        usual = record.usual_norm
        if usual is not None and norm >= ratio * usual:
            return True
        # Some sites' updates are always longer than those of their peers; that is no sign of change.
        usual_ratio = max(1.0, statistics.median(record.ratios)) if record.ratios else 1.0
        return peer_norm is not None and norm >= ratio * usual_ratio * peer_norm


class _Directions:
    """Where each group is heading: the mean of its witnesses' unit vectors in the last round it was heard."""

    def __init__(self, witnesses: Mapping[str, _Record]) -> None:
        self._members: dict[int, dict[str, _Record]] = {}
        for site, record in witnesses.items():
            if np.any(record.unit):
                self._members.setdefault(record.group, {})[site] = record
        self._heard = {group: _latest(members) for group, members in self._members.items()}
        self._sums = {group: _sum(heard) for group, heard in self._heard.items()}

    def with_peers(self, site: str, record: _Record) -> float | None:
        """Cosine with the direction of the site's own group, the site itself left out; None: nobody else."""
        heard = self._heard.get(record.group, {})
        if site not in heard:
            return _cosine(record.unit, self._sums[record.group]) if heard else None
        if len(heard) > 1:
            return _cosine(record.unit, self._sums[record.group] - record.unit)
        others = {other: of for other, of in self._members[record.group].items() if other != site}
        return _cosine(record.unit, _sum(_latest(others))) if others else None

    def with_others(self, record: _Record) -> dict[int, float]:
        """Cosines with the directions of the other groups."""
        return {group: _cosine(record.unit, self._sums[group]) for group in sorted(self._sums.keys() - {record.group})}


def by_signature(
    suspect: Suspect,
    fresh: int,
    distance: NDArray[np.float64],
    rows: NDArray[np.intp],
    labels: NDArray[np.int64],
    witnesses: NDArray[np.bool_],
) -> Verdict:
    """Judge by a fresh signature: the nearest group, if it fits, else a new one; a site that is alone already stays.

    A signature fits nowhere if it is as foreign to the nearest group as the groups are to each other: its mean distance
    to the group's members is no smaller than the smallest mean distance from them to another group.

    Parameters
    ----------
    suspect
        Who is examined.
    fresh
        Row of its fresh signature in `distance`.
    distance : float64[M, M]
        Among all signatures, old and fresh.
    rows : int[N]
        Row of each member's signature; of a suspect that is still to be examined, the one it sent before.
    labels : int64[N]
        The members' groups.
    witnesses : bool[N]
        Who is above suspicion. A group without any is described by what its members sent before.
    """
    speakers: dict[int, NDArray[np.intp]] = {}
    for group in np.unique(labels).tolist():
        members = labels == group
        speakers[group] = rows[members & witnesses if (members & witnesses).any() else members]
    distances = {group: float(distance[fresh, rows].mean()) for group, rows in speakers.items()}
    # On a tie the site stays where it is.
    nearest = min(distances, key=lambda group: (distances[group], group != suspect.group, group))
    fits = distances[nearest] < _reach(nearest, distance, speakers)
    alone = int((labels == suspect.group).sum()) == 1
    target = nearest if fits else suspect.group if alone else None
    return Verdict(suspect.site, suspect.group, target, replace(suspect.evidence, distances=distances))


def _reach(group: int, distance: NDArray[np.float64], speakers: Mapping[int, NDArray[np.intp]]) -> float:
    """How far from a group's members a signature may be and still fit."""
    rows = speakers[group]
    neighbours = [float(distance[np.ix_(rows, other)].mean()) for key, other in speakers.items() if key != group]
    if neighbours:
        return min(neighbours)
    # The only group has no neighbour; then it reaches twice as far as its widest member.
    return 2 * float(distance[np.ix_(rows, rows)].sum(axis=1).max()) / max(len(rows) - 1, 1)


def medians_of_others(values: Vector) -> Vector:
    """For each of n values the median of the n − 1 others; n ≥ 2."""
    order = np.argsort(values, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(values))
    ordered = values[order]
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2
    # Without its own value, the k-th smallest is the k-th of all, or the next one if its own was among the first k.
    return np.asarray((ordered[low + (rank <= low)] + ordered[high + (rank <= high)]) / 2)


def _latest(records: Mapping[str, _Record]) -> dict[str, _Record]:
    last = max(record.last_round for record in records.values())
    return {site: record for site, record in records.items() if record.last_round == last}


def _sum(records: Mapping[str, _Record]) -> Vector:
    total: Vector = np.sum([record.unit for record in records.values()], axis=0)
    return total


def _norm(vector: Vector) -> float:
    return float(np.linalg.norm(vector))


def _unit(vector: Vector) -> Vector:
    """The vector at length one; a vector of zeros stays as it is."""
    norm = _norm(vector)
    return vector / norm if norm > 0 else vector


def _cosine(unit: Vector, direction: Vector) -> float:
    return float(np.clip(unit @ _unit(direction), -1.0, 1.0))
