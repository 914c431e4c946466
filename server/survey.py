"""Asks members one question each, outside of training and testing, and collects what is usable."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from flwr.app import Message, RecordDict

from common import wire
from server.enrolment import content_of
from server.events import Audience, ReplyAccepted, SiteLeftOut, Stage, StageStarted
from server.grid import StreamingGrid
from server.roster import Member


class _Answer(Protocol):
    @property
    def seconds(self) -> float:
        """What it cost the site."""


A = TypeVar("A", bound=_Answer)


def survey(
    grid: StreamingGrid,
    audience: Audience,
    members: list[Member],
    question: str,
    ask: Callable[[Member], RecordDict],
    read: Callable[[Member, RecordDict], A],
    *,
    stage: Stage,
    round_number: int,
    deadline: float,
) -> dict[str, A]:
    """Send `ask(member)` as `query.<question>` to every member; return the answers that `read` accepts, by name.

    `read` raises `WireError` for what cannot be used. Who fails, is silent or says nonsense is named and left out.
    """
    audience.tell(StageStarted(stage, round_number, len(members)))
    asked = {member.node_id: member for member in members}
    sent: dict[str, int] = {}

    def questions() -> Iterable[Message]:
        for member in members:
            content = ask(member)
            sent[member.name] = wire.size(content)
            yield Message(content, member.node_id, f"query.{question}", ttl=deadline)

    answers: dict[str, A] = {}
    reasons = {member.name: f"no answer within {deadline:.0f} s" for member in members}
    for reply in grid.send_and_receive(questions(), timeout=deadline):
        member = asked.get(grid.node_of(reply))
        if member is None or reasons.pop(member.name, None) is None:
            continue
        try:
            answer = read(member, content_of(reply))
        except wire.WireError as error:
            reasons[member.name] = str(error)
            continue
        answers[member.name] = answer
        received = wire.size(reply.content)
        audience.tell(ReplyAccepted(stage, round_number, member.name, sent[member.name], received, answer.seconds))
    for name, reason in sorted(reasons.items()):
        audience.tell(SiteLeftOut(stage, round_number, name, reason))
    return {name: answers[name] for name in sorted(answers)}
