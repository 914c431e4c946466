"""The page of a run whose sites have privacy budgets, and what the run directory holds of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cli.simulation.engine import simulate
from common.config import Config
from server.history.run_directory import METRICS
from server.report.page import page
from server.report.record import read_run


def test_a_private_run_says_what_was_spent_and_gives_the_same_bits(
    small_config: Callable[..., Config], tmp_path: Path
) -> None:
    found = []
    for name in ("one", "two"):
        config = small_config(
            method="fmcl", out=str(tmp_path / name), **{
                "partition.scheme": "iid", "train.model": "head", "privacy.epsilon": 8.0, "privacy.steps": 2,
                "privacy.tests": 2, "encoder.dimensions": 16,
            },
        )  # fmt: skip
        assert simulate(config, jobs=1) == "finished"
        found.append((tmp_path / name / METRICS).read_bytes())
    assert found[0] == found[1]
    record = read_run(tmp_path / "one")
    # Two rounds trained and tested are what the budget was divided for.
    assert len(record.spending) == 6
    assert [one.spent for one in record.spending.values()] == pytest.approx([8.0] * 6, rel=0.01)
    assert {one.budget for one in record.spending.values()} == {8.0}
    text = page([record])
    assert "Privacy budgets" in text
    assert "6 sites of 6 had a privacy budget" in text
