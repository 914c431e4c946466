"""Honest code, greedy settings: what a coordinator tried to get out of a site with data of its own, and gets no more.

The real ClientApp answers in this process. Every test fails on a site without a policy.
"""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from numpy.typing import NDArray
from PIL import Image

from client.app import app
from client.identity import identify
from client.networks import require_allowed
from client.policy.ledger import Ledger
from client.policy.policy import Policy
from client.policy.question import Question
from client.policy.rules import Declined, check
from common import wire
from common.config import SiteSettings, parse
from common.methods import agreement_on, fedccfa, flexcfl, rehearsal
from common.metrics import EvaluationStatistics
from common.models import get_state
from common.networks import build_for
from common.own_network import NetworkError
from common.signature import Signature
from common.state import Extras
from common.wire.records import EXTRA
from server.flower.messages import set_message_id
from tests.support.federation import write_digits
from tests.support.loopback import set_task_identity
from tests.support.policies import lenient

SETTINGS = {
    "data.source": "folder", "data.classes": "0,1", "data.image_size": 8, "data.channels": 1,
    "encoder.name": "random:resnet10t", "encoder.image_size": 32, "train.model": "mlp", "train.lr": 0.1,
}  # fmt: skip


class Site:
    """A site that somebody set up, and whatever a coordinator sends it."""

    with_model: tuple[str, ...] = ("train", "evaluate")

    def __init__(self, folder: Path, data: Path, **node_config: str) -> None:
        set_task_identity()
        self.ledger = Ledger(folder / "ledger.jsonl")
        self._node_config = {
            "site": "clinic", "data-path": str(data), "cache": str(folder / "cache"), "ledger": str(self.ledger.path),
        } | node_config  # fmt: skip

    def ask(
        self,
        kind: str,
        settings: dict[str, object],
        *,
        run: int = 1,
        rounds: int = 2,
        round_number: int = 0,
        rule: str = "fedavg",
        question: str = "",
        extras: Extras | None = None,
    ) -> RecordDict:
        """The answer of the site to one message; each is a task of its own, so nothing is remembered in memory."""
        chosen = parse(settings).for_site()
        sent = agreement_on(rule).travelling(self.model(chosen), chosen)
        model = wire.pack_arrays(sent) if kind in self.with_model else None
        task = wire.Task(chosen, round_number, rounds, rule=rule, group=0 if model else None, question=question)
        message = Message(wire.pack_task(task, model, wire.pack_extras(extras or {})), 7, kind)
        message.metadata.__dict__["_run_id"] = run
        set_message_id(message)
        context = Context(run_id=run, node_id=7, node_config=self._node_config, state=RecordDict(), run_config={})
        content: RecordDict = app(message, context).content
        return content

    @staticmethod
    def model(settings: SiteSettings) -> dict[str, NDArray[np.float32]]:
        return get_state(build_for(settings, seed=0))

    def signature(self, settings: dict[str, object], run: int = 1) -> Signature:
        content = self.ask("query.signature", settings, run=run)
        read = wire.unpack_introduction(content, classes=2, fingerprint="signature", limit_mb=10).fingerprint
        assert isinstance(read, Signature)
        return read


def refusal(content: RecordDict) -> str:
    with pytest.raises(wire.WireError) as caught:
        wire.unpack_kept(content, limit_mb=10)
    assert set(content) == {"refusal"}, "nothing else may leave"
    return str(caught.value)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_digits(tmp_path / "data", (0, 1), count=20)
    return tmp_path / "data"


@pytest.fixture
def site(tmp_path: Path, data: Path) -> Site:
    return Site(tmp_path, data)


def images(data: Path, size: int) -> NDArray[np.float32]:
    """Every image of a site as the encoder `pixels` sees it."""
    read = [np.asarray(Image.open(path).convert("RGB").resize((size, size))) for path in sorted(data.rglob("*.png"))]
    return np.stack(read).transpose(0, 3, 1, 2).reshape(len(read), -1).astype(np.float32) / np.float32(255)


