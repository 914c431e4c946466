"""Whole runs of one round: over the loopback Grid and by files, with sites that fail, forget or cheat."""

from __future__ import annotations

import csv
import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from numpy.typing import NDArray
from safetensors.numpy import load_file

from cli.deployment import authority
from cli.main import main
from client.answers.final import read_answer
from client.collaboration import Collaborator
from client.collaboration.anchors import gaussian_anchors, shared_secret
from client.collaboration.validation import held_out_rows
from client.collaboration.vault import Vault
from client.data import load_site
from client.data.samples import TableSamples
from client.identity import Identity
from common import wire
from common.collaboration import Answer, Collaboration
from common.config import Config, SettingsError, parse
from common.randomness import derive_seed, generator
from server.collaboration.one_round import answer_message
from server.collaboration.training import scores
from server.history.events import (
    GroupsFormed,
    ReplyAccepted,
    RoundFinished,
    RunEnded,
    SiteEnrolled,
    SiteLeftOut,
    Solved,
)
from server.membership import NoSites
from server.methods import settle
from tests.support.loopback import LoopbackGrid
from tests.support.policies import LENIENT
from tests.support.runs import on, run, run_to_disk
from tests.support.tables import wine_settings, write_csv, write_wine

WINES = 3


def wine_config(folder: Path, **changes: object) -> Config:
    return parse(wine_settings(folder, **changes))


class OwnGrid(LoopbackGrid):
    """Sites with a table, a cache and a copy of the common secret of their own."""

    def __init__(self, folder: Path, sites: int, **options: object) -> None:
        super().__init__(sites, **options)  # type: ignore[arg-type]
        self._folder = folder

    def node_config(self, index: int) -> dict[str, bool | int | float | str]:
        place = self._folder / f"site-{index}"
        return {
            "site": f"clinic-{index}",
            "data-path": str(place / "wine.csv"),
            "cache": str(place / "cache"),
            "anchor-secret": str(place / "secret"),
            "policy": json.dumps(self.policy(index)),
        }

    def policy(self, index: int) -> dict[str, object]:
        return LENIENT | {"agreed_schema": str(self._folder / "wine.toml")}


def make_own(folder: Path, sites: int = WINES) -> None:
    """Deal the wines out to sites with folders of their own, and give all the same secret."""
    header, *rows = list(csv.reader(write_wine(folder).open(encoding="utf-8")))
    for index in range(sites):
        place = folder / f"site-{index}"
        place.mkdir()
        write_csv(place / "wine.csv", header, rows[index::sites])
        (place / "secret").write_text("5" * 64)
        (place / "site.toml").write_text(
            f'site = "clinic-{index}"\nserver = "nowhere:1"\n'
            'data = "wine.csv"\ncache = "cache"\nanchor_secret = "secret"\n'
        )


def accuracies(directory: Path) -> dict[str, tuple[str, ...]]:
    """All figures of each site, as they are written."""
    with (directory / "metrics.csv").open(encoding="utf-8") as file:
        return {row["name"]: tuple(row.values()) for row in csv.DictReader(file) if row["scope"] == "site"}


# --- over the network ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["dc-cfl", "dc"])
def test_one_query_and_one_answer_for_each_site(tmp_path: Path, method: str) -> None:
    record, grid = run(wine_config(tmp_path, method=method, rounds=20))
    kinds = [message.metadata.message_type for message in grid.pushed]
    assert kinds == ["query.collaboration"] * 6 + ["evaluate.collaboration"] * 6
    (formed,) = record.of(GroupsFormed)
    assert formed.distance.shape == (6, 6)
    assert (len(set(formed.labels)) == 1) or method == "dc-cfl"
    (solved,) = record.of(Solved)
    assert set(solved.conditions) == set(formed.sites)
    assert all(1 <= condition < 1e6 for condition in solved.conditions.values())
    (finished,) = record.of(RoundFinished)
    assert finished.round_number == 1
    assert finished.mean_site_accuracy > 0.85
    assert record.of(RunEnded)[0].outcome == "finished"
    assert not record.of(SiteLeftOut)
    sent = [event for event in record.of(ReplyAccepted) if event.stage == "evaluate"]
    assert all(event.bytes_sent > 0 for event in sent)


def test_a_threshold_that_is_set_is_not_chosen(tmp_path: Path) -> None:
    record, _ = run(wine_config(tmp_path, cluster__threshold=0.05))
    (solved,) = record.of(Solved)
    assert solved.threshold == 0.05


