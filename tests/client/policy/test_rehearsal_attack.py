"""What a coordinator tried to learn of single rows from the steps of a rehearsal."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from numpy.typing import NDArray

from client.app import app
from client.data import load_site
from client.identity import identify
from client.methods.rehearsal import Folded
from common import wire
from common.config import parse
from common.extras import Network
from common.methods.rehearsal import AGREEMENT, HEAD, PARTS, RULE, STEP, TRAIN
from common.randomness import generator
from server.flower.messages import set_message_id
from tests.support.loopback import set_task_identity
from tests.support.policies import lenient

COLUMNS, CLASSES, RATE, BATCH = 6, 3, 0.01, 16
# Of the third class there are too few to be described.
COUNTS = (24, 22, 6)


class Site:
    def __init__(self, folder: Path) -> None:
        set_task_identity()
        columns = [f"c{number}" for number in range(COLUMNS)]
        values = np.random.default_rng(0).random((sum(COUNTS), COLUMNS)).round(3)
        sorts = np.repeat(list("abc"), COUNTS)
        with (folder / "table.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*columns, "sort"])
            writer.writerows([*row, sort] for row, sort in zip(values, sorts, strict=True))
        listed = ", ".join(f'{{"name": "{name}", "minimum": 0, "maximum": 1}}' for name in columns)
        self.schema = f'{{"label": "sort", "classes": ["a", "b", "c"], "columns": [{listed}]}}'
        own = listed.replace('": ', '" = ').replace('"name"', "name").replace('"minimum"', "minimum")
        own = own.replace('"maximum"', "maximum")
        (folder / "schema.toml").write_text(f'label = "sort"\nclasses = ["a", "b", "c"]\ncolumns = [{own}]\n')
        policy = f'{{"agreed_schema": "{folder / "schema.toml"}", "rounds": 100}}'
        self._node_config = {
            "site": "clinic", "data-path": str(folder / "table.csv"), "cache": str(folder / "cache"),
            "ledger": str(folder / "ledger.jsonl"), "policy": policy,
        }  # fmt: skip

    def train(self, head: NDArray[np.float32], step: int = 1, seed: int = 0) -> RecordDict:
        settings = parse(
            {"data.source": "table", "data.table": self.schema, "train.model": "mlp", "encoder.name": "columns"}
            | {"seed": seed, "rehearsal.rounds": 15}
        ).for_site()
        task = wire.Task(settings, 0, 2, rule=RULE, question=TRAIN)
        extras = {f"{HEAD}.0": {"weights": head}, STEP: {"number": np.array(step, np.int64)}}
        message = Message(wire.pack_task(task, extras=wire.pack_extras(extras)), 7, "query.method")
        message.metadata.__dict__["_run_id"] = 1
        set_message_id(message)
        context = Context(run_id=1, node_id=7, node_config=self._node_config, state=RecordDict(), run_config={})
        return app(message, context).content

    def moved(self, head: NDArray[np.float32], step: int = 1, seed: int = 0) -> NDArray[np.float32]:
        """What a step changed in the head: float32[folds, classes, width + 1]."""
        content = self.train(head, step, seed)
        declared = AGREEMENT.questions[TRAIN].up
        answer = wire.unpack_answered(content, declared=declared, network=Network({}, CLASSES), limit_mb=10)
        moved: NDArray[np.float32] = answer.extras[f"{HEAD}.0"]["weights"] - head
        return moved


def linear(bias: float) -> NDArray[np.float32]:
    """A head that is so sure of the first class that every step adds each row of another class to that class's."""
    head = np.zeros((PARTS, CLASSES, COLUMNS + 1), np.float32)
    head[:, 0, -1] = bias
    return head


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_messages_with_other_seeds_and_steps_are_answered_from_the_same_lots(site: Site) -> None:
    """Twelve seeds gave sixty known sums over known rows, and least squares gave each of the rows."""
    head = linear(90.0)
    first = site.moved(head)
    for seed in range(1, 12):
        assert np.array_equal(first, site.moved(head, step=1 + seed, seed=seed))


def test_who_foretells_the_lots_from_what_the_server_knows_finds_no_row(site: Site) -> None:
    count = 42  # training samples, as the card says
    sums, weights = [], []
    for seed in range(12):
        moved = site.moved(linear(90.0), seed=seed)
        part = generator(seed, "rehearsal parts", "clinic").permutation(count) % PARTS
        for fold in range(PARTS):
            order = generator(seed, f"rehearsal fold {fold}", "clinic", 1).permutation(np.flatnonzero(part != fold))
            weight = np.zeros(count)
            for batch in np.split(order, range(BATCH, len(order), BATCH)):
                weight[batch] = RATE / len(batch)
            weights.append(weight)
            sums.append(moved[fold, 1])
    found = np.linalg.lstsq(np.array(weights), np.array(sums), rcond=None)[0]
    # A row of the class has a bias of one; those of others have none.
    assert not np.any(np.abs(found[:, -1] - 1) < 1e-2)


def test_a_part_is_never_one_row_of_a_class(site: Site) -> None:
    """Each row counts alike, so that what folds differ by is the sum over a part."""
    moved = site.moved(linear(90.0))[:, 1, -1] / (RATE / BATCH)
    held = np.round(moved.sum() / (PARTS - 1)) - moved
    np.testing.assert_allclose(held, np.round(held), atol=1e-3)
    assert np.round(held).min() == 3


def test_a_class_of_a_few_rows_is_not_trained_on(site: Site) -> None:
    moved = np.abs(site.moved(linear(90.0))).max(axis=(0, 2))
    assert moved[2] < 1e-6 < moved[1]


@pytest.mark.parametrize(("head", "step", "reason"), [(linear(1e4), 1, "beyond ±100"), (linear(0.0), 16, "step 16")])
def test_heads_and_steps_that_no_rehearsal_has_are_refused(
    site: Site, head: NDArray[np.float32], step: int, reason: str
) -> None:
    content = site.train(head, step)
    assert set(content) == {"refusal"}
    with pytest.raises(wire.WireError, match=reason):
        wire.unpack_kept(content, limit_mb=10)


def test_the_lots_follow_from_what_only_the_site_has(tmp_path: Path) -> None:
    """Same name, same counts, same settings, one number in the table changed: other parts, whatever the run's seed."""

    def parts(secret: int | None, seed: int = 0) -> list[int]:
        visit = SimpleNamespace(settings=SimpleNamespace(seed=seed), site=SimpleNamespace(secret=secret, name="clinic"))
        rows = np.random.default_rng(1).normal(size=(40, 4)).astype(np.float32)
        folded = Folded(rows, np.arange(40) % 2, 2, visit)  # type: ignore[arg-type]
        return folded._part.tolist()

    secrets = []
    for number, changed in enumerate(("0.1", "0.2")):
        table = tmp_path / f"{number}.csv"
        table.write_text("c0,sort\n" + "".join(f"0.5,{sort}\n" for sort in "ab" * 10) + f"{changed},a\n")
        schema = '{"label": "sort", "classes": ["a", "b"], "columns": [{"name": "c0", "minimum": 0, "maximum": 1}]}'
        settings = parse({"data.source": "table", "data.table": schema, "train.model": "mlp"}).for_site()
        own = {"site": "clinic", "data-path": str(table), "cache": str(tmp_path), "policy": lenient()}
        secrets.append(load_site(identify(own, 7), settings).secret)
    assert None not in secrets
    assert secrets[0] != secrets[1]
    assert parts(secrets[0]) != parts(secrets[1])
    assert parts(secrets[0], seed=5) == parts(secrets[0])
