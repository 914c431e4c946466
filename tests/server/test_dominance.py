from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from common.config import Config
from server.groups import dominant
from tests.support.runs import run


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ({}, None),
        ({"a": 10}, None),
        ({"a": 10, "b": 10}, None),
        ({"a": 10, "b": 11}, ("b", 11 / 21)),
        ({"a": 900, "b": 50, "c": 50}, ("a", 0.9)),
        ({"a": 40, "b": 30, "c": 30}, None),
    ],
)
def test_a_site_dominates_with_more_than_half_of_its_group(
    sizes: dict[str, int], found: tuple[str, float] | None
) -> None:
    assert dominant(sizes) == found


def test_the_log_names_a_site_that_decides_its_groups_model(
    small_config: Callable[..., Config], caplog: pytest.LogCaptureFixture
) -> None:
    # Two sites of unequal size: one of them has more than half for certain, unless a draw makes them equal.
    config = small_config(**{"method": "fedavg", "sites": 2, "rounds": 0})
    with caplog.at_level(logging.WARNING, logger="coterie"):
        run(config)
    assert any("its updates decide the group's model" in message for message in caplog.messages)
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="coterie"):
        run(small_config(**{"method": "fedavg", "sites": 2, "rounds": 0, "aggregate.cap": 1.0}))
    assert not any("its updates decide" in message for message in caplog.messages)
