"""Of very many sites a page compares some, drawn by lot."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.invented import Plot, write_run
from server.report import page, record
from server.report.compared import Grouping, drawn, part_of
from server.report.study import study


def grouping_of(labels: list[int]) -> Grouping:
    return Grouping(tuple(f"{place:04d}" for place in range(len(labels))), np.array(labels, np.int64), (), None)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(0, 9), st.integers(1, 70))
def test_all_or_so_many_are_drawn_and_of_each_group_two(labels: list[int], seed: int, most: int) -> None:
    grouping = grouping_of(labels)
    places = drawn(grouping, seed, most).tolist()
    assert places == sorted(set(places))
    assert len(places) == min(most, len(labels))
    assert places == drawn(grouping, seed, most).tolist()
    if len(labels) > most >= 12:
        for group in set(labels):
            assert sum(labels[place] == group for place in places) >= min(2, labels.count(group))


def test_every_site_of_a_group_may_be_drawn() -> None:
    grouping = grouping_of([0] * 30)
    seen = {place for seed in range(40) for place in drawn(grouping, seed, 10).tolist()}
    assert seen == set(range(30))


def test_a_part_has_the_sites_and_labels_of_the_whole() -> None:
    grouping = grouping_of([4, 1, 4, 0])
    part = part_of(grouping, np.array([1, 2]))
    assert (part.sites, part.labels.tolist()) == (("0001", "0002"), [1, 4])
    assert part_of(grouping, np.arange(4)) is grouping


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(record, "drawn", partial(drawn, most=15))
    return 15


def test_the_page_of_many_sites_compares_some_and_says_so(few: int, tmp_path: Path) -> None:
    found = record.read_run(write_run(tmp_path / "run", Plot(sites=40, rounds=2)))
    assert found.grouping is not None
    assert found.compared is not None
    assert found.distance is not None
    assert len(found.grouping.sites) == 40
    whole = np.load(tmp_path / "run" / "distances.npy")
    places = [found.grouping.sites.index(site) for site in found.compared.sites]
    np.testing.assert_array_equal(found.distance, whole[np.ix_(places, places)])
    looked = study(found)
    assert looked is not None
    assert len(looked.hard) == few
    text = page([found])
    assert "of 15 sites of 40, drawn by lot" in text
    # Everybody has a row.
    assert all(f">{site}<" in text for site in found.grouping.sites)


def test_a_matrix_that_is_not_of_all_sites_is_not_used(few: int, tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", Plot(sites=40, rounds=1))
    np.save(directory / "distances.npy", np.zeros((15, 15)))
    found = record.read_run(directory)
    assert found.distance is None
    assert any("distances.npy cannot be used" in note for note in found.notes)