def nearest(prototypes: NDArray[np.float32], pixels: NDArray[np.float32]) -> float:
    return float(min(np.abs(pixels - row).max(axis=1).min() for row in prototypes))


GREEDY = SETTINGS | {"data.test_fraction": 0.999, "encoder.name": "pixels", "encoder.image_size": 8}


def test_a_single_image_cannot_be_had_as_the_mean_of_its_pixels(site: Site, tmp_path: Path, data: Path) -> None:
    said = refusal(site.ask("query.signature", GREEDY))
    assert "policy.encoders" in said
    assert "'pixels'" in said
    assert site.ledger.entries()[-1].what == "declined"
    # Also where a site allows pixels by name: no run decides how many images stay for training.
    lax = Site(tmp_path / "lax", data, policy='{"encoders": ["pixels"]}')
    assert nearest(lax.signature(GREEDY).prototypes, images(data, 8)) > 0.05
    # What the attack gets from a site without a policy: an image, pixel for pixel.
    bare = Site(tmp_path / "bare", data, policy=lenient())
    assert nearest(bare.signature(GREEDY).prototypes, images(data, 8)) < 1e-6


def test_an_update_comes_from_all_rows_whatever_the_run_holds_out(site: Site, tmp_path: Path, data: Path) -> None:
    greedy = SETTINGS | {"data.test_fraction": 0.999, "train.batch_size": 2}

    def samples(one: Site) -> int:
        content = one.ask("train", greedy, round_number=1)
        return int(content["training"]["samples"])  # type: ignore[call-overload,index]

    assert samples(Site(tmp_path / "bare", data, policy=lenient())) == 2
    assert samples(site) == 32


def test_no_update_leaves_a_site_with_a_handful_of_rows(tmp_path: Path) -> None:
    write_digits(tmp_path / "data", (0, 1), count=4)
    said = refusal(Site(tmp_path, tmp_path / "data").ask("train", SETTINGS, round_number=1))
    assert "policy.train_samples = 10" in said


def test_many_queries_give_one_answer_and_then_none(site: Site) -> None:
    """24 queries with other seeds gave 43 of 160 images: each cut another part of the data off."""
    found: list[Any] = []
    said: list[Any] = []
    for run in range(24):
        settings = SETTINGS | {"seed": run, "encoder.name": "efficientnet_lite0", "personalise": "finetune"}
        content = site.ask("query.signature", settings, run=run)
        (found if "signature" in content else said).append(content)
    assert len(found) == 10
    assert all("policy.fingerprints_a_day = 10" in refusal(content) for content in said[:1])
    prototypes = [wire.unpack_arrays(content["signature"])["prototypes"] for content in found]  # type: ignore[arg-type]
    assert all(np.array_equal(prototypes[0], other) for other in prototypes[1:])
    assert sum(entry.what == "declined" for entry in site.ledger.entries()) == 14


def test_no_run_has_a_second_split_to_compare_with_the_first(site: Site, tmp_path: Path, data: Path) -> None:
    """Where data may change, other samples are held out; two signatures would differ by the sum of a few images."""
    settings = SETTINGS | {"encoder.name": "pixels", "encoder.image_size": 8}

    def total(watch: bool, place: str) -> NDArray[np.float32]:
        lax = Site(tmp_path / place, data, policy='{"encoders": ["pixels"], "class_samples": 1}')
        content = lax.ask("query.signature", settings | {"data.watch": watch})
        read = wire.unpack_introduction(content, classes=2, fingerprint="signature", limit_mb=10)
        assert isinstance(read.fingerprint, Signature)
        return read.fingerprint.prototypes * np.array(read.card.class_counts)[:, None]

    # What two sites with the same images would give away.
    assert np.abs(total(True, "one") - total(False, "two")).max() > 0.5
    site.signature(SETTINGS)
    changing = SETTINGS | {"data.watch": True}
    said = refusal(site.ask("query.hello", changing, run=2))
    assert "policy.watch is empty" in said
    site.signature(SETTINGS, run=3)
    decided = Site(tmp_path / "decided", data, policy='{"watch": true}')
    assert "policy.watch = true" in refusal(decided.ask("query.hello", SETTINGS))
    decided.signature(changing)


