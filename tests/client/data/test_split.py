"""A site's training and test part."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from client.data.split import split, split_for_good
from common.config import SettingsError

Samples = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 9), st.sampled_from([-1, 0, 1])), min_size=1, max_size=80
)


def run(
    labels: list[int],
    groups: list[str] | None = None,
    hints: list[int] | None = None,
    fraction: float = 0.2,
    seed: int = 0,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return split(
        np.array(labels, np.int64),
        None if groups is None else np.array(groups),
        np.array(hints if hints is not None else [-1] * len(labels), np.int8),
        fraction,
        np.random.default_rng(seed).random(len(labels)),
    )


@settings(max_examples=200, deadline=None)
@given(
    samples=Samples, fraction=st.floats(0.01, 0.99), grouped=st.booleans(), hinted=st.booleans(), seed=st.integers(0, 3)
)
def test_sides_are_disjoint_complete_and_reproducible(
    samples: list[tuple[int, int, int]], fraction: float, grouped: bool, hinted: bool, seed: int
) -> None:
    labels = [label for label, _, _ in samples]
    # A group has one hint, or the data contradict themselves.
    wish = {group: hint for _, group, hint in samples}
    groups = [f"patient {group}" for _, group, _ in samples] if grouped else None
    hints = [wish[group] if grouped else hint for _, group, hint in samples] if hinted else None
    train, test = run(labels, groups, hints, fraction, seed)
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(len(samples)))
    assert np.all(np.diff(train) > 0)
    assert np.all(np.diff(test) > 0)
    assert len(train) >= 1
    units = len(set(groups)) if groups else len(samples)
    assert (len(test) >= 1) == (units >= 2)
    if groups:
        assert not {groups[row] for row in train} & {groups[row] for row in test}
    again = run(labels, groups, hints, fraction, seed)
    assert np.array_equal(train, again[0])
    assert np.array_equal(test, again[1])


@given(counts=st.lists(st.integers(1, 50), min_size=1, max_size=6), fraction=st.floats(0.05, 0.5))
@settings(max_examples=100, deadline=None)
def test_every_class_gives_its_share(counts: list[int], fraction: float) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    _, test = run(labels.tolist(), fraction=fraction)
    held = np.bincount(labels[test], minlength=len(counts))
    if max(counts) > 1:
        assert all(held[label] == 0 for label, count in enumerate(counts) if count == 1)
        assert np.all(np.abs(held - np.array(counts) * fraction) <= 1 + 1e-9)


def test_another_seed_holds_out_other_samples() -> None:
    labels = [0] * 50
    assert not np.array_equal(run(labels, seed=0)[1], run(labels, seed=1)[1])


def test_hints_win_and_unspecified_samples_train() -> None:
    train, test = run([0, 0, 1, 1, 1], hints=[0, 1, 1, -1, 0])
    assert train.tolist() == [0, 3, 4]
    assert test.tolist() == [1, 2]


@pytest.mark.parametrize("hint", [0, 1, -1])
def test_hints_that_leave_one_side_empty_are_not_followed(hint: int) -> None:
    train, test = run([0] * 10, hints=[hint] * 10)
    assert (len(train), len(test)) == (8, 2)


def test_unspecified_samples_follow_their_group() -> None:
    train, test = run([0, 0, 0, 0], ["a", "a", "b", "b"], [1, -1, 0, -1])
    assert test.tolist() == [0, 1]
    assert train.tolist() == [2, 3]


def test_a_group_on_both_sides_of_the_hints_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="group 'p7' into the training and into the test part"):
        run([0, 0, 1], ["p7", "p7", "p8"], [0, 1, 0])


def test_groups_are_split_as_evenly_as_their_sizes_allow() -> None:
    labels = [label for label in (0, 1) for _ in range(50)]
    groups = [f"{row // 5}" for row in range(100)]
    _, test = run(labels, groups)
    assert np.bincount(np.array(labels)[test]).tolist() == [10, 10]


def test_a_huge_group_is_not_held_out_for_a_small_quota() -> None:
    _, test = run([0] * 100, ["big"] * 90 + [f"small {row}" for row in range(10)], fraction=0.1)
    assert test.tolist() == list(range(90, 100))


def for_good(
    lots: list[float], groups: list[str] | None = None, hints: list[int] | None = None, fraction: float = 0.2
) -> tuple[list[int], list[int]]:
    train, test = split_for_good(
        None if groups is None else np.array(groups),
        np.array(hints if hints is not None else [-1] * len(lots), np.int8),
        fraction,
        np.array(lots),
    )
    return train.tolist(), test.tolist()


class TestForGood:
    """The split of a source that may change."""

    @settings(max_examples=200, deadline=None)
    @given(
        hints=st.lists(st.sampled_from([-1, 0, 1]), min_size=12, max_size=12),
        states=st.lists(st.sets(st.integers(0, 29), min_size=1), min_size=2, max_size=6),
        grouped=st.booleans(),
        fraction=st.floats(0.05, 0.95),
        seed=st.integers(0, 9),
    )
    def test_nobody_changes_sides_whoever_comes_and_goes(
        self, hints: list[int], states: list[set[int]], grouped: bool, fraction: float, seed: int
    ) -> None:
        unit = (np.arange(30) % 12 if grouped else np.arange(30)).tolist()
        lots = np.random.default_rng(seed).random(30)
        wish = [hints[row % 12] for row in range(30)]
        trained: set[int] = set()
        tested: set[int] = set()
        for state in states:
            rows = sorted(state)
            train, test = for_good(
                [lots[unit[row]] for row in rows],
                [f"patient {unit[row]}" for row in rows] if grouped else None,
                [wish[row] for row in rows],
                fraction,
            )
            assert sorted(train + test) == list(range(len(rows)))
            assert train
            by_right = [row for row in rows if wish[row] == 0 or (wish[row] == -1 and lots[unit[row]] >= fraction)]
            if by_right:
                assert [rows[row] for row in train] == by_right
                trained |= {rows[row] for row in train}
                tested |= {rows[row] for row in test}
            else:
                # Something must train: the highest lot does, and nothing else.
                highest = max(rows, key=lambda row: lots[unit[row]])
                assert [rows[row] for row in train] == [row for row in rows if unit[row] == unit[highest]]
        assert not trained & tested

    def test_the_share_is_held_on_average(self) -> None:
        lots = np.random.default_rng(0).random(10_000).tolist()
        assert len(for_good(lots, fraction=0.3)[1]) == pytest.approx(3000, abs=150)

    def test_hints_win_one_by_one_and_the_rest_is_by_lot(self) -> None:
        assert for_good([0.1, 0.9, 0.1, 0.9], hints=[0, 1, -1, -1]) == ([0, 3], [1, 2])
        # Also where all train: a test part that comes later must not move anybody.
        assert for_good([0.1, 0.9], hints=[0, 0]) == ([0, 1], [])
        assert for_good([0.1, 0.9], hints=[1, 1]) == ([1], [0])

    def test_unspecified_samples_follow_their_group_and_contradictions_are_refused(self) -> None:
        assert for_good([0.9, 0.9, 0.1, 0.1], ["a", "a", "b", "b"], [1, -1, 0, -1]) == ([2, 3], [0, 1])
        with pytest.raises(SettingsError, match="group 'p7' into the training and into the test part"):
            for_good([0.5, 0.5], ["p7", "p7"], [0, 1])
