"""Who takes part, and in which group: the first groups, newcomers, and cards that are out of date."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from common import wire
from common.config import Config, SettingsError
from common.signature import Signature
from common.state import State
from server.asking.enrolment import Enrolment, WriteTask
from server.asking.grid import StreamingGrid
from server.clustering import MergeTree, Rehearsed, group_differences, merge_tree
from server.groups import Groups, dominant
from server.history.events import (
    Audience,
    GroupsCompared,
    GroupsFormed,
    RehearsalDone,
    SiteEnrolled,
    SitePlaced,
    SiteRenewed,
)
from server.methods import Grouping, Method, Placement
from server.methods.training import GroupingRule
from server.roster import Member, Roster

_log = logging.getLogger("coterie")

Rehearse = Callable[[MergeTree], Rehearsed | None]


class NoSites(SettingsError):
    """Nobody is left to train with."""


class Membership:
    """The members of a run and their groups.

    Parameters
    ----------
    config, method
        Of the run.
    initial
        The whole model that every site starts from, for fingerprints that need it.
    start
        What of it travels: the model that groups start from.
    audience
        Hears who comes, and where each is put.
    task
        Writes what a site that is asked to introduce itself is told.
    """

    def __init__(
        self, config: Config, method: Method, initial: State, start: State, audience: Audience, task: WriteTask
    ) -> None:
        self._config = config
        self._method = method
        self._start = start
        self._audience = audience
        self.roster = Roster()
        self.groups = Groups(self.roster, audience)
        self._enrolment = Enrolment(config, method, initial, self.roster, audience, task)

    def enrol(self, grid: StreamingGrid) -> list[Member]:
        """Wait for the sites, and ask each for its fingerprint once."""
        patience = self._config.round.start_timeout
        nodes = grid.wait_for_nodes(self._config.sites, patience)
        if not nodes:
            raise NoSites(
                f"no site connected within {patience:.0f} s (round.start_timeout): start the SuperNodes first"
            )
        if len(nodes) < self._config.sites:
            _log.warning("%d of %d sites connected in time; going on with them", len(nodes), self._config.sites)
        for introduction, node_id in self._enrolment.introduce(grid, nodes, round_number=0):
            self.roster.add(Member(introduction.card, node_id, introduction.fingerprint))
            self._audience.tell(SiteEnrolled(introduction.card, late=False))
        if not len(self.roster):
            raise NoSites(f"no site can take part: {self._enrolment.why_nobody()}")
        return self.roster.members

    def form_groups(self, rule: GroupingRule, rehearse: Rehearse | None = None) -> None:
        """Group the members as the method says, and give each group its first model.

        `rehearse` measures what the cuts of a tree of merges bring, where that is to decide.
        """
        members = self.roster.members
        chance = None if self._method.chance is None else self._method.chance(members, self._config)
        apart = self._method.grouped_by(chance, self._config)
        distance = None if apart is None else apart(members, self._config)
        grouping = self._method.partition.form(distance, len(members), self._config.cluster, chance)
        if rehearse is not None and distance is not None:
            grouping = self._rehearsed(grouping, merge_tree(distance, linkage=self._config.cluster.linkage), rehearse)
        for member, label in zip(members, grouping.labels, strict=True):
            member.group = int(label)
        opening = rule.open()
        if opening is None:
            self.groups.open(dict.fromkeys(self.roster.groups(), self._start))
        else:
            self.groups.open(opening.models)
            for name, group in opening.groups.items():
                self.roster[name].group = group
        self._warn_of_dominance()
        selection = grouping.selection
        self._audience.tell(
            GroupsFormed(
                sites=tuple(member.name for member in members),
                labels=tuple(member.group for member in members),
                distance=distance,
                k_scores=dict(selection.scores) if selection else None,
                k_window=tuple(selection.window) if selection else None,
                cv=selection.cv if selection else None,
                chance=chance,
                views={} if self._method.views is None else self._method.views(members),
            )
        )
        self._compare_groups(members)

    def _compare_groups(self, members: Sequence[Member]) -> None:
        """Tell what kind of difference is between the groups, where the sites said enough of their classes."""
        signatures = [member.fingerprint for member in members if isinstance(member.fingerprint, Signature)]
        if len(signatures) < len(members) or len({member.group for member in members}) < 2:
            return
        sizes, labels = [member.card.named_samples for member in members], [member.group for member in members]
        self._audience.tell(GroupsCompared(tuple(group_differences(signatures, sizes, labels))))

    def _warn_of_dominance(self) -> None:
        if self._config.aggregate.cap or self._config.aggregate.rule in ("trimmed", "median"):
            return
        for group in self.roster.groups():
            if found := dominant(self.roster.sizes(group)):
                _log.warning(
                    "%s has %.0f %% of the samples of group %d: its updates decide the group's model; "
                    "aggregate.cap limits what one site counts for", found[0], 100 * found[1], group,
                )  # fmt: skip

    def _rehearsed(self, grouping: Grouping, tree: MergeTree, rehearse: Rehearse) -> Grouping:
        """Cut the tree where the rehearsal says; where it can say nothing, as the silhouette did."""
        outcome = rehearse(tree)
        if outcome is None:
            return grouping
        self._audience.tell(RehearsalDone(outcome, int(grouping.labels.max()) + 1))
        return replace(grouping, labels=tree.cut(outcome.k))

    def rejoin(self, grid: StreamingGrid, round_number: int) -> None:
        """Find out which node each member sits on now. Who is missing is waited for no longer than at any start."""
        nodes = grid.wait_for_nodes(len(self.roster), self._config.round.start_timeout)
        for name, node in sorted(self._enrolment.recognise(grid, nodes, round_number).items()):
            self.roster.seat(name, node)

    def renew_cards(self, grid: StreamingGrid, names: Iterable[str], round_number: int) -> None:
        """Ask sites that have far more data than they declared to introduce themselves again."""
        members = [self.roster[name] for name in sorted(names)]
        if not members:
            return
        for name, introduction in self.ask_again(grid, members, round_number).items():
            self.roster.renew(name, introduction, round_number)
            self._audience.tell(SiteRenewed(introduction.card))

    def ask_again(
        self, grid: StreamingGrid, members: Sequence[Member], round_number: int
    ) -> dict[str, wire.Introduction]:
        """Ask members for card and fingerprint anew; return the usable answers by name."""
        # Who has not been found since the run went on sits nowhere.
        return self._enrolment.ask_again(grid, [member for member in members if member.node_id], round_number)

    def admit_newcomers(self, grid: StreamingGrid, rule: GroupingRule, round_number: int) -> None:
        """Place sites that connected since the last round; nobody else is moved for them."""
        strangers = self._enrolment.strangers(grid)
        if not strangers:
            return
        for introduction, node in self._enrolment.introduce(grid, strangers, round_number):
            name = introduction.card.name
            if name in self.roster:
                self.roster.move(name, node, introduction, round_number)
                self._audience.tell(SiteEnrolled(introduction.card, late=True))
                continue
            placement = self._place(introduction)
            member = Member(introduction.card, node, introduction.fingerprint, placement.group, round_number)
            self.roster.add(member)
            self._audience.tell(SiteEnrolled(introduction.card, late=True))
            # Who is a member can be asked more.
            placement = rule.place(name, round_number - 1) or placement
            member.group = placement.group
            self.groups.admit(placement.group, self._start)
            self._audience.tell(SitePlaced(round_number, name, placement.group, placement.confidence, placement.fits))

    def _place(self, introduction: wire.Introduction) -> Placement:
        """Where a newcomer belongs."""
        members, labels = self.roster.members, self.roster.labels
        if self._method.place is not None:
            return self._method.place(members, labels, introduction, self._config)
        distance = None
        if self._method.distance is not None:
            distance = self._method.distance([*members, introduction], self._config)[-1, :-1]
        return self._method.partition.place(distance, labels)
