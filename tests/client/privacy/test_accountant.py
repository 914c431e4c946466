"""The accountant against published vectors, the sum it stands for, and what must hold of any."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.privacy.accountant import ORDERS, Release, calibrated, compose, epsilon, renyi


@pytest.mark.parametrize(
    ("sigma", "rate", "times", "delta", "expected"),
    [
        # opacus 1.6.0, RDPAccountant's analysis at the same orders. The first is TensorFlow Privacy's MNIST tutorial,
        # the second the example of Abadi et al. 2016, whose moments accountant gave 1.26.
        (1.1, 256 / 60000, 14062, 1e-5, 2.5965558689607486),
        (4.0, 0.01, 10000, 1e-5, 1.0354900660362476),
        (1.0, 1.0, 1, 1e-5, 4.728507067217623),
        (2.0, 0.5, 10, 1e-6, 4.906254033175056),
        (0.6, 0.02, 300, 1e-5, 9.804577175215716),
        (1.3, 0.004, 2500, 1e-5, 0.7753184237600104),
        # The same, and dp-accounting 0.6.0.
        (8.0, 1.0, 40, 1e-5, 3.617099772983339),
        (0.3, 1.0, 1, 1e-5, 20.392520209469453),
    ],
)
def test_published_accountants_say_the_same(
    sigma: float, rate: float, times: int, delta: float, expected: float
) -> None:
    assert epsilon([Release(sigma, rate, times)], delta) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("rate", [0.001, 0.05, 0.5, 0.99])
@pytest.mark.parametrize("sigma", [0.4, 1.0, 3.0])
def test_at_whole_orders_it_is_the_binomial_sum(sigma: float, rate: float) -> None:
    """A_α = Σ_k C(α, k) (1 − q)^(α − k) q^k exp(k (k − 1) / (2 σ²)): Mironov, Talwar and Zhang, section 3.3."""
    found = dict(zip(ORDERS.tolist(), renyi(Release(sigma, rate)).tolist(), strict=True))
    for order in (2, 3, 7, 20, 64):
        terms = [
            math.log(math.comb(order, k))
            + (order - k) * math.log1p(-rate)
            + k * math.log(rate)
            + k * (k - 1) / (2 * sigma**2)
            for k in range(order + 1)
        ]
        assert found[order] == pytest.approx(np.logaddexp.reduce(terms) / (order - 1), rel=1e-6, abs=1e-12)


def test_everybody_sampled_is_no_sampling() -> None:
    np.testing.assert_allclose(renyi(Release(2.0, 1 - 1e-9)), renyi(Release(2.0)), rtol=1e-5)


noises = st.floats(0.2, 50)
rates = st.sampled_from([0.01, 0.2, 1.0])


@given(noises, rates, st.integers(1, 1000), st.integers(1, 1000))
def test_more_steps_cost_more_and_add_up(sigma: float, rate: float, first: int, second: int) -> None:
    one, two, both = (Release(sigma, rate, times) for times in (first, second, first + second))
    np.testing.assert_allclose(compose([one, two]), renyi(both), rtol=1e-12)
    assert epsilon([one], 1e-5) <= epsilon([one, two], 1e-5) == pytest.approx(epsilon([both], 1e-5), rel=1e-9)


@given(noises, st.floats(1.01, 10), rates)
def test_more_noise_or_fewer_samples_cost_less(sigma: float, factor: float, rate: float) -> None:
    assert (renyi(Release(sigma * factor, rate)) <= renyi(Release(sigma, rate)) + 1e-12).all()
    assert (renyi(Release(sigma, rate / 2)) <= renyi(Release(sigma, rate)) + 1e-12).all()


@given(noises)
def test_two_halves_of_one_answer_cost_what_the_whole_does(sigma: float) -> None:
    """Two parts with noise σ √2 each are one release with noise σ: 1 / σ² adds up."""
    np.testing.assert_allclose(renyi(Release(sigma * math.sqrt(2), times=2)), renyi(Release(sigma)), rtol=1e-12)


def test_nothing_costs_nothing_and_no_noise_everything() -> None:
    assert epsilon([], 1e-5) == epsilon([Release(1.0, times=0)], 1e-5) == epsilon([Release(1.0, rate=0.0)], 1e-5) == 0
    assert epsilon([Release(0.0)], 1e-5) == math.inf
    with pytest.raises(ValueError, match="no release"):
        Release(-1.0)
    with pytest.raises(ValueError, match="no release"):
        Release(math.nan)


@pytest.mark.parametrize("budget", [0.3, 1.0, 3.0, 8.0, 30.0])
def test_a_calibrated_plan_uses_its_budget_up_and_no_more(budget: float) -> None:
    def plan(factor: float) -> list[Release]:
        return [Release(3 * factor), Release(factor, 0.3, 40)]

    factor = calibrated(plan, budget, 1e-5)
    assert 0.99 * budget < epsilon(plan(factor), 1e-5) <= budget
    with pytest.raises(ValueError, match="no noise"):
        calibrated(lambda factor: [Release(0.0)], budget, 1e-5)
