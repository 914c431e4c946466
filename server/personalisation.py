"""The last step of a run that asks for it: every site makes a model of its own, and tells how well it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from flwr.app import RecordDict

from common import wire
from common.classes import agreed_classes
from common.config import Config
from common.metrics import pool, site_spread, summarise
from common.models import State
from server.events import Audience, SiteLeftOut, SitesPersonalised
from server.grid import StreamingGrid
from server.roster import Member
from server.survey import survey


def personalise(
    grid: StreamingGrid,
    config: Config,
    members: Sequence[Member],
    models: Mapping[int, State],
    initial: State,
    audience: Audience,
    check: Callable[[Member, int], None],
) -> set[str]:
    """Send each member its group's model, under `select` also the weights all started from, and pool the answers.

    `check` raises `WireError` for a member that cannot have tested on so many samples.

    What sites make of them stays with them; statistics of their own test splits come back. Returned are the names of
    those that have put what they made on their disk.
    """
    connected = set(grid.get_node_ids())
    task = wire.Task(config.for_site(), config.rounds, config.rounds)
    packed = {group: wire.pack_arrays(model) for group, model in models.items()}
    start = [wire.pack_arrays(initial)] if config.personalise == "select" else []
    classes, limit_mb = len(agreed_classes(config.data)), config.round.max_message_mb

    def read(member: Member, content: RecordDict) -> wire.Evaluation:
        answer = wire.unpack_evaluation(content, classes=classes, limit_mb=limit_mb)
        check(member, int(answer.statistics.confusion.sum()))
        return answer

    answers = survey(
        grid,
        audience,
        [member for member in members if member.node_id in connected],
        "personalise",
        lambda member: wire.pack_task(replace(task, group=member.group), packed[member.group], *start),
        read,
        stage="personalise",
        round_number=config.rounds,
        deadline=config.round.deadline,
    )
    for member in members:
        if member.node_id not in connected:
            audience.tell(SiteLeftOut("personalise", config.rounds, member.name, "not connected"))
    holders = {name for name, answer in answers.items() if answer.stored}
    tested = {name: answer for name, answer in answers.items() if answer.statistics.confusion.sum()}
    if not tested:
        return holders
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
    return holders