def test_the_run_directory_is_complete_and_holds_no_rows(tmp_path: Path) -> None:
    out = run_to_disk(wine_config(tmp_path), tmp_path / "run")
    names = {path.name for path in out.iterdir()}
    assert names == {
        "run.json",
        "events.jsonl",
        "clusters.json",
        "confusions.json",
        "scores.json",
        "distances.npy",
        "metrics.csv",
        "models",
        "report.html",
        "summary.json",
    }
    summary = json.loads((out / "summary.json").read_text())
    assert summary["rounds"] == 1
    assert summary["k"] == len(list((out / "models").iterdir()))
    assert set(summary["seconds"]) >= {"enrol", "solve", "evaluate"}


def test_same_seed_same_bits_in_any_order_of_replies(tmp_path: Path) -> None:
    config = wine_config(tmp_path)
    one, other = (run_to_disk(config, tmp_path / name, order_seed=seed) for name, seed in (("a", 1), ("b", 2)))
    assert (one / "metrics.csv").read_bytes() == (other / "metrics.csv").read_bytes()
    for path in sorted((one / "models").iterdir()):
        assert path.read_bytes() == (other / "models" / path.name).read_bytes()


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "local", "fedcm"])
def test_tables_go_through_the_ordinary_strategy_too(tmp_path: Path, method: str) -> None:
    record, _ = run(wine_config(tmp_path, method=method, rounds=2, train__epochs=8))
    assert not record.of(SiteLeftOut)
    last = record.of(RoundFinished)[-1]
    assert last.round_number == 2
    assert last.models[0]["body.1.weight"].shape == (64, 13)
    assert last.mean_site_accuracy > (0.9 if method == "local" else 0.6)


def test_images_take_part_by_their_embeddings(small_config: Callable[..., Config]) -> None:
    config = small_config(
        method="dc-cfl", data__input="embedding", train__model="mlp", train__lr=0.05, train__epochs=40,
        collaboration__projection=16, collaboration__anchor_rows=40, partition__scheme="classes",
    )  # fmt: skip
    record, _ = run(config)
    assert not record.of(SiteLeftOut)
    (finished,) = record.of(RoundFinished)
    # An untrained encoder, ten classes, two of them per site.
    assert finished.mean_site_accuracy > 0.6


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "fmcl"}, "describes sites by an encoder's numbers"),
        ({"method": "fedavg", "train__model": "lenet5"}, "needs 'mlp'"),
        ({"personalise": "finetune"}, "a single round"),
        ({"cluster__k": 2}, "cluster.k does not go with"),
        ({"cluster__threshold": 1.5}, "never above 1"),
        ({"migration__rule": "guarded"}, "a single round"),
    ],
)
def test_settings_that_do_not_go_with_the_method_are_refused(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        settle(wine_config(tmp_path, **changes))


def test_pixels_and_needless_embeddings_are_refused() -> None:
    with pytest.raises(SettingsError, match="learns from tables"):
        settle(parse({"method": "dc-cfl"}))
    with pytest.raises(SettingsError, match="goes with the methods dc-cfl and dc"):
        settle(parse({"method": "fedavg", "data.input": "embedding"}))


# --- sites that fail or cheat ----------------------------------------------------------------------------------


def altered(change: Callable[[dict], dict]) -> Callable[[Message, Message], Message]:
    def apply(request: Message, reply: Message) -> Message:
        content = reply.content
        arrays = wire.unpack_arrays(content["collaboration"])
        content["collaboration"] = wire.pack_arrays(change(dict(arrays)))
        message = Message(content, reply_to=request)
        message.metadata.__dict__["_message_id"] = "altered"
        return message

    return apply


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda a: a | {"rows": np.full_like(a["rows"], np.inf)}, "not finite"),
        (lambda a: a | {"rows": a["rows"][:, 1:]}, "do not match"),
        (lambda a: a | {"rows": a["rows"].astype(np.float64)}, "float32"),
        (lambda a: a | {"labels": a["labels"] + 3}, "is not among the 3 classes"),
        (lambda a: a | {"labels": a["labels"] + 2**40}, "is not among the 3 classes"),
        (lambda a: a | {"labels": np.zeros_like(a["labels"])}, "more rows of a class"),
        (lambda a: a | {"anchors": a["anchors"][:50]}, "50 anchors"),
        (lambda a: a | {"anchors": a["anchors"] * 0}, "all zero"),
        (lambda a: a | {"mark": 255 - a["mark"]}, "the same table schema"),
        (lambda a: {key: a[key] for key in a if key != "ticket"}, "a collaboration has rows"),
    ],
)
def test_a_bad_collaboration_is_named_and_left_out(tmp_path: Path, change: Callable[[dict], dict], reason: str) -> None:
    record, _ = run(wine_config(tmp_path, train__epochs=1), fault=on("query", 2, altered(change)))
    (left,) = record.of(SiteLeftOut)
    assert reason in left.reason
    (formed,) = record.of(GroupsFormed)
    assert len(formed.sites) == 5
    assert len(record.of(RoundFinished)[0].sites) == 5


