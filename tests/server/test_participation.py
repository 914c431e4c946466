"""Who trains in a round."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.participation import participants

PRESENT = st.dictionaries(
    st.integers(0, 5), st.lists(st.integers(0, 99), min_size=1, max_size=12, unique=True), min_size=1
)


@given(PRESENT, st.floats(0.01, 1.0), st.integers(0, 9), st.integers(1, 9), st.sampled_from(["group", "all"]))
def test_who_is_drawn_was_there_and_keeps_its_group_and_order(
    present: dict[int, list[int]], fraction: float, seed: int, number: int, draw: str
) -> None:
    drawn = participants(present, fraction, seed, number, draw)  # type: ignore[arg-type]
    assert drawn == participants(present, fraction, seed, number, draw)  # type: ignore[arg-type]
    for group, members in drawn.items():
        assert members
        assert members == [site for site in present[group] if site in members]


@given(PRESENT, st.floats(0.01, 1.0))
def test_of_every_group_the_share_is_drawn_by_itself_or_of_all_together(
    present: dict[int, list[int]], fraction: float
) -> None:
    by_group = participants(present, fraction, 0, 1, "group")
    assert {g: len(m) for g, m in by_group.items()} == {g: max(1, round(fraction * len(m))) for g, m in present.items()}
    together = participants(present, fraction, 0, 1, "all")
    everybody = sum(map(len, present.values()))
    assert sum(map(len, together.values())) == max(1, round(fraction * everybody))


@pytest.mark.parametrize("draw", ["group", "all"])
def test_over_many_rounds_everybody_has_the_same_chance(draw: str) -> None:
    present = {0: list(range(4)), 1: list(range(10, 22))}
    rounds, times = 2000, dict.fromkeys([*present[0], *present[1]], 0)
    for number in range(rounds):
        for members in participants(present, 0.25, 0, number, draw).values():  # type: ignore[arg-type]
            for site in members:
                times[site] += 1
    assert all(abs(count / rounds - 0.25) < 0.04 for count in times.values())


def test_ten_of_a_hundred_train_however_many_groups_there_are() -> None:
    alone = {group: [group] for group in range(100)}
    assert len(participants(alone, 0.1, 0, 1, "all")) == 10
    assert len(participants(alone, 0.1, 0, 1, "group")) == 100
