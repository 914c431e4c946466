"""A method is one file: here one that groups sites by how many samples they have, and asks for no fingerprint."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from common.config import Config
from server.history.events import GroupsFormed, RunEnded, SitePlaced
from server.methods import METHODS
from server.methods.method import Described, Method
from server.methods.partition import Agglomerative
from tests.support.loopback import LoopbackGrid
from tests.support.runs import MakeConfig, Record, run


def _by_size(sites: Sequence[Described], config: Config) -> NDArray[np.float64]:
    """|ln n_i − ln n_j|, from the cards alone."""
    sizes = np.log([site.card.train_samples for site in sites])
    distance: NDArray[np.float64] = np.abs(np.subtract.outer(sizes, sizes))
    return distance


BY_SIZE = Method(
    name="by-size",
    title="By size",
    about="A method of one file.",
    paper="",
    summary="sites with about as many samples train together",
    family="clustered before training",
    partition=Agglomerative(),
    distance=_by_size,
    settings_used=("cluster.k",),
)


def test_a_method_that_looks_at_the_cards_alone_is_one_file(
    small_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, BY_SIZE.name, BY_SIZE)
    config = small_config(method="by-size", sites=6, rounds=1, cluster__k=2, partition__scheme="dirichlet")
    record, grid = run(config)
    assert {message.metadata.message_type for message in grid.pushed} <= {"query.hello", "train", "evaluate"}
    (formed,) = record.of(GroupsFormed)
    assert record.of(RunEnded)[0].outcome == "finished"
    sizes = {event.card.name: event.card.train_samples for event in record.events if hasattr(event, "card")}
    large, small = (
        [sizes[site] for site, label in zip(formed.sites, formed.labels, strict=True) if label == group]
        for group in sorted(set(formed.labels), key=lambda group: -max(
            sizes[site] for site, label in zip(formed.sites, formed.labels, strict=True) if label == group
        ))
    )  # fmt: skip
    assert min(large) > max(small)


def test_a_newcomer_is_placed_by_its_size(small_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, BY_SIZE.name, BY_SIZE)
    config = small_config(method="by-size", sites=6, rounds=2, cluster__k=2, round__start_timeout=0.1)

    class OneLate(LoopbackGrid):
        """The last site comes once training has begun."""

        def __init__(self, sites: int) -> None:
            super().__init__(sites)
            self.disconnect(105)

    grid = OneLate(6)
    record = Record()

    class Opens:
        def hear(self, event: object) -> None:
            if isinstance(event, GroupsFormed):
                grid.connect(105, 5)

    from server.app import conduct

    conduct(grid, config, [record, Opens()])
    (placed,) = record.of(SitePlaced)
    assert placed.site == "005"
    assert record.of(RunEnded)[0].outcome == "finished"