def test_a_silent_site_is_left_out_of_the_test_and_its_group_goes_on(tmp_path: Path) -> None:
    config = wine_config(tmp_path, train__epochs=1, round__deadline=0.5)
    record, _ = run(config, fault=on("evaluate", 1, lambda request, reply: None))
    assert [event.site for event in record.of(SiteLeftOut)] == ["001"]
    assert len(record.of(RoundFinished)[0].sites) == 5


@pytest.mark.parametrize(
    "rows",
    [
        [[1.0, 2.0, "a"]] * 4 + [[1.0, 2.0, "b"]] * 4,
        [[float(i), 2.0, "a"] for i in range(8)],
        [[float(i), 2.0 * i, "ab"[i % 2]] for i in range(8)],
    ],
    ids=["nothing varies", "one class and a constant column", "one direction"],
)
def test_poor_sites_are_served_and_reported(tmp_path: Path, rows: list[list[object]]) -> None:
    schema = {
        "label": "y",
        "classes": ["a", "b"],
        "columns": [{"name": "u", "minimum": 0, "maximum": 10}, {"name": "v", "minimum": 0, "maximum": 20}],
    }
    write_csv(tmp_path / "t.csv", ["u", "v", "y"], rows)
    settings = wine_settings(tmp_path, sites=2, partition__scheme="iid", partition__min_size=2)
    settings |= {"data.table": json.dumps(schema), "data.path": str(tmp_path / "t.csv")}
    record, _ = run(parse(settings))
    assert not record.of(SiteLeftOut)
    assert record.of(RunEnded)[0].outcome == "finished"
    assert all(np.isfinite(list(record.of(Solved)[0].conditions.values())))


def test_rows_averaged_and_blurred_still_teach(tmp_path: Path) -> None:
    plain, _ = run(wine_config(tmp_path, sites=3, partition__scheme="iid"))
    veiled, _ = run(
        wine_config(tmp_path, sites=3, partition__scheme="iid", collaboration__aggregate=3, collaboration__noise=0.1)
    )
    assert veiled.of(RoundFinished)[0].mean_site_accuracy > 0.8
    assert plain.of(RoundFinished)[0].mean_site_accuracy > 0.9
    sent = [event.bytes_received for event in veiled.of(ReplyAccepted) if event.stage == "enrol"]
    more = [event.bytes_received for event in plain.of(ReplyAccepted) if event.stage == "enrol"]
    assert max(sent) < min(more)


def test_too_much_averaging_leaves_nothing_to_send(tmp_path: Path) -> None:
    with pytest.raises(NoSites, match=r"collaboration\.aggregate = 50"):
        run(wine_config(tmp_path, train__epochs=1, collaboration__aggregate=50))


# --- what leaves a site, and what stays ------------------------------------------------------------------------


def outgoing_bytes(grid: LoopbackGrid) -> list[bytes]:
    """Every byte that left a site of its own."""
    return [part for reply in grid.replies for part in _parts(reply)]


def _parts(reply: Message) -> list[bytes]:
    arrays = [array.data for record in reply.content.array_records.values() for array in record.values()]
    return [*arrays, str(reply.content).encode()]


def test_neither_rows_nor_the_map_nor_the_anchors_leave(tmp_path: Path) -> None:
    make_own(tmp_path)
    config = wine_config(tmp_path, sites=WINES)
    record, grid = run(config, OwnGrid(tmp_path, WINES))
    assert not record.of(SiteLeftOut)
    assert {card.card.name for card in record.of(SiteEnrolled)} == {"clinic-0", "clinic-1", "clinic-2"}
    left = b"".join(outgoing_bytes(grid))
    for index in range(WINES):
        identity = Identity(f"clinic-{index}", tmp_path / f"site-{index}" / "wine.csv", None, tmp_path)
        site = load_site(identity, config.for_site())
        assert isinstance(site.samples, TableSamples)
        secrets = {
            "a row": site.samples.rows[3, :4],
            "a column": site.samples.rows[:4, 2],
        }
        kept = list((tmp_path / f"site-{index}" / "cache" / "private").glob("map-*.safetensors"))
        assert len(kept) == 1
        assert kept[0].stat().st_mode & 0o077 == 0
        stored = load_file(kept[0])
        secrets |= {
            "the mean": stored["mean"][:3],
            "a component": stored["components"][0, :3],
            "the secret": stored["secret"],
        }
        for what, values in secrets.items():
            kinds: set[Any] = {np.dtype(np.float32), np.dtype(np.float64), values.dtype}
            for dtype in kinds:
                assert values.astype(dtype).tobytes() not in left, what
        raw = (tmp_path / f"site-{index}" / "wine.csv").read_text().splitlines()[1].split(",")[0]
        assert raw.encode() not in left
    # The search finds what is there: the rows that are meant to leave do.
    offer = wire.unpack_arrays(grid.replies[0].content["collaboration"])
    assert offer["rows"][3].tobytes() in left


