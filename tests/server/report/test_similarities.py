"""What else FedCM's sites could be compared by, and what hangs on DC-CFL's threshold: from the run to the page."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.invented import Plot, write_run
from common import wire
from common.head_path import InvalidHeadPath
from common.state import flat_body, flat_head
from common.whole_path import WholePath
from server.app import initial_state
from server.history.events import GroupsFormed, Solved
from server.listeners.journal import Journal
from server.methods.fedcm import VIEWS
from server.report import page, read_run
from tests.server.report.test_report import figures
from tests.support.runs import MakeConfig, run, run_to_disk


def whole(small_config: MakeConfig, method: str = "fedcm-whole", rounds: int = 0) -> object:
    return small_config(method=method, partition__scheme="disjoint", partition__groups=3, rounds=rounds)


def test_all_four_are_measured_and_decide_nothing(small_config: MakeConfig) -> None:
    record, grid = run(whole(small_config))  # type: ignore[arg-type]
    plain, _ = run(whole(small_config, "fedcm"))  # type: ignore[arg-type]
    (formed,), (usual,) = record.of(GroupsFormed), plain.of(GroupsFormed)
    assert formed.labels == usual.labels
    np.testing.assert_array_equal(formed.distance, usual.distance)
    assert (tuple(formed.views), tuple(usual.views)) == (VIEWS, VIEWS[:2])
    assert [message.metadata.message_type for message in grid.pushed] == 6 * ["query.whole_path"]
    np.testing.assert_allclose(formed.views["head path"], 1 - formed.distance, atol=1e-12)


def test_they_are_cosines_of_what_the_sites_sent(small_config: MakeConfig) -> None:
    config = whole(small_config)
    sent = []

    def listen(index: int, request: object, reply: object) -> object:
        sent.append((index, wire.unpack_arrays(reply.content["whole_path"])))  # type: ignore[attr-defined]
        return reply

    record, _ = run(config, fault=listen)  # type: ignore[arg-type]
    (formed,) = record.of(GroupsFormed)
    first, second = (arrays for _, arrays in sorted(sent, key=lambda item: item[0])[:2])
    start = initial_state(config)  # type: ignore[arg-type]
    assert first["changes"].shape == (5, len(flat_head(start)))
    assert first["body"].shape == (5, len(flat_body(start)))
    parts = [arrays[name] for name in ("changes", "body") for arrays in (first, second)]
    expected = []
    for one, other in (parts[:2], parts[2:]):
        expected += [cosine(one.ravel(), other.ravel()), cosine(one.sum(axis=0), other.sum(axis=0))]
    np.testing.assert_allclose([formed.views[name][0, 1] for name in VIEWS], expected, atol=1e-6)
    assert len({round(value, 3) for value in expected}) == 4


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    one, other = one.astype(np.float64), other.astype(np.float64)
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def test_the_page_draws_them_by_one_scale_and_damage_is_named(small_config: MakeConfig, tmp_path: Path) -> None:
    directory = run_to_disk(whole(small_config), tmp_path / "run")  # type: ignore[arg-type]
    record = read_run(directory)
    text = page([record])
    drawn = figures(text)
    maps = [drawn[f"similarity-{name.replace(' ', '-')}"] for name in VIEWS]
    assert len({one["data"][0]["zmin"] for one in maps}) == 1
    assert record.compared is not None
    for name, one in zip(VIEWS, maps, strict=True):
        steps = np.frombuffer(base64.b64decode(one["data"][0]["z"]["triangle"]), "<u2") / 32767 - 1
        order = [record.compared.sites.index(site) for site in one["data"][0]["names"]]
        expected = record.views[name][np.ix_(order, order)][np.triu_indices(6)]
        np.testing.assert_allclose(steps, expected, atol=5e-5)
    assert "Mean within groups" in text
    np.savez(directory / "similarities.npz", **{"head path": np.full((6, 6), 1.5), "other": np.zeros(3)})
    damaged = read_run(directory)
    assert damaged.views == {}
    assert "similarities.npz cannot be used: its values are no cosines" in " ".join(damaged.notes)
    (directory / "similarities.npz").write_bytes(b"PK")
    assert "similarities.npz cannot be used" in " ".join(read_run(directory).notes)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (np.ones((3, 4)), "2-dimensional float32"),
        (np.ones(4, np.float32), "2-dimensional float32"),
        (np.ones((3, 4), np.float32), "of 2 epochs .* not 3×4"),
        (np.full((2, 4), np.inf, np.float32), "not finite"),
    ],
)
def test_a_body_that_does_not_fit_is_refused(body: np.ndarray, message: str) -> None:
    with pytest.raises(InvalidHeadPath, match=message):
        WholePath(np.ones((2, 3), np.float32), body)
    # A head by itself has no body.
    assert WholePath(np.ones((2, 3), np.float32), np.empty((2, 0), np.float32)).form.endswith("and 0 others")


def test_accuracy_over_the_threshold_is_drawn(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", Plot(sites=6, rounds=1))
    validation = {"0.3 64-32": 0.9, "0.1 64-32": 0.8, "0.1 32-16": 0.7, "0.3 32-16": 0.85, "noise": 0.1}
    event = Solved(0.3, (64, 32), validation, {"000": 4}, {"000": 10.0}, {"0.1": 5, "0.3": 2})
    Journal(directory).hear(event)
    drawn = figures(page([read_run(directory)]))["threshold"]
    wide, narrow, ring = drawn["data"]
    assert (wide["x"], wide["y"]) == ([0.1, 0.3], [0.8, 0.9])
    assert (narrow["x"], narrow["y"]) == ([0.1, 0.3], [0.7, 0.85])
    assert (ring["x"], ring["y"]) == ([0.3], [0.9])
    assert drawn["layout"]["xaxis"]["ticktext"] == ["0.1<br>5", "0.3<br>2"]
    assert [0.3, "64-32", 0.9, 2, 1] in drawn["rows"]
    # A log of before has no numbers of groups.
    lines = (directory / "events.jsonl").read_text().splitlines()
    old = json.loads(lines[-1])
    del old["groups"]
    (directory / "events.jsonl").write_text("\n".join([*lines[:-1], json.dumps(old)]) + "\n")
    assert figures(page([read_run(directory)]))["threshold"]["layout"]["xaxis"]["ticktext"] == ["0.1", "0.3"]
