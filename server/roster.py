"""The sites of a run: who they are, which node they sit on, which group they belong to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.fingerprint import KINDS, Fingerprint
from common.site_card import SiteCard
from common.wire import Introduction

# The node of a member that has not been found yet; Flower gives no node this number.
_NOWHERE = 0


@dataclass
class Member:
    """A site that takes part. The node id may change when the site comes back; its name does not."""

    card: SiteCard
    node_id: int
    fingerprint: Fingerprint | None
    group: int = 0
    # The round in which it sent the fingerprint.
    described: int = 0

    @property
    def name(self) -> str:
        """The site's own name."""
        return self.card.name


class Roster:
    """All members, in the order of their names, so that nothing depends on who answered first."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._by_node: dict[int, Member] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def __getitem__(self, name: str) -> Member:
        return self._members[name]

    @property
    def members(self) -> list[Member]:
        """All members by name."""
        return [self._members[name] for name in sorted(self._members)]

    @property
    def labels(self) -> NDArray[np.int64]:
        """The group of each member, in the order of `members`."""
        return np.array([member.group for member in self.members], np.int64)

    def sizes(self, group: int) -> dict[str, int]:
        """Training samples that each member of a group has declared."""
        return {member.name: member.card.train_samples for member in self.members if member.group == group}

    def state(self) -> list[dict[str, Any]]:
        """The members without their nodes, which are others in another process."""
        return [
            {
                "card": asdict(member.card),
                "group": member.group,
                "described": member.described,
                "fingerprint": None
                if member.fingerprint is None
                else {"kind": member.fingerprint.kind, "arrays": vars(member.fingerprint)},
            }
            for member in self.members
        ]

    def restore(self, state: list[dict[str, Any]]) -> None:
        """Take in the members of an earlier `state`, each of them nowhere yet."""
        for entry in state:
            kept = entry["fingerprint"]
            fingerprint = None if kept is None else KINDS[kept["kind"]](**kept["arrays"])
            lists = {name: tuple(entry["card"][name]) for name in ("class_counts", "faults")}
            card = SiteCard(**entry["card"] | lists)
            self.add(Member(card, _NOWHERE, fingerprint, entry["group"], entry["described"]))

    def at_node(self, node_id: int) -> Member | None:
        """The member that sits on a node."""
        return self._by_node.get(node_id)

    def add(self, member: Member) -> None:
        """Take a new member in."""
        self._members[member.name] = member
        self._by_node[member.node_id] = member

    def move(self, name: str, node_id: int, introduction: Introduction, round_number: int) -> None:
        """A member came back on another node, perhaps with other data; it keeps its group."""
        self.seat(name, node_id)
        self.renew(name, introduction, round_number)

    def seat(self, name: str, node_id: int) -> None:
        """A known member was found on a node."""
        member = self._members[name]
        self._by_node.pop(member.node_id, None)
        member.node_id = node_id
        self._by_node[node_id] = member

    def renew(self, name: str, introduction: Introduction, round_number: int) -> None:
        """A member introduced itself anew, in a round, because its data changed; it keeps node and group."""
        member = self._members[name]
        member.card, member.fingerprint = introduction.card, introduction.fingerprint
        member.described = round_number

    def groups(self) -> dict[int, list[Member]]:
        """Members by group, both in order."""
        grouped: dict[int, list[Member]] = {}
        for member in sorted(self.members, key=lambda member: member.group):
            grouped.setdefault(member.group, []).append(member)
        return grouped


def common_weights(cards: Iterable[SiteCard]) -> str:
    """The pretrained weights that most sites have; on a tie, those of the first site by name."""
    counts = Counter(card.weights for card in sorted(cards, key=lambda card: card.name))
    return counts.most_common(1)[0][0] if counts else ""


def common_form(fingerprints: dict[str, Fingerprint]) -> str:
    """The form most fingerprints have; on a tie, that of the first site by name."""
    counts = Counter(fingerprints[name].form for name in sorted(fingerprints))
    return counts.most_common(1)[0][0]