def test_the_server_cannot_derive_the_map_from_the_seed(tmp_path: Path) -> None:
    """Two copies of a site, with the same data, settings and name, send different rows: the frame is drawn."""
    offers = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        make_own(folder)
        _, grid = run(wine_config(folder, sites=WINES, train__epochs=1), OwnGrid(folder, WINES))
        offers.append(wire.unpack_arrays(grid.replies[0].content["collaboration"]))
    assert np.array_equal(offers[0]["mark"], offers[1]["mark"])
    assert not np.allclose(offers[0]["rows"], offers[1]["rows"])


def test_whoever_knows_the_anchors_knows_the_map(tmp_path: Path) -> None:
    """Why anchors come from a secret of the sites and not from the run's seed."""
    config = wine_config(tmp_path)
    _, grid = run(config)
    table = config.data.table
    assert table is not None
    identity = Identity("000", None, (0, 6), None)
    anchors = gaussian_anchors(60, table.width, table, shared_secret(identity, config.for_site()))
    offer = wire.unpack_arrays(grid.replies[0].content["collaboration"])
    inverse = np.linalg.lstsq(offer["anchors"].astype(float) - offer["anchors"].mean(axis=0), anchors, rcond=None)[0]
    site = load_site(identity, config.for_site())
    guess = offer["rows"] @ inverse
    truth = site.train_inputs() - site.train_inputs().mean(axis=0)
    assert np.corrcoef(guess.ravel(), truth.ravel())[0, 1] > 0.9


def test_other_settings_get_other_anchors_and_paths_do_not_matter(tmp_path: Path) -> None:
    """Else a server could ask for the same draw in one narrow range after another."""
    make_own(tmp_path)
    own = Identity("clinic-0", tmp_path, None, tmp_path, anchor_secret=tmp_path / "site-0" / "secret")
    for identity in (own, Identity("000", None, (0, 6), None)):
        plain = shared_secret(identity, wine_config(tmp_path).for_site())
        assert shared_secret(identity, wine_config(tmp_path, data__path="x.csv", cache="y").for_site()) == plain
        table = json.loads(wine_config(tmp_path).data.table.model_dump_json(exclude_defaults=True))
        table["columns"][0]["maximum"] = 15.5
        for changes in ({"seed": 1}, {"collaboration__anchors": "uniform"}, {"data__table": json.dumps(table)}):
            assert shared_secret(identity, wine_config(tmp_path, **changes).for_site()) != plain
    assert shared_secret(own, wine_config(tmp_path).for_site()) != plain


def test_a_restarted_site_finds_its_map_again_and_answers_twice_the_same(tmp_path: Path) -> None:
    make_own(tmp_path)
    config = wine_config(tmp_path, sites=WINES, train__epochs=1)
    first, second = (run(config, OwnGrid(tmp_path, WINES))[1] for _ in range(2))
    for one, other in zip(first.replies[:WINES], second.replies[:WINES], strict=True):
        a, b = (wire.unpack_arrays(reply.content["collaboration"]) for reply in (one, other))
        assert all(np.array_equal(a[key], b[key]) for key in a)


def test_other_settings_or_data_get_another_map(tmp_path: Path) -> None:
    make_own(tmp_path)
    identity = Identity("clinic-0", tmp_path / "site-0" / "wine.csv", None, tmp_path / "site-0" / "cache")
    rows = np.random.default_rng(0).normal(size=(20, 4))
    one = Vault(identity, wine_config(tmp_path).for_site()).map_for(rows, 3, "state 1")[0]
    assert np.array_equal(
        one.ticket, Vault(identity, wine_config(tmp_path).for_site()).map_for(rows, 3, "state 1")[0].ticket
    )
    for settings, digest in ((wine_config(tmp_path, seed=1), "state 1"), (wine_config(tmp_path), "state 2")):
        other = Vault(identity, settings.for_site()).map_for(rows, 3, digest)[0]
        assert not np.allclose(other.components, one.components)


