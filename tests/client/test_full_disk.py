"""A full disk at a site: it says so, nothing leaves and nothing is half-written, and it goes on when there is room."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from flwr.app import RecordDict

from client.memory import Memory
from client.policy.ledger import Ledger
from common import wire
from tests.client.policy.test_attacks import SETTINGS, Site
from tests.support.federation import write_digits


@contextmanager
def no_file_over(size: int) -> Iterator[None]:
    """The kernel cuts off what is written beyond so many bytes of a file, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def refused(content: RecordDict) -> str:
    """Why, of a refusal that may pass; and nothing else is in the answer."""
    assert set(content) == {"refusal"}, "nothing else may leave"
    with pytest.raises(wire.Refusal) as caught:
        wire.unpack_kept(content, limit_mb=10)
    assert caught.value.passing
    return str(caught.value)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    write_digits(tmp_path / "data", (0, 1), count=20)
    return Site(tmp_path / "site", tmp_path / "data")


def entries(site: Site) -> list[str]:
    """What the ledger says; reading it fails if a line is torn or missing."""
    return [entry.what for entry in Ledger(site.ledger.path).entries()]


def growth(site: Site) -> tuple[int, int]:
    """Bytes of the two lines of an answer: what was asked, and what was sent."""
    lines = site.ledger.path.read_bytes().splitlines(keepends=True)
    return len(lines[-2]), len(lines[-1])


@pytest.mark.parametrize("at", ["the question", "the answer"])
def test_nothing_leaves_that_the_ledger_has_no_room_for(site: Site, at: str) -> None:
    site.signature(SETTINGS)
    before, (asked, _) = entries(site), growth(site)
    room = site.ledger.path.stat().st_size + (5 if at == "the question" else asked + 60)
    with no_file_over(room):
        said = refused(site.ask("query.signature", SETTINGS))
    assert ("ledger cannot be written" in said) if at == "the question" else ("disk is full" in said)
    assert entries(site) == before + (["asked"] if at == "the answer" else [])
    # There is room again: the half line is gone, and the chain goes on.
    site.signature(SETTINGS)
    assert entries(site)[-2:] == ["asked", "sent"]


def test_decoded_images_that_do_not_fit_are_a_refusal_and_leave_nothing(site: Site, tmp_path: Path) -> None:
    with no_file_over(2000):
        said = refused(site.ask("query.signature", SETTINGS))
    assert "its disk is full" in said
    decoded = tmp_path / "site" / "cache" / "decoded"
    assert [path.name for path in decoded.iterdir() if path.suffix != ".lock"] == []
    assert len(site.signature(SETTINGS).prototypes) == 2


def test_a_memory_that_does_not_fit_is_a_refusal(site: Site, tmp_path: Path) -> None:
    settings = SETTINGS | {"method": "lg-fedavg"}
    site.signature(SETTINGS)

    def train(round_number: int) -> RecordDict:
        return site.ask("train", settings, round_number=round_number, rounds=9, rule="lg-fedavg")

    assert set(train(1)) != {"refusal"}
    folder = next((tmp_path / "site" / "cache").rglob("*.safetensors")).parent
    with no_file_over(site.ledger.path.stat().st_size + 2000):
        assert "its disk is full" in refused(train(2))
    # That of round 1 entered no mean.
    assert list(folder.iterdir()) == []
    assert set(train(2)) != {"refusal"}
    assert len(list(folder.iterdir())) == 1


def test_what_a_site_remembers_outlives_a_full_disk(tmp_path: Path) -> None:
    memory = Memory(tmp_path, "run", "fedper")
    memory.remember(1, {"head": np.ones(1000, np.float32)})
    with no_file_over(2000), pytest.raises(OSError, match="cannot be written"):
        memory.remember(2, {"head": np.zeros(1000, np.float32)}, accepted=1)
    assert len(list(tmp_path.iterdir())) == 1
    recalled = memory.recall(1)
    assert recalled is not None
    assert recalled["head"].all()