@pytest.mark.parametrize(
    ("listed", "answered"), [("timm:*", False), ("any", False), ("timm:hf-hub:clinic/*", True), ("timm:hf-hub:*", True)]
)
def test_an_encoder_that_anybody_may_publish_is_used_only_by_name(listed: str, answered: bool) -> None:
    """Whoever makes its weights could let it hand the image through."""
    settings = parse(SETTINGS | {"encoder.name": "timm:hf-hub:clinic/net", "train.model": "timm:hf-hub:clinic/net"})
    question = Question("query.signature", wire.Task(settings.for_site(), 0, 1), "1")
    for line in ("encoders", "networks"):
        usual = {"encoders": ("timm:hf-hub:*",), "networks": ("timm:hf-hub:*",)}
        policy = Policy.model_validate(usual | {line: (listed,)})
        if answered:
            check(policy, question, [], 0.0)
        else:
            with pytest.raises(Declined, match=rf"policy\.{line}"):
                check(policy, question, [], 0.0)


def imprint(settings: SiteSettings) -> dict[str, NDArray[np.float32]]:
    """A network whose first layer sorts images by their brightness: neighbouring units differ by the images between."""
    state = {name: np.zeros_like(array) for name, array in Site.model(settings).items()}
    units = len(state["body.1.weight"])
    state["body.1.weight"][:] = 1 / 64
    state["body.1.bias"][:] = np.linspace(0.6, 0.25, units)
    state["body.3.weight"][0], state["body.3.bias"][0], state["head.weight"][0, 0] = 1, 1, 1
    return state


