"""What a migration rule says: who is suspected, where it belongs, and why."""

from __future__ import annotations

from dataclasses import dataclass, field


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
    changed
        By how many standard deviations the site itself finds its data changed; None: it does not say so.
    """

    cosine: float | None = None
    cosines: dict[int, float] = field(default_factory=dict)
    norm: float | None = None
    peer_norm: float | None = None
    usual_norm: float | None = None
    distances: dict[int, float] = field(default_factory=dict)
    reason: str = ""
    changed: float | None = None


@dataclass(frozen=True)
class Suspect:
    """A site that is to be examined: an outlier for so many rounds, or one that says that its data have changed.

    `back`: the group to which it returns, because the move from there has not helped.
    """

    site: str
    group: int
    rounds: int
    evidence: Evidence
    back: int | None = None


@dataclass(frozen=True)
class Verdict:
    """Where a site belongs from now on: a group, perhaps the one it is in, or (None) a new one of its own.

    `in_doubt`: it may be in the middle of a change, and is to be examined again.
    """

    site: str
    origin: int
    target: int | None
    evidence: Evidence
    in_doubt: bool = False
