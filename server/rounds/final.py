"""After the last round: what sites make of the final models, and keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flwr.app import RecordDict

from common import wire
from common.config import Config
from common.metrics import pool, site_spread, summarise
from server.asking.grid import StreamingGrid
from server.asking.stage import Exchange, Question, ask
from server.asking.tasks import Tasks
from server.history.events import Audience, SitesPersonalised
from server.roster import Member
from server.rounds.round import Screening


@dataclass(frozen=True)
class _Kept:
    seconds: float


def personalise(
    grid: StreamingGrid,
    config: Config,
    members: Sequence[Member],
    tasks: Tasks,
    screening: Screening,
    audience: Audience,
) -> set[str]:
    """Send each member its group's model, and pool the answers.

    What sites make of it stays with them; statistics of their own test splits come back. Returned are the names of
    those that have put what they made on their disk.
    """
    exchange = Exchange(
        audience,
        "personalise",
        config.rounds,
        members,
        lambda member: Question(tasks.content(member, trains=False), "query.personalise"),
        screening.evaluation,
        timeout=config.round.deadline,
    )
    answers = dict(sorted((member.name, answer) for member, answer in ask(exchange, grid, config.round.deadline)))
    tested = {name: answer for name, answer in answers.items() if answer.statistics.confusion.sum()}
    if tested:
        sites = {name: summarise(answer.statistics) for name, answer in tested.items()}
        mean, worst = site_spread([metrics.accuracy for metrics in sites.values()])
        audience.tell(
            SitesPersonalised(
                mode=config.personalise,
                kept={name: answer.kept for name, answer in tested.items()},
                overall=summarise(pool([answer.statistics for answer in tested.values()])),
                sites=sites,
                mean_site_accuracy=mean,
                worst_tenth_accuracy=worst,
            )
        )
    return {name for name, answer in answers.items() if answer.stored}


def hand_out(
    grid: StreamingGrid, config: Config, members: Sequence[Member], tasks: Tasks, audience: Audience
) -> Iterator[str]:
    """Send each member its group's final model; yield the names of those who have it on their disk."""

    def read(member: Member, content: RecordDict) -> _Kept:
        return _Kept(wire.unpack_kept(content, limit_mb=config.round.max_message_mb))

    exchange = Exchange(
        audience,
        "keep",
        config.rounds,
        members,
        lambda member: Question(tasks.content(member, trains=False), "query.keep"),
        read,
        timeout=config.round.deadline,
    )
    for member, _ in ask(exchange, grid, config.round.deadline):
        yield member.name
