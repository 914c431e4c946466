"""Fixtures that several tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest
import torch

from common.config import Config, parse

# Times on a busy machine are noise, and the same examples every time make a failure reproducible.
hypothesis.settings.register_profile("coterie", deadline=None, derandomize=True)
hypothesis.settings.load_profile("coterie")


_SLOW = ("federation", "containers", "browser")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as fast what does not say otherwise, so that nobody has to remember it."""
    for item in items:
        if not any(item.get_closest_marker(name) for name in _SLOW):
            item.add_marker(pytest.mark.fast)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    # As in a simulation; also keeps parallel test processes from fighting over the cores.
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests of a process: digits are embedded once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def small_config(shared_cache: Path) -> Callable[..., Config]:
    """A run on digits that takes a second: overrides are flat keys."""

    def make(**overrides: object) -> Config:
        values: dict[str, object] = {
            "sites": 6,
            "rounds": 2,
            "cache": str(shared_cache),
            "data.image_size": 8,
            "data.channels": 1,
            "encoder.name": "random:resnet10t",
            "encoder.image_size": 32,
            "train.model": "lenet5",
            "train.lr": 0.1,
            # As published: what is computed here by hand knows of no shares; test_prior.py is about them.
            "train.prior": "off",
            "round.deadline": 60.0,
            "round.start_timeout": 5.0,
        }
        values |= {key.replace("__", "."): value for key, value in overrides.items()}
        return parse(values)

    return make
