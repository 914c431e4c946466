"""FedPer: what leaves a site, what does not, and what the site is tested with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message

from client.prediction import open_model
from common import wire
from common.config import SettingsError
from common.extras import Network
from common.methods import agreement_on
from common.state import State
from server.app import initial_state
from server.history.events import MemoryLost, RoundFinished, SiteLeftOut
from tests.support.loopback import LoopbackGrid
from tests.support.rules import Reply, close_round, rule_of
from tests.support.runs import MakeConfig, Record, run, run_to_disk

HEAD = {"head.weight", "head.bias"}


def test_vector_d_at_the_server() -> None:
    base = {"body.weight": np.zeros(1)}
    replies = {"1": Reply({"body.weight": np.ones(1)}, 1), "2": Reply({"body.weight": np.full(1, 2.0)}, 3)}
    assert close_round(rule_of("fedper", {}), base, replies)["body.weight"] == pytest.approx(1.75)


def test_the_head_never_travels(small_config: MakeConfig) -> None:
    """FL-bench uploads and averages the personal layers as well."""
    _, grid = run(small_config(method="fedper"))
    for message in [*grid.pushed, *grid.replies]:
        if "model" in message.content:
            assert not HEAD & set(wire.unpack_model(message.content))


def test_a_head_that_is_sent_all_the_same_is_refused(small_config: MakeConfig) -> None:
    def with_head(index: int, request: Message, reply: Message) -> Message:
        if index == 0 and request.metadata.message_type == "train":
            state = wire.unpack_model(reply.content)
            reply.content["model"] = wire.pack_arrays(state | {"head.bias": np.zeros(10, np.float32)})
        return reply

    record, _ = run(small_config(method="fedper", rounds=1), fault=with_head)
    assert "the model has no head.bias" in record.reasons["train", "000"]


def heads(folder: Path, round_number: int) -> dict[str, State]:
    from safetensors.numpy import load_file

    return {site.name: load_file(site / f"round-{round_number:010d}.safetensors") for site in sorted(folder.iterdir())}


def test_every_site_has_a_head_of_its_own_and_is_tested_with_it(small_config: MakeConfig, tmp_path: Path) -> None:
    out = run_to_disk(small_config(method="fedper", rounds=2), tmp_path / "run")
    kept = heads(out / "memory", 2)
    assert len(kept) == 6
    assert all(set(head) == HEAD for head in kept.values())
    weights = [head["head.weight"] for head in kept.values()]
    assert all(not np.array_equal(weights[0], other) for other in weights[1:])


def figures(record: Record) -> list[tuple[float, float]]:
    return [(event.overall.accuracy, event.overall.loss) for event in record.of(RoundFinished)]


def test_it_is_neither_fedavg_nor_local(small_config: MakeConfig) -> None:
    ours, fedavg, local = (run(small_config(method=name))[0] for name in ("fedper", "fedavg", "local"))
    assert not ours.of(SiteLeftOut)
    assert not ours.of(MemoryLost)
    assert figures(ours) != figures(fedavg)
    assert figures(ours) != figures(local)


@pytest.mark.parametrize(("shared", "same_as"), [("none", "local"), ("all", "fedavg")])
def test_all_personal_is_local_and_none_is_fedavg(
    small_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, shared: str, same_as: str
) -> None:
    """Bit for bit."""
    monkeypatch.setattr("server.methods._check_parts", lambda config, method: None)
    monkeypatch.setitem(
        agreement_on("fedper").__dict__, "shared", lambda state, _: set(state) if shared == "all" else set()
    )
    ours, theirs = run(small_config(method="fedper"))[0], run(small_config(method=same_as))[0]
    assert not ours.of(SiteLeftOut)
    assert figures(ours) == figures(theirs)


def test_a_restarted_site_keeps_its_head_and_a_lost_reply_does_not_spoil_it(small_config: MakeConfig) -> None:
    """The loopback's sites are new in every message: what they know is on their disk."""

    def lose(index: int, request: Message, reply: Message) -> Message | None:
        if index == 1 and request.metadata.message_type == "train":
            return None if wire.unpack_task(request.content).round_number == 2 else reply
        return reply

    config = small_config(method="fedper", rounds=3, round__deadline=3.0)
    record, grid = run(config, fault=lose)
    asked = [m for m in grid.pushed if m.metadata.message_type == "train" and m.metadata.dst_node_id == 101]
    assert [wire.unpack_task(message.content).accepted for message in asked] == [0, 1, 1]
    assert not record.of(MemoryLost)


def test_the_coordinators_copy_says_that_it_is_not_whole(small_config: MakeConfig, tmp_path: Path) -> None:
    out = run_to_disk(small_config(method="fedper", rounds=1), tmp_path / "run")
    with pytest.raises(SettingsError, match="each site's own and never left it"):
        open_model(out / "models" / "group-0.safetensors")


def test_a_site_keeps_the_whole_model(small_config: MakeConfig, tmp_path: Path) -> None:
    folders = {index: {"models": str(tmp_path / str(index))} for index in range(6)}
    run(small_config(method="fedper", rounds=1), node_configs=folders)
    kept = sorted(tmp_path.rglob("model.safetensors"))
    assert len(kept) == 6
    heads = [open_model(path)[0].state_dict()["head.weight"].numpy() for path in kept]
    assert not np.array_equal(heads[0], heads[1])


@pytest.mark.parametrize("change", ["head", "less"])
def test_a_model_from_the_server_is_exactly_what_travels(small_config: MakeConfig, change: str) -> None:
    """A head that came along would overwrite the site's own, and what is missing would be filled in unseen."""
    request = LoopbackGrid(1)
    config = small_config(method="fedper", sites=2)
    state = {name: array for name, array in initial_state(config).items() if name not in HEAD}
    sent = initial_state(config) if change == "head" else dict(list(state.items())[:1])
    task = wire.Task(config.for_site(), 1, 1, rule="fedper", group=0)
    message = Message(wire.pack_task(task, wire.pack_arrays(sent)), 100, "train")
    (answer,) = request.send_and_receive([message])
    with pytest.raises(wire.WireError, match="does not fit lenet5"):
        wire.unpack_update(answer.content, declared={}, network=Network({}, 10), limit_mb=100)
