"""Ditto: the spec's vector, its two series, and what the site keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from client.methods import site_method
from client.prediction import open_model
from common import wire
from server.history.events import MemoryLost, RoundFinished, RoundTrained, SiteLeftOut
from tests.support.loopback import LoopbackGrid
from tests.support.quadratic import NAME, point, train_site, visit_of
from tests.support.resuming import check_resumed
from tests.support.rules import Reply, close_round, rule_of
from tests.support.runs import MakeConfig, Record, failed, on, run, run_to_disk


def own(trained: object) -> float:
    return float(trained.memory[NAME][0])  # type: ignore[attr-defined]


def test_vector_g() -> None:
    """With the trained model as the anchor v would be 0.258."""
    assert own(train_site("ditto", 0.4, 1.0, steps=1, memory=point(0.0))) == pytest.approx(0.14)
    two = train_site("ditto", 0.4, 1.0, steps=2, memory=point(0.0))
    assert own(two) == pytest.approx(0.252)
    assert two.state[NAME][0] == pytest.approx(0.514)
    replies = {"1": Reply(two.state, 1), "2": Reply(point(0.3), 3)}
    assert close_round(rule_of("ditto", {}), point(0.4), replies)[NAME][0] == pytest.approx(0.3535)


@given(st.floats(-5, 5), st.floats(-5, 5), st.floats(-5, 5), st.floats(0.01, 0.2))
def test_a_pull_of_one_over_the_rate_starts_from_the_anchor(x: float, v: float, t: float, rate: float) -> None:
    """λ = 1 / η: v⁺ = x − η ∇f(v)."""
    trained = train_site("ditto", x, t, steps=1, memory=point(v), ditto__pull=1 / rate, train__lr=rate)
    assert own(trained) == pytest.approx(x - rate * (v - t), abs=1e-9)


@given(st.floats(0, 3), st.integers(1, 4))
def test_the_common_model_is_fedavgs_whatever_the_pull(pull: float, steps: int) -> None:
    ours = train_site("ditto", 0.4, 1.0, steps=steps, memory=point(-3.0), ditto__pull=pull)
    theirs = train_site("fedavg", 0.4, 1.0, steps=steps)
    np.testing.assert_array_equal(ours.state[NAME], theirs.state[NAME])


def test_a_site_starts_from_what_it_is_first_sent() -> None:
    trained = train_site("ditto", 0.4, 1.0, steps=1)
    assert own(trained) == pytest.approx(0.4 + 0.1 * 0.6)
    visit = visit_of(0.4)
    assert site_method("ditto").served(visit) == visit.received


def test_what_is_remembered_is_no_view_of_the_network() -> None:
    visit = visit_of(0.4, 1.0, memory=point(0.0))
    trained = site_method("ditto").train(visit)
    before = own(trained)
    visit.load(point(9.0))
    assert own(trained) == before


def models(record: Record) -> list[np.ndarray]:
    return [event.models[0]["head.weight"] for event in record.of(RoundTrained)]


def accuracies(record: Record) -> list[tuple[float, float]]:
    return [(event.overall.accuracy, event.overall.loss) for event in record.of(RoundFinished)]


def test_without_a_pull_it_is_local_and_the_common_model_fedavgs_bit_for_bit(small_config: MakeConfig) -> None:
    ours = run(small_config(method="ditto", ditto__pull=0.0))[0]
    assert not ours.of(SiteLeftOut)
    assert not ours.of(MemoryLost)
    local, fedavg = run(small_config(method="local"))[0], run(small_config(method="fedavg"))[0]
    assert accuracies(ours) == accuracies(local)
    for mine, theirs in zip(models(ours), models(fedavg), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_batch_norm_is_each_models_own(small_config: MakeConfig, tmp_path: Path) -> None:
    config = small_config(method="ditto", train__model="resnet9", rounds=2, sites=2)
    out = run_to_disk(config, tmp_path / "run")
    kept = load_file(out / "memory" / "000" / "round-0000000002.safetensors")
    common = load_file(out / "models" / "group-0.safetensors")
    name = next(name for name in kept if name.endswith("running_mean"))
    assert set(kept) == set(common)
    assert not np.array_equal(kept[name], common[name])


def test_a_lost_reply_leaves_no_trace_in_the_sites_own_model(small_config: MakeConfig) -> None:
    config = small_config(method="ditto", rounds=3)

    def lose(request: Message, reply: Message) -> Message | None:
        return failed(request, reply) if wire.unpack_task(request.content).round_number == 2 else reply

    record, grid = run(config, fault=on("train", 0, lose))
    asked = [m for m in grid.pushed if m.metadata.message_type == "train" and m.metadata.dst_node_id == 100]
    assert [wire.unpack_task(message.content).accepted for message in asked] == [0, 1, 1]
    assert not record.of(MemoryLost)


def test_a_newcomer_starts_from_the_common_model_of_its_first_round(small_config: MakeConfig) -> None:
    config = small_config(method="ditto", rounds=3, sites=3)
    grid = LoopbackGrid(3)
    grid.disconnect(102)

    class Late(Record):
        def hear(self, event: object) -> None:
            super().hear(event)  # type: ignore[arg-type]
            if isinstance(event, RoundTrained) and event.round_number == 1:
                grid.connect(102, 2)

    from server.app import conduct

    record = Late()
    conduct(grid, config.model_copy(update={"round": config.round.model_copy(update={"start_timeout": 0.2})}), [record])
    assert "002" in record.of(RoundFinished)[-1].sites
    assert not record.of(MemoryLost)


def test_the_coordinators_copy_has_no_figures_of_the_sites_own_models(small_config: MakeConfig, tmp_path: Path) -> None:
    for method, tested in (("ditto", False), ("fedavg", True)):
        out = run_to_disk(small_config(method=method, rounds=1, sites=2), tmp_path / method)
        assert (open_model(out / "models" / "group-0.safetensors")[1].test is not None) == tested


def test_the_site_keeps_its_own_model(small_config: MakeConfig, tmp_path: Path) -> None:
    folders = {index: {"models": str(tmp_path / str(index))} for index in range(6)}
    run(small_config(method="ditto", rounds=1), node_configs=folders)
    kept = sorted(tmp_path.rglob("model.safetensors"))
    assert len(kept) == 6
    assert [open_model(path)[1].kept for path in kept] == ["own"] * 6
    heads = [open_model(path)[0].state_dict()["head.weight"].numpy() for path in kept]
    assert not np.array_equal(heads[0], heads[1])


def test_a_resumed_run_ends_in_the_same_bits(small_config: MakeConfig, tmp_path: Path) -> None:
    check_resumed(small_config, tmp_path, stop=5, method="ditto", rounds=5, checkpoint=2, train__fraction=0.5)