def test_a_model_made_for_it_brings_images_home_unless_there_is_a_budget(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From one update of 32 images, with the default policy: what a policy does not keep from anybody."""
    settings = SETTINGS | {"train.lr": 1.0, "train.batch_size": 64}
    sent = imprint(parse(settings).for_site())
    monkeypatch.setattr(Site, "model", staticmethod(lambda _: sent))
    read = [np.asarray(Image.open(path).convert("L").resize((8, 8))) for path in sorted(data.rglob("*.png"))]
    truth = np.stack(read).reshape(len(read), -1) / 127.5 - 1

    def found(**policy: object) -> int:
        """How many images are there to a hundredth."""
        place = tmp_path / "-".join(policy)
        site = Site(place, data, policy=json.dumps(policy), memory=str(place / "memory"))
        after = wire.unpack_model(site.ask("train", settings, round_number=1))
        change = {name: np.diff(after[name] - sent[name], axis=0) for name in ("body.1.weight", "body.1.bias")}
        alone = np.abs(change["body.1.bias"]) > 1e-5
        rows = change["body.1.weight"][alone] / change["body.1.bias"][alone, None]
        return sum(bool((np.abs(rows - image).max(axis=1) < 0.01).any()) for image in truth)

    assert found() > 10
    assert found(privacy={"epsilon": 8.0}) == 0


def reading(pixel: int | None, darkest: float, settings: SiteSettings) -> dict[str, NDArray[np.float32]]:
    """A network that answers with one pixel, or a 1, for images that are brighter than that, and with 0 for others."""
    state = {name: np.zeros_like(array) for name, array in Site.model(settings).items()}
    first, second = state["body.1.weight"], state["body.3.weight"]
    # Two units that differ by 1 where an image is bright enough, and one that has the pixel, between 0 and 2.
    first[:2], state["body.1.bias"][:2] = 1e4 / 64, [-1e4 * darkest, -1e4 * darkest - 1]
    first[2, () if pixel is None else pixel] = pixel is not None
    state["body.1.bias"][2] = 1
    second[0, :3], state["body.3.bias"][0] = [4, -4, 1], -4
    state["head.weight"][0, 0] = 1
    return state


def test_a_test_reads_an_image_pixel_by_pixel_unless_none_is_sent_or_there_is_a_budget(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum of losses is that of one image: what a policy does not keep from anybody, secure sums or not."""
    pixels = range(24, 36)
    read = [np.asarray(Image.open(path).convert("L").resize((8, 8))) for path in sorted(data.rglob("*.png"))]
    truth = (np.stack(read).reshape(len(read), -1) / 127.5 - 1)[:, pixels]
    settings = SETTINGS | {"train.prior": "off"}
    chosen = parse(settings).for_site()

    def nearest_image(**policy: object) -> float:
        """The largest error of any pixel, for the image that comes nearest."""
        place = tmp_path / "-".join(["pixels", *policy])
        site = Site(place, data, policy=json.dumps(policy), memory=str(place / "memory"))

        def tested(pixel: int | None, darkest: float) -> EvaluationStatistics:
            sent = reading(pixel, darkest, chosen)
            monkeypatch.setattr(Site, "model", staticmethod(lambda _: sent))
            content = site.ask("evaluate", settings, round_number=1, rounds=100)
            return wire.unpack_evaluation(content, classes=2, limit_mb=10).statistics

        # How bright the brightest is, by halves: the others leave the losses of two equal scores.
        low, high = -1.0, 1.0
        for _ in range(15):
            middle = (low + high) / 2
            found = tested(None, middle)
            bright = abs(found.loss_sum - found.confusion.sum() * np.log(2)) > 1e-6
            low, high = (middle, high) if bright else (low, middle)
        values = []
        for pixel in pixels:
            found = tested(pixel, low - 2e-4)
            loss = found.loss_sum - (found.confusion.sum() - 1) * np.log(2)
            # Of the first class, or of the other: then it counts as a mistake.
            score = -np.log(np.expm1(loss)) if loss < np.log(2) else np.log(np.expm1(loss))
            values.append(score - 1)
        return float(np.abs(truth - np.array(values)).max(axis=1).min())

    with np.errstate(all="ignore"):
        assert nearest_image() < 0.01
        assert not nearest_image(tests=False) < 0.2
        assert not nearest_image(privacy={"epsilon": 8.0, "tests": 27}) < 0.2


def write_table(path: Path, rows: int) -> Path:
    random = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["size", "salary", "sort"])
        writer.writerows([[f"{a:.3f}", f"{b:.3f}", "ab"[i % 2]] for i, (a, b) in enumerate(random.random((rows, 2)))])
    return path


def schema(*columns: str) -> str:
    listed = ", ".join(f'{{"name": "{name}", "minimum": 0, "maximum": 1}}' for name in columns)
    return f'{{"label": "sort", "classes": ["a", "b"], "columns": [{listed}]}}'


TABLE = {"data.source": "table", "data.classes": "", "train.model": "mlp", "encoder.name": "columns"}


@pytest.mark.parametrize("agreed", [True, False])
def test_a_table_is_read_by_the_schema_that_the_site_agreed_to(tmp_path: Path, agreed: bool) -> None:
    table = write_table(tmp_path / "table.csv", 60)
    own = tmp_path / "schema.toml"
    own.write_text('label = "sort"\nclasses = ["a", "b"]\ncolumns = [{name = "size", minimum = 0, maximum = 1}]\n')
    site = Site(tmp_path, table, **({"policy": f'{{"agreed_schema": "{own}"}}'} if agreed else {}))
    foreign = TABLE | {"data.table": schema("salary")}
    for kind in ("query.signature", "query.hello"):
        assert "policy.agreed_schema" in refusal(site.ask(kind, foreign))
    if agreed:
        assert site.signature(TABLE | {"data.table": schema("size")}).prototypes.shape == (2, 1)