@pytest.mark.parametrize("damage", ["gone", "damaged"])
def test_a_site_that_lost_its_map_says_so(tmp_path: Path, damage: str) -> None:
    make_own(tmp_path)

    def lose(index: int, request: Message, reply: Message) -> Message:
        if index == 1 and request.metadata.message_type.startswith("query"):
            for path in (tmp_path / "site-1" / "cache" / "private").glob("map-*"):
                path.unlink() if damage == "gone" else path.write_bytes(path.read_bytes()[:-9])
        return reply

    record, _ = run(wine_config(tmp_path, sites=WINES, train__epochs=1), OwnGrid(tmp_path, WINES, fault=lose))
    assert record.reasons == {("evaluate", "clinic-1"): "its private map is gone; the site's own log says more"}
    assert len(record.of(RoundFinished)[0].sites) == 2


def test_a_site_with_a_single_row_is_answered_though_it_cannot_test(tmp_path: Path) -> None:
    make_own(tmp_path)
    path = tmp_path / "site-1" / "wine.csv"
    path.write_text("\n".join(path.read_text().splitlines()[:2]) + "\n")
    record, grid = run(wine_config(tmp_path, sites=WINES, train__epochs=1), OwnGrid(tmp_path, WINES))
    assert not record.of(SiteLeftOut)
    assert len([message for message in grid.pushed if message.metadata.message_type.startswith("evaluate")]) == WINES
    assert set(record.of(RoundFinished)[0].sites) == {"clinic-0", "clinic-2"}


def test_a_site_with_another_secret_is_left_out(tmp_path: Path) -> None:
    make_own(tmp_path)
    (tmp_path / "site-2" / "secret").write_text("6" * 64)
    record, _ = run(wine_config(tmp_path, sites=WINES, train__epochs=1), OwnGrid(tmp_path, WINES))
    (left,) = record.of(SiteLeftOut)
    assert "anchor secret" in left.reason
    assert "clinic-2" in left.reason


@pytest.mark.parametrize("secret", [None, "short"])
def test_a_site_without_a_good_secret_sends_nothing(tmp_path: Path, secret: str | None) -> None:
    make_own(tmp_path)
    path = tmp_path / "site-1" / "secret"
    path.unlink() if secret is None else path.write_text(secret)
    record, _ = run(wine_config(tmp_path, sites=WINES, train__epochs=1), OwnGrid(tmp_path, WINES))
    (left,) = record.of(SiteLeftOut)
    assert "its data or node config is not as agreed" in left.reason


@pytest.mark.parametrize(
    ("limit", "named"),
    [
        ({"least_aggregate": 3}, "collaboration.aggregate = 1"),
        ({"least_noise": 0.1}, "collaboration.noise = 0"),
        ({"agreed_schema": "other.toml"}, "data.table"),
    ],
)
def test_a_site_refuses_what_it_did_not_agree_to(tmp_path: Path, limit: dict[str, object], named: str) -> None:
    make_own(tmp_path)
    text = (tmp_path / "wine.toml").read_text()
    (tmp_path / "other.toml").write_text(text.replace("minimum = ", "minimum = -1", 1))
    where = {"agreed_schema": str(tmp_path / "other.toml")} if "agreed_schema" in limit else limit

    class Careful(OwnGrid):
        def policy(self, index: int) -> dict[str, object]:
            return super().policy(index) | (where if index == 1 else {})

    record, _ = run(wine_config(tmp_path, sites=WINES, train__epochs=1), Careful(tmp_path, WINES))
    (left,) = record.of(SiteLeftOut)
    assert named in left.reason
    assert len(record.of(RoundFinished)[0].sites) == 2


def test_limits_in_the_start_file_hold_for_an_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_own(tmp_path)
    config, site = as_toml(tmp_path, wine_settings(tmp_path, sites=WINES)), tmp_path / "site-0" / "site.toml"
    plain = site.read_text()
    (tmp_path / "site-0" / "other.toml").write_text("label = 'y'\nclasses = ['a', 'b']\ncolumns = [{name = 'u'}]\n")
    for line in ("least_aggregate = 3", "least_noise = 0.1", 'agreed_schema = "other.toml"',
                 "train_samples = 1000", 'classes = ["x", "y"]'):  # fmt: skip
        site.write_text(f"{plain}[policy]\n{line}\n")
        assert main(["collab", "export", str(site), str(config), "--dry-run"]) == 2
        assert line.split()[0] in capsys.readouterr().err


