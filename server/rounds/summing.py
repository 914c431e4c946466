"""What it takes to add up the updates of a round, beside the updates themselves. In the open: nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common.config import Config
from server.asking.grid import StreamingGrid
from server.asking.tasks import Part, Tasks
from server.history.events import Audience
from server.roster import Member
from server.rounds.round import Round


class Summing:
    """Updates are added up as they come. What needs more exchanges than that overrides this.

    Attributes
    ----------
    reasons
        By group: why the round's updates could not be added up.
    """

    def __init__(self, config: Config, audience: Audience) -> None:
        self.config, self.audience = config, audience
        self.reasons: Mapping[int, str] = {}

    def agree(
        self, this: Round, members: Mapping[int, Sequence[Member]], tasks: Tasks, grid: StreamingGrid
    ) -> set[str]:
        """Before the updates are asked for: return the names of those, by group, who may make one."""
        return {member.name for of_group in members.values() for member in of_group}

    def part(self, member: Member) -> Part | None:
        """What a member is told beside the model that it is to train; None: nothing."""
        return None

    def open(self, this: Round, grid: StreamingGrid) -> None:
        """After the updates are in, and before their sums become models."""
