"""What a site keeps of a secure sum on its disk: for its owner alone, for one sum alone, and no longer than needed."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from flwr.app import RecordDict

from client.identity import Identity, identify
from client.secure.answers import SECURE_ANSWERS
from client.secure.credentials import source_of
from client.secure.participant import Distrust, Session
from client.secure.session_file import SessionFile
from common import wire
from common.config import Config
from common.secure.terms import Terms

SESSION = Session(
    b"c" * 32, 1, b"e" * 32, b"m" * 32, b"s" * 32, "masked", {0: b"advert", 1: b"own"}, {0: b"p", 1: b"q"}, (0, 1)
)


def test_it_comes_back_as_it_was_and_for_its_own_sum_alone(tmp_path: Path) -> None:
    file = SessionFile(tmp_path / "sums")
    with file.held() as held, pytest.raises(Distrust, match="begun no such sum"):
        held.recall(SESSION.context)
    with file.held() as held:
        held.keep(SESSION)
    with file.held() as held:
        assert held.recall(SESSION.context) == SESSION
        with pytest.raises(Distrust, match="told otherwise"):
            held.recall(b"d" * 32)
        held.keep(None)
    with file.held() as held, pytest.raises(Distrust, match="begun no such sum"):
        held.recall(SESSION.context)


def test_only_its_owner_reads_it_and_no_secret_stays(tmp_path: Path) -> None:
    with SessionFile(tmp_path / "sums").held() as held:
        held.keep(SESSION)
    (path,) = (tmp_path / "sums").glob("*.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert SESSION.seed.hex() in path.read_text()
    with SessionFile(tmp_path / "sums").held() as held:
        held.keep(None)
    assert [one for one in (tmp_path / "sums").iterdir() if SESSION.seed.hex() in one.read_text()] == []


@pytest.mark.parametrize("content", ["", "{", "[]", '{"session": 3', "null", '{"session": {"context": ""}}'])
def test_one_that_cannot_be_read_is_said_so(tmp_path: Path, content: str) -> None:
    (tmp_path / "secure-sum.json").write_text(content)
    with pytest.raises(Distrust, match="cannot be read"), SessionFile(tmp_path).held() as held:
        held.recall(b"")


def test_a_round_is_opened_for_one_set_of_sites(tmp_path: Path) -> None:
    """The attack: a round is done again, as after a crash, with all sites but one; the difference is its update."""
    with SessionFile(tmp_path).held() as held:
        held.note_opened(3, ["a", "b", "c", "d"])
        held.keep(SESSION)
    with SessionFile(tmp_path).held() as held:
        held.note_opened(3, ["d", "c", "b", "a"])
        held.note_opened(4, ["a", "b", "c"])
        with pytest.raises(Distrust, match="round 3 was opened before"):
            held.note_opened(3, ["a", "b", "c"])


# --- messages ---------------------------------------------------------------------------------------------------

NAMES = ("000", "001", "002", "003")


class Site:
    """A simulated site that answers the messages of a sum; each message finds only what is on its disk."""

    def __init__(self, name: str, folder: Path) -> None:
        self._identity = Identity(name, None, (int(name), 4), None, in_engine=True)
        self._task = wire.Task(
            Config().for_site(), 1, 2, run="ab", group=0, folder=str(folder), terms=Terms(NAMES, 100, 0, bytes(32))
        )

    def ask(self, kind: str, letters: wire.Letters, **changes: object) -> wire.Letters:
        task = replace(self._task, **changes)  # type: ignore[arg-type]
        content = wire.pack_task(task, letters=wire.pack_letters(letters))
        answer: RecordDict = SECURE_ANSWERS[kind](content, wire.unpack_task(content), self._identity)
        return wire.unpack_lettered(answer, 4).letters


def sites(folder: Path) -> list[Site]:
    return [Site(name, folder) for name in NAMES]


def adverts(group: list[Site]) -> wire.Letters:
    return {member: letter for site in group for member, letter in site.ask("keys", {}).items()}


def test_a_site_that_was_started_again_goes_on_where_it_was(tmp_path: Path) -> None:
    group = sites(tmp_path)
    keys = adverts(group)
    # Nothing of the first process is left.
    sealed = sites(tmp_path)[2].ask("shares", keys)
    assert set(sealed) == {0, 1, 3}
    with pytest.raises(Distrust, match="out of turn"):
        sites(tmp_path)[2].ask("shares", keys)


def test_new_keys_forget_the_old_ones(tmp_path: Path) -> None:
    group = sites(tmp_path)
    keys = adverts(group)
    group[0].ask("keys", {}, round_number=2)
    with pytest.raises(Distrust, match="another one since"):
        group[0].ask("shares", keys)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"terms": None}, "no part of a secure sum"),
        ({"terms": Terms(("000", "001", "002"), 100, 0, bytes(32))}, "it takes 4"),
        ({"terms": Terms(("001", "002", "003", "004"), 100, 0, bytes(32))}, "not among the members"),
    ],
)
def test_terms_that_no_site_agrees_to(tmp_path: Path, changes: dict[str, object], match: str) -> None:
    with pytest.raises(wire.WireError, match=match):
        sites(tmp_path)[0].ask("keys", {}, **changes)


def test_two_questions_at_once_are_answered_one_after_the_other(tmp_path: Path) -> None:
    """Two different sums, asked at the same time: one is signed, and the other is out of turn."""
    group = sites(tmp_path)
    keys = adverts(group)
    for site in group:
        site.ask("shares", keys)
    folder = tmp_path / "000" / "secure-sum"
    with SessionFile(folder).held() as held:
        context = bytes.fromhex(held._content["session"]["context"])
        session = held.recall(context)
        session.stage, session.shares = "masked", dict.fromkeys(range(4), bytes(66))
        held.keep(session)
    signed: list[wire.Letters] = []
    refused: list[str] = []

    def sign(summed: list[int]) -> None:
        try:
            signed.append(Site("000", tmp_path).ask("sign", dict.fromkeys(summed, b"")))
        except Distrust as error:
            refused.append(str(error))

    threads = [Thread(target=sign, args=(summed,)) for summed in ([0, 1, 2], [0, 1, 2, 3]) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(signed) == 1
    assert len(refused) == 5


def test_secrets_of_a_real_site_are_drawn_anew_every_time() -> None:
    """Of a simulated one they follow from the seed."""
    task = wire.Task(Config().for_site(), 1, 2)
    real, simulated = (
        identify({"site": "clinic", "data-path": "x"}, 0),
        Identity("0", None, (0, 4), None, in_engine=True),
    )
    assert source_of(real, task, "keys")(32) != source_of(real, task, "keys")(32)
    assert source_of(simulated, task, "keys")(32) == source_of(simulated, task, "keys")(32)
    assert source_of(simulated, task, "keys")(32) != source_of(simulated, task, "shares")(32)
