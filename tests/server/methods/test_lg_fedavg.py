"""LG-FedAvg: the last linear layers travel, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from common import wire
from common.config import SettingsError, parse
from common.methods import agreement_on
from common.models import build, get_state
from server.history.events import MemoryLost, RoundFinished, SiteLeftOut
from server.methods import settle
from tests.support.resuming import check_resumed
from tests.support.rules import Reply, close_round, rule_of
from tests.support.runs import MakeConfig, run, run_to_disk

SHARED = {"body.9.weight", "body.9.bias", "head.weight", "head.bias"}


@pytest.mark.parametrize(
    ("model", "layers", "shared"),
    [
        ("lenet5", 2, SHARED),
        ("lenet5", 1, {"head.weight", "head.bias"}),
        ("lenet5", 3, SHARED | {"body.7.weight", "body.7.bias"}),
        ("mlp", 2, {"body.3.weight", "body.3.bias", "head.weight", "head.bias"}),
        ("resnet9", 2, {"head.weight", "head.bias"}),
    ],
)
def test_the_last_linear_layers_are_shared(model: str, layers: int, shared: set[str]) -> None:
    """FL-bench shares the first ones."""
    state = get_state(build(model, classes=10, seed=None))
    settings = parse({"lg_fedavg.layers": layers})
    assert set(agreement_on("lg-fedavg").travelling(state, settings)) == shared


def test_an_adapted_layer_is_one_layer() -> None:
    names = [f"body.{place}.{part}" for place in (1, 2, 3) for part in ("down", "up")]
    state = {name: np.zeros((2, 2), np.float32) for name in [*names, "head.weight"]} | {"head.bias": np.zeros(2)}
    for layers in (1, 2, 3, 4, 9):
        shared = {"head.weight", "head.bias", *(names[-2 * (layers - 1) :] if layers > 1 else [])}
        settings = parse({"lg_fedavg.layers": layers})
        assert set(agreement_on("lg-fedavg").travelling(state, settings)) == shared


def test_vector_d_at_the_server() -> None:
    replies = {"1": Reply({"head.bias": np.ones(1)}, 1), "2": Reply({"head.bias": np.full(1, 2.0)}, 3)}
    after = close_round(rule_of("lg-fedavg", {}), {"head.bias": np.zeros(1)}, replies)
    assert after["head.bias"] == pytest.approx(1.75)


def test_exactly_the_shared_names_travel_both_ways(small_config: MakeConfig) -> None:
    record, grid = run(small_config(method="lg-fedavg"))
    assert not record.of(SiteLeftOut)
    assert not record.of(MemoryLost)
    models = [m for m in [*grid.pushed, *grid.replies] if "model" in m.content]
    assert len(models) == 6 * (2 + 2 + 1)
    assert all(set(wire.unpack_model(message.content)) == SHARED for message in models)


def test_buffers_of_personal_layers_are_the_sites_own(small_config: MakeConfig, tmp_path: Path) -> None:
    """PFLlib takes the first client's batch norm statistics for everybody."""
    config = small_config(method="lg-fedavg", train__model="resnet9", rounds=1, sites=2)
    out = run_to_disk(config, tmp_path / "run")
    own = [load_file(path) for path in sorted((out / "memory").rglob("*.safetensors"))]
    assert len(own) == 2
    assert all(any(name.endswith("running_mean") for name in state) for state in own)
    assert any(not np.array_equal(own[0][name], own[1][name]) for name in own[0] if name.endswith("running_mean"))


@pytest.mark.parametrize("model", ["head", "head-mlp"])
def test_a_network_without_a_part_of_the_sites_own_is_refused(model: str) -> None:
    with pytest.raises(SettingsError, match="nothing that would stay at a site"):
        settle(parse({"method": "lg-fedavg", "train.model": model}))


def test_it_is_neither_fedavg_nor_local_nor_fedper(small_config: MakeConfig) -> None:
    def figures(name: str) -> list[float]:
        return [event.overall.loss for event in run(small_config(method=name))[0].of(RoundFinished)]

    ours = figures("lg-fedavg")
    assert all(ours != figures(name) for name in ("fedavg", "local", "fedper"))


def test_a_resumed_run_ends_in_the_same_bits(small_config: MakeConfig, tmp_path: Path) -> None:
    check_resumed(small_config, tmp_path, stop=4, method="lg-fedavg", rounds=4, checkpoint=2, train__fraction=0.5)