def test_nothing_is_exported_behind_a_ledger_that_was_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_own(tmp_path)
    config, site = as_toml(tmp_path, wine_settings(tmp_path, sites=WINES)), tmp_path / "site-0" / "site.toml"
    (site.parent / "ledger.jsonl").write_text('{"after": "x"}\n')
    assert main(["collab", "export", str(site), str(config), "--out", str(tmp_path / "a.bundle")]) == 2
    assert "somebody changed the site's ledger" in capsys.readouterr().err
    assert not (tmp_path / "a.bundle").exists()


# --- by files --------------------------------------------------------------------------------------------------


def as_toml(folder: Path, config: dict[str, object]) -> Path:
    path = folder / "run.toml"
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()))
    return path


def export_all(folder: Path, config: Path, *more: str) -> list[str]:
    bundles = [str(folder / f"clinic-{index}.bundle") for index in range(WINES)]
    for index, bundle in enumerate(bundles):
        site = folder / f"site-{index}" / "site.toml"
        assert main(["collab", "export", str(site), str(config), "--out", bundle, *more]) == 0
    return bundles


def test_by_files_the_numbers_are_those_of_the_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_own(tmp_path)
    settings = wine_settings(tmp_path, sites=WINES)
    network = tmp_path / "network"
    from server.app import conduct
    from server.listeners import run_listeners
    from tests.support.runs import made

    conduct(OwnGrid(tmp_path, WINES), parse(settings), run_listeners(made(network)), directory=network)
    config = as_toml(tmp_path, settings)
    bundles = export_all(tmp_path, config)
    out = tmp_path / "post"
    assert main(["collab", "solve", str(config), *bundles, "--out", str(out)]) == 0
    for path in sorted((network / "models").iterdir()):
        # The cards differ: how well a model does is known at the sites alone.
        ours, theirs = load_file(path), load_file(out / "models" / path.name)
        assert ours.keys() == theirs.keys()
        assert all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)
    assert (network / "distances.npy").read_bytes() == (out / "distances.npy").read_bytes()
    groups = [json.loads((place / "clusters.json").read_text())["sites"] for place in (network, out)]
    assert groups[0] == groups[1]
    figures = accuracies(network)
    for index in range(WINES):
        capsys.readouterr()
        answer = out / "answers" / f"clinic-{index}.answer"
        model = tmp_path / f"model-{index}.safetensors"
        site = tmp_path / f"site-{index}" / "site.toml"
        assert main(["collab", "apply", str(site), str(answer), "--out", str(model)]) == 0
        expected = figures[f"clinic-{index}"]
        said = capsys.readouterr().out
        assert f"accuracy {float(expected[6]):.4f}" in said
        assert f"loss {float(expected[9]):.4f} on {expected[5]} test samples" in said
        # The kept model is an ordinary network on the site's own scaled rows.
        data = load_site(
            Identity(f"clinic-{index}", site.parent / "wine.csv", None, tmp_path), parse(settings).for_site()
        )
        guess = scores(load_file(model), data.test_inputs()).argmax(axis=1)
        assert (guess == data.test_labels).mean() == pytest.approx(float(expected[6]))


def test_a_dry_run_tells_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_own(tmp_path)
    config = as_toml(tmp_path, wine_settings(tmp_path, sites=WINES))
    bundle = tmp_path / "x.bundle"
    site = tmp_path / "site-0" / "site.toml"
    assert main(["collab", "export", str(site), str(config), "--out", str(bundle), "--dry-run"]) == 0
    said = capsys.readouterr().out
    for word in ("48 × 12", "2,304 bytes", "60 × 12", "barolo", "dry run: nothing was written"):
        assert word in said
    assert not bundle.exists()


def tampered(path: Path, change: Callable[[str, bytes], bytes]) -> None:
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, part in parts.items():
            archive.writestr(name, change(name, part))


def flipped(name: str, part: bytes) -> bytes:
    return part[:-1] + bytes([part[-1] ^ 1]) if name == "arrays.safetensors" else part


def with_values_in_a_list(name: str, part: bytes) -> bytes:
    if name != "manifest.json":
        return part
    manifest = json.loads(part)
    manifest["records"]["export"]["values"] = [1, 2]
    return json.dumps(manifest).encode()


