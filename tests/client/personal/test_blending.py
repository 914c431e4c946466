"""How much of the group's model is in a blend, against a slow search; and when a model is clearly better."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.personal.blending import clearly_better, group_weight, likelihood

CHANCES = st.lists(st.tuples(st.floats(1e-9, 1), st.floats(1e-9, 1), st.sampled_from([0.25, 0.5, 1.0])), max_size=20)
Triples = list[tuple[float, float, float]]


def arrays(samples: Triples) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return tuple(np.array([sample[place] for sample in samples], np.float64) for place in range(3))  # type: ignore[return-value]


@given(CHANCES, st.sampled_from([(2.0, 1.0), (1.0, 1.0), (5.0, 0.5)]))
def test_no_weight_is_likelier(samples: Triples, prior: tuple[float, float]) -> None:
    group, own, say = arrays(samples)
    a, b = prior
    weight = group_weight(group, own, say, for_group=a, for_own=b)

    def slow(w: float) -> float:
        value = a * np.log(w) + b * np.log(1 - w)
        for p, q, s in samples:
            value += s * np.log(w * p + (1 - w) * q)
        return float(value)

    assert likelihood(weight, group, own, say, for_group=a, for_own=b) == pytest.approx(slow(weight))
    assert slow(weight) >= max(slow(w) for w in np.linspace(0.001, 0.999, 400)) - 1e-9


def test_without_samples_a_site_keeps_to_the_prior() -> None:
    none = np.empty(0)
    assert group_weight(none, none, none, for_group=2, for_own=1) == pytest.approx(2 / 3)


@given(CHANCES)
def test_order_does_not_matter_and_doubling_the_evidence_leaves_the_prior(samples: Triples) -> None:
    group, own, say = arrays(samples)
    once = group_weight(group, own, say, for_group=2, for_own=1)
    assert group_weight(group[::-1], own[::-1], say[::-1], for_group=2, for_own=1) == pytest.approx(once, abs=1e-9)
    # Two copies of a patient's image at half the say are the image.
    twice = group_weight(np.repeat(group, 2), np.repeat(own, 2), np.repeat(say / 2, 2), for_group=2, for_own=1)
    assert twice == pytest.approx(once, abs=1e-9)


def test_the_more_samples_the_farther_from_the_prior() -> None:
    weights = [
        group_weight(np.full(n, 0.2), np.full(n, 0.9), np.ones(n), for_group=2, for_own=1) for n in (0, 1, 5, 50, 5000)
    ]
    assert weights == sorted(weights, reverse=True)
    assert weights[-1] < 0.01
    assert group_weight(np.full(500, 0.9), np.full(500, 0.2), np.ones(500), for_group=2, for_own=1) > 0.99


def test_what_is_better_by_chance_is_not_clearly_better() -> None:
    rng = np.random.default_rng(0)
    before = rng.exponential(1.0, 40)
    assert clearly_better(before, before - 0.5 + rng.normal(0, 0.2, 40), np.ones(40))
    assert not clearly_better(before, before + rng.normal(0, 1, 40) - 0.01, np.ones(40))
    assert not clearly_better(before, before, np.ones(40))
    # One patient, or one sample, is no evidence at all.
    assert not clearly_better(before[:1], before[:1] - 1, np.ones(1))