def test_a_class_list_that_was_never_agreed_to_is_not_read(site: Site) -> None:
    site.signature(SETTINGS)
    said = refusal(site.ask("query.hello", SETTINGS | {"data.classes": "1,0"}, run=2))
    assert "policy.classes" in said
    assert "[0, 1]" in said


def test_a_run_cannot_have_more_rounds_by_counting_them_low(site: Site, tmp_path: Path, data: Path) -> None:
    strict = Site(tmp_path / "strict", data, policy='{"rounds": 2}')
    assert "policy.rounds = 2" in refusal(strict.ask("train", SETTINGS, rounds=3, round_number=1))
    answers = [strict.ask("train", SETTINGS, rounds=2, round_number=1) for _ in range(3)]
    assert [set(content) >= {"model"} for content in answers] == [True, True, False]
    assert "policy.rounds = 2" in refusal(answers[-1])


def test_small_classes_are_left_out_of_a_signature_and_counted(tmp_path: Path) -> None:
    write_digits(tmp_path / "data", (0, 1), count=20)
    write_digits(tmp_path / "data", (2,), count=8)
    site = Site(tmp_path, tmp_path / "data")
    content = site.ask("query.signature", SETTINGS | {"data.classes": "0,1,2"})
    read = wire.unpack_introduction(content, classes=3, fingerprint="signature", limit_mb=10)
    assert isinstance(read.fingerprint, Signature)
    assert read.fingerprint.classes.tolist() == [0, 1]
    assert read.card.class_counts == (16, 16, 0)
    assert (read.card.withheld, read.card.train_samples) == (6, 38)
    with pytest.raises(ValueError, match="not those of the class counts"):
        read.fingerprint.check(replace(read.card, class_counts=(16, 16, 6), withheld=0))


THREE = SETTINGS | {"data.classes": "0,1,2"}


@pytest.fixture
def uneven(tmp_path: Path) -> Path:
    """16, 16 and 6 samples to train on."""
    write_digits(tmp_path / "uneven", (0, 1), count=20)
    write_digits(tmp_path / "uneven", (2,), count=8)
    return tmp_path / "uneven"


def arrays(content: RecordDict, name: str) -> dict[str, NDArray[np.generic]]:
    return wire.unpack_arrays(content[f"{EXTRA}{name}"])  # type: ignore[arg-type]


@pytest.mark.parametrize(("policy", "told"), [("{}", [16, 16, 0]), (lenient(test_fraction=0.2), [16, 16, 6])])
def test_flexcfl_counts_no_small_class_and_sees_no_shift_in_that(
    tmp_path: Path, uneven: Path, policy: str, told: list[int]
) -> None:
    site = Site(tmp_path, uneven, policy=policy)
    start: Extras = {flexcfl.START: dict(Site.model(parse(THREE).for_site()))}
    answer = site.ask("query.method", THREE, rule="flexcfl", question=flexcfl.COLD_START, extras=start)
    assert arrays(answer, flexcfl.LABELS)["counts"].tolist() == told

    def shifted(before: list[int]) -> int:
        down: Extras = {flexcfl.LABELS: {"counts": np.array(before, np.int64)}}
        return int(
            arrays(site.ask("train", THREE, rule="flexcfl", round_number=1, extras=down), flexcfl.SHIFT)["shifted"]
        )

    # The server goes by the card where a site has not been asked: it is cut as well, by 6 of 38.
    card = wire.unpack_introduction(site.ask("query.hello", THREE), classes=3, fingerprint=None, limit_mb=10).card
    assert shifted(list(card.class_counts)) == 0
    assert shifted([16, 4, 0]) == 1