def in_directory(path: Path, at: int, value: bytes) -> None:
    """Change the first entry of the ZIP's directory, `at` bytes from its start."""
    content = bytearray(path.read_bytes())
    start = content.index(b"PK\x01\x02") + at
    content[start : start + len(value)] = value
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: tampered(path, flipped), "its checksum is wrong"),
        (lambda path: tampered(path, with_values_in_a_list), "its record export is not a table"),
        (lambda path: in_directory(path, 8, b"\x01\x00"), "encrypted"),
        (lambda path: in_directory(path, 6, b"\xff\x00"), "zip file version 25.5"),
        # Its first entry goes on beyond the end of the file.
        (lambda path: in_directory(path, 20, 2 * (9_000_000).to_bytes(4, "little")), "cannot be read: EOFError"),
        (lambda path: path.write_bytes(path.read_bytes()[:-40]), "cannot be read"),
        (lambda path: path.write_text("hello"), "cannot be read"),
        (lambda path: tampered(path, lambda n, p: p.replace(b'"collaboration"', b'"answer"')), "holds a 'answer'"),
        (lambda path: tampered(path, lambda n, p: p.replace(b"bundle 1", b"bundle 9")), "it is not a"),
        (
            lambda path: tampered(path, lambda n, p: p.replace(b'"site": "clinic-1"', b'"site": "clinic-7"')),
            "speaks for",
        ),
        (lambda path: shutil.copy(path.with_name("clinic-0.bundle"), path), "another bundle of site 'clinic-0'"),
    ],
)
def test_a_spoilt_bundle_is_named_and_the_others_are_solved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], object], reason: str
) -> None:
    make_own(tmp_path)
    config = as_toml(tmp_path, wine_settings(tmp_path, sites=WINES, train__epochs=1))
    bundles = export_all(tmp_path, config)
    spoil(Path(bundles[1]))
    assert main(["collab", "solve", str(config), *bundles, "--out", str(tmp_path / "post")]) == 0
    said = capsys.readouterr().out
    assert "clinic-1.bundle left out" in said
    assert reason in said
    assert len(list((tmp_path / "post" / "answers").iterdir())) == 2


def test_other_settings_are_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_own(tmp_path)
    config = as_toml(tmp_path, wine_settings(tmp_path, sites=WINES, train__epochs=1))
    bundles = export_all(tmp_path, config)
    solved = main(["collab", "solve", str(config), *bundles, "--out", str(tmp_path / "post"), "--set", "seed=3"])
    assert solved == 2
    assert "other settings" in capsys.readouterr().err


def test_only_signed_bundles_are_taken_where_keys_are_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_own(tmp_path)
    keys = tmp_path / "keys"
    keys.mkdir()
    for index in range(WINES):
        key = authority.new_key()
        authority.create_file(tmp_path / f"site-{index}" / "site.key", authority.private_openssh(key), 0o600)
        owner = authority.new_key() if index == 2 else key  # somebody else's key is registered for the last
        authority.create_file(keys / f"clinic-{index}.pub", authority.public_openssh(owner.public_key(), "x"))
    config = as_toml(tmp_path, wine_settings(tmp_path, sites=WINES, train__epochs=1))
    bundles = export_all(tmp_path, config, "--sign")
    # The manifest holds the checksum of the arrays, so a change anywhere breaks the signature.
    tampered(Path(bundles[1]), lambda name, part: part.replace(b'"fault_count": 0', b'"fault_count": 1'))
    out = tmp_path / "post"
    assert main(["collab", "solve", str(config), *bundles, "--out", str(out), "--keys", str(keys)]) == 0
    said = capsys.readouterr().out
    assert "clinic-1.bundle left out: its signature is not that of site 'clinic-1'" in said.replace(
        "round 0, enrol: ", ""
    )
    assert "its signature is not that of site 'clinic-2'" in said
    assert [path.name for path in (out / "answers").iterdir()] == ["clinic-0.answer"]
    unsigned = export_all(tmp_path, config)
    assert main(["collab", "solve", str(config), unsigned[0], "--out", str(tmp_path / "p"), "--keys", str(keys)]) == 2
    assert "it is not signed" in capsys.readouterr().err


def test_an_answer_for_somebody_else_or_without_a_map_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_own(tmp_path)
    config = as_toml(tmp_path, wine_settings(tmp_path, sites=WINES, train__epochs=1))
    out = tmp_path / "post"
    assert main(["collab", "solve", str(config), *export_all(tmp_path, config), "--out", str(out)]) == 0
    site = str(tmp_path / "site-0" / "site.toml")
    assert main(["collab", "apply", site, str(out / "answers" / "clinic-1.answer")]) == 2
    assert "the answer for site 'clinic-1'" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "site-0" / "cache" / "private")
    assert main(["collab", "apply", site, str(out / "answers" / "clinic-0.answer")]) == 2
    assert "private map" in capsys.readouterr().err


def test_a_secret_is_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "secret"
    assert main(["collab", "secret", str(path)]) == 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(path.read_text().strip()) == 64
    assert main(["collab", "secret", str(path)]) == 2


def test_methods_of_many_rounds_do_not_go_by_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_own(tmp_path)
    config = as_toml(tmp_path, wine_settings(tmp_path, method="fedavg"))
    assert main(["collab", "export", str(tmp_path / "site-0" / "site.toml"), str(config)]) == 2
    assert "needs many rounds" in capsys.readouterr().err


