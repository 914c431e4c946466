"""A run of many rounds needs no more memory than one of few."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from client.data import site as site_data
from server.app import conduct
from server.history.events import Event, RoundTrained
from tests.support.loopback import LoopbackGrid
from tests.support.runs import MakeConfig


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What refers to itself stays: full collections are rare in a process of some 600,000 objects."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Models:
    """Notes which rounds' models are still in memory."""

    def __init__(self) -> None:
        self.rounds: list[list[weakref.ref]] = []
        self.alive: list[int] = []

    def hear(self, event: Event) -> None:
        if isinstance(event, RoundTrained):
            self.rounds.append([weakref.ref(array) for model in event.models.values() for array in model.values()])
            self.alive.append(sum(any(one() is not None for one in arrays) for arrays in self.rounds))


@pytest.mark.parametrize("method", ["fmcl", "fedavg"])
def test_the_models_of_earlier_rounds_are_gone(small_config: MakeConfig, no_collector: None, method: str) -> None:
    models = Models()
    config = small_config(method=method, rounds=6, train__model="mlp")
    conduct(LoopbackGrid(config.sites), config, [models])
    # This round's, and the last one's, which were tested in it.
    assert max(models.alive) <= 2


def test_a_simulated_site_is_kept_once_and_not_once_a_round(small_config: MakeConfig) -> None:
    site_data._load_share.cache_clear()
    config = small_config(method="fedavg", rounds=5, train__model="mlp")
    conduct(LoopbackGrid(config.sites), config, [])
    assert site_data._load_share.cache_info().currsize == config.sites