@pytest.mark.parametrize(
    ("policy", "told"),
    [("{}", [16, 16, 0]), (lenient(test_fraction=0.2), [16, 16, 6]), ('{"class_samples": 17}', [0, 0, 0])],
)
def test_fedccfa_tells_nothing_of_a_small_class(tmp_path: Path, uneven: Path, policy: str, told: list[int]) -> None:
    chosen = parse(THREE).for_site()
    head = {name: array for name, array in Site.model(chosen).items() if name.startswith("head.")}
    anchors = {"means": np.zeros_like(head["head.weight"]), "held": np.zeros(3, np.int64), "known": np.array(0)}
    content = Site(tmp_path, uneven, policy=policy).ask(
        "train", THREE, rule="fedccfa", round_number=1, extras={fedccfa.OWN_HEAD: head, fedccfa.ANCHORS: anchors}
    )
    found = arrays(content, fedccfa.PROTOTYPES)
    assert found["counts"].tolist() == told
    assert found["means"].any(axis=1).tolist() == [count > 0 for count in told]
    # The balanced head has not seen them, either: with nothing to see it is the run's first one.
    same = np.array_equal(arrays(content, fedccfa.BALANCED)["head.weight"], head["head.weight"])
    assert same == (not any(told))


OWN = "tests.common.test_own_network:Own"


@pytest.mark.parametrize(
    ("networks", "policy", "reason"),
    [
        (OWN, "{}", ""),
        (OWN, '{"networks": ["python:*"]}', ""),
        (OWN, '{"networks": ["mlp"]}', "policy.networks = [mlp]"),
        ("", f'{{"networks": ["python:{OWN}"]}}', f'add the line networks = ["{OWN}"] to site.toml'),
        ("", "{}", "which this site does not allow"),
    ],
)
def test_a_network_of_others_needs_both_the_sites_list_and_its_policy(
    tmp_path: Path, data: Path, networks: str, policy: str, reason: str
) -> None:
    site = Site(tmp_path, data, networks=networks, policy=policy)
    for kind in ("query.hello", "train"):
        content = site.ask(kind, SETTINGS | {"train.model": f"python:{OWN}"}, round_number=1)
        if reason:
            assert reason in refusal(content)
        else:
            assert "refusal" not in content


def test_a_rehearsal_reads_no_pixels(site: Site, tmp_path: Path, data: Path) -> None:
    """A head that is trained from nothing for a step is a sum of the images."""
    greedy = SETTINGS | {"encoder.name": "pixels", "encoder.image_size": 8}
    extras: Extras = {
        f"{rehearsal.HEAD}.0": {"weights": np.zeros((1, 2, 193), np.float32)},
        rehearsal.STEP: {"number": np.array(1)},
    }

    def ask(one: Site) -> RecordDict:
        return one.ask("query.method", greedy, rule="rehearsal", question=rehearsal.TRAIN, extras=extras)

    assert "policy.encoders" in refusal(ask(site))
    assert arrays(ask(Site(tmp_path / "lax", data, policy=lenient())), f"{rehearsal.HEAD}.0")["weights"].any()


@pytest.mark.parametrize("policy", ['{"tests": false}', '{"test_samples": 9}'])
def test_no_figure_of_a_test_split_leaves_that_the_site_keeps_to_itself(
    tmp_path: Path, data: Path, policy: str
) -> None:
    def tested(one: Site) -> int:
        content = one.ask("evaluate", SETTINGS, round_number=1)
        return int(wire.unpack_evaluation(content, classes=2, limit_mb=10).statistics.confusion.sum())

    assert tested(Site(tmp_path / "usual", data)) == 8
    assert tested(Site(tmp_path / "closed", data, policy=policy)) == 0


def test_nothing_leaves_that_is_not_in_the_ledger_first(site: Site) -> None:
    content = site.ask("query.signature", SETTINGS)
    asked, sent = site.ledger.entries()
    assert (asked.what, asked.kind, asked.run, asked.classes) == ("asked", "query.signature", "1", ("0", "1"))
    assert (sent.what, sent.bytes, sent.text) == ("sent", wire.size(content), "signature, site")
    site.ledger.path.unlink()
    site.ledger.path.mkdir()
    assert "its ledger cannot be written" in refusal(site.ask("query.signature", SETTINGS))


