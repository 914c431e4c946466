from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from common.intervals import judged, newcombe, wilson


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_that_of_scipy(counts: tuple[int, int]) -> None:
    low, high = wilson(*counts)
    slow = binomtest(*counts).proportion_ci(0.95, method="wilson")
    assert (low, high) == pytest.approx((slow.low, slow.high), abs=1e-9)
    assert low <= counts[0] / counts[1] <= high


@pytest.mark.parametrize(
    ("counts", "low", "high"),
    # Newcombe 1998, table II: examples (a), (c), (d) and (g) under method 10.
    [((56, 70, 48, 80), 0.0524, 0.3339), ((6, 7, 2, 7), 0.0582, 0.8062), ((5, 56, 0, 29), -0.0381, 0.1926),
     ((10, 10, 0, 10), 0.6075, 1.0)],
)  # fmt: skip
def test_newcombe_is_that_of_the_paper(counts: tuple[int, int, int, int], low: float, high: float) -> None:
    assert newcombe(*counts) == pytest.approx((low, high), abs=6e-5)


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.integers(0, n), st.just(n))))
def test_exchanging_the_two_turns_the_interval_round(counts: tuple[int, int, int]) -> None:
    one, other, count = counts
    low, high = newcombe(one, count, other, count)
    assert newcombe(other, count, one, count) == pytest.approx((-high, -low), abs=1e-12)
    assert -1 <= low <= (one - other) / count <= high <= 1
    if one == other:
        assert judged(low, high) == "cannot tell"


def test_a_site_with_seven_test_samples_cannot_tell_unless_nearly_all_differ() -> None:
    assert judged(*newcombe(6, 7, 3, 7)) == "cannot tell"
    assert judged(*newcombe(7, 7, 0, 7)) == "better together"
    assert judged(*newcombe(600, 700, 300, 700)) == "better together"
    assert judged(*newcombe(300, 700, 600, 700)) == "better alone"
    assert judged(*newcombe(0, 0, 0, 7)) == "cannot tell"
    assert wilson(0, 0) == (0.0, 1.0)


def test_equal_models_are_told_apart_in_at_most_one_of_twenty() -> None:
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(2000):
        count = int(rng.integers(5, 100))
        share = rng.random()
        wrong += (
            judged(*newcombe(rng.binomial(count, share), count, rng.binomial(count, share), count)) != "cannot tell"
        )
    assert wrong / 2000 < 0.06