def test_answers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    task = wire.Task(wine_config(tmp_path).for_site(), 1, 1)
    site = SimpleNamespace(classes=("0", "1", "2"))
    good = Answer(np.ones((3, 2)), np.zeros(32, np.uint8), {"body.1.bias": np.zeros(3, np.float32)})

    def read(answer: Answer) -> Answer:
        request = SimpleNamespace(content=answer_message(task, answer), site=site)
        return read_answer(request)  # type: ignore[arg-type]

    assert np.array_equal(read(good).mapping, good.mapping)
    for mapping, ticket, reason in (
        (np.full((3, 2), np.nan), good.ticket, "mapping holds values that are not finite"),
        (np.ones((3, 2), np.float32), good.ticket, "mapping is float32"),
        (np.ones(3), good.ticket, "mapping is float64"),
        (np.ones((0, 2)), good.ticket, "mapping of the answer is empty"),
        (good.mapping, np.zeros(3, np.uint8), "ticket is uint8"),
    ):
        with pytest.raises(wire.WireError, match=reason):
            read(Answer(mapping, ticket, good.model))
    diverged = {"body.1.bias": np.full(3, np.nan, np.float32)}
    with pytest.raises(wire.WireError, match="not finite"):
        read(Answer(good.mapping, good.ticket, diverged))
    without = wire.pack_task(task, wire.pack_arrays(good.model))
    with pytest.raises(wire.WireError, match="lacks answer"):
        read_answer(SimpleNamespace(content=without, site=site))  # type: ignore[arg-type]


def test_simulated_secrets_differ_between_sites() -> None:
    assert derive_seed(0, "private map", "000") != derive_seed(0, "private map", "001")
    assert Collaboration.kind == "collaboration"


# --- which rows validate ---------------------------------------------------------------------------------------


def patients_of(tmp_path: Path, **changes: object) -> tuple[Collaborator, NDArray[np.int64], NDArray[np.str_]]:
    """A site whose training rows are of nine patients: the site, its labels and patients."""
    config = wine_config(tmp_path, sites=2, partition__scheme="iid", **changes)
    identity = Identity("000", None, (0, 2), None)
    site = load_site(identity, config.for_site())
    groups = np.array([f"patient {row % 9}" for row in range(len(site.samples))])
    site = replace(site, samples=replace(site.samples, groups=groups))
    return Collaborator(identity, config.for_site(), site, None), site.train_labels, groups[site.train]


def test_a_site_marks_whole_patients_for_validation(tmp_path: Path) -> None:
    collaborator, labels, patients = patients_of(tmp_path)
    offer = collaborator.offer()
    held = offer.validates.astype(bool)
    np.testing.assert_array_equal(offer.labels, labels)
    assert 0.05 < held.mean() < 0.4
    assert not set(patients[held]) & set(patients[~held])
    again = collaborator.offer()
    np.testing.assert_array_equal(again.validates, offer.validates)


def test_no_average_is_over_rows_that_validate_and_rows_that_do_not(tmp_path: Path) -> None:
    collaborator, labels, _ = patients_of(tmp_path)
    held = collaborator.offer().validates.astype(bool)
    averaged = patients_of(tmp_path, collaboration__aggregate=3)[0].offer()
    for part, bit in ((~held, 0), (held, 1)):
        expected = np.bincount(labels[part], minlength=3) // 3
        np.testing.assert_array_equal(np.bincount(averaged.labels[averaged.validates == bit], minlength=3), expected)


def test_where_too_few_rows_are_left_to_average_none_validates(tmp_path: Path) -> None:
    collaborator, labels, _ = patients_of(tmp_path)
    held = collaborator.offer().validates.astype(bool)
    size = int(np.bincount(labels[~held]).max()) + 1
    assert np.bincount(labels).max() >= size
    averaged = patients_of(tmp_path, collaboration__aggregate=size)[0].offer()
    assert len(averaged.rows) >= 1
    assert not averaged.validates.any()


def test_without_patients_a_fifth_of_the_rows_validates_by_the_runs_seed_and_the_sites_name(tmp_path: Path) -> None:
    config = wine_config(tmp_path, sites=2, partition__scheme="iid")
    identity = Identity("000", None, (0, 2), None)
    offer = Collaborator(identity, config.for_site(), load_site(identity, config.for_site()), None).offer()
    expected = held_out_rows(offer.labels, generator(config.seed, "validation", "000"))
    np.testing.assert_array_equal(offer.validates, expected.astype(np.uint8))