def test_a_ledger_that_was_changed_ends_all_answers(site: Site) -> None:
    site.ask("query.hello", SETTINGS)
    site.ask("query.hello", SETTINGS)
    lines = site.ledger.path.read_bytes().splitlines(keepends=True)
    site.ledger.path.write_bytes(b"".join([lines[0], *lines[2:]]))
    assert "not as it was left" in refusal(site.ask("query.hello", SETTINGS))


@pytest.mark.parametrize(
    "named",
    [
        {"data.source": "folder", "data.path": "/etc"},
        {"cache": "/elsewhere"},
        {"encoder.name": "timm:resnet10t", "encoder.weights": "/etc/passwd"},
        {"train.model": "timm:resnet10t", "train.weights": "/etc/passwd"},
    ],
)
def test_no_run_names_a_path_on_the_disk_of_a_demonstration_site(named: dict[str, object]) -> None:
    set_task_identity()
    task = wire.Task(parse({"data.classes": ",".join("0123456789")} | named).for_site(), 0, 1)
    message = Message(wire.pack_task(task), 7, "query.hello")
    set_message_id(message)
    node_config = {"site": "share", "partition-id": 0, "num-partitions": 2}
    content = app(message, Context(run_id=1, node_id=7, node_config=node_config, state=RecordDict(), run_config={}))
    assert "names a path on this site's disk" in refusal(content.content)


def raw(message: Message, node_config: dict[str, object]) -> RecordDict:
    set_task_identity()
    message.metadata.__dict__["_run_id"] = 1
    set_message_id(message)
    context = Context(run_id=1, node_id=7, node_config=node_config, state=RecordDict(), run_config={})  # type: ignore[arg-type]
    content: RecordDict = app(message, context).content
    return content


def test_a_demonstration_site_imports_nothing_that_a_run_names() -> None:
    shown = identify({"site": "share", "partition-id": 0, "num-partitions": 2}, 7)
    with pytest.raises(NetworkError, match="does not allow"):
        require_allowed("python:antigravity:net", shown)
    require_allowed("python:antigravity:net", identify({"partition-id": 0, "num-partitions": 2}, 7))


def test_a_policy_that_cannot_be_read_is_not_quoted(data: Path) -> None:
    task = wire.Task(parse(SETTINGS).for_site(), 0, 1)
    broken: dict[str, object] = {"data-path": str(data), "policy": '{"rounds": "private words"}'}
    said = refusal(raw(Message(wire.pack_task(task), 7, "query.hello"), broken))
    assert said == "its policy or node config cannot be read; the site's own log says more"


@pytest.mark.parametrize("parts", [{}, {"folded": ConfigRecord({"arrays a": "x"})}])
def test_a_message_that_cannot_be_read_is_in_the_ledger(site: Site, parts: dict[str, ConfigRecord]) -> None:
    refusal(wire.unfold(raw(Message(RecordDict({**parts}), 7, "query.hello"), dict(site._node_config))))
    (entry,) = site.ledger.entries()
    assert (entry.what, entry.run, entry.kind, entry.settings) == ("declined", "", "", "")
    assert entry.text


def test_a_refusal_names_the_setting_and_not_the_path(tmp_path: Path, data: Path) -> None:
    (tmp_path / "private.txt").touch()
    (tmp_path / "private.pth").write_bytes(b"no tensors")
    for name in ("missing-private.pth", "private.txt", "private.pth"):
        site = Site(tmp_path / name.replace(".", "-"), data, **{"network-weights": str(tmp_path / name)})
        chosen = SETTINGS | {"train.model": "timm:resnet10t", "train.weights": "hub", "data.image_size": 32}
        task = wire.Task(parse(chosen).for_site(), 1, 2, question="x")
        said = refusal(raw(Message(wire.pack_task(task), 7, "query.hello"), dict(site._node_config)))
        assert "network_weights in site.toml" in said
        assert "private" not in said
