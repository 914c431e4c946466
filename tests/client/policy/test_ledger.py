"""The ledger: a chain that shows what was changed, on disk before an answer leaves, and read again after a restart."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.policy.ledger import START, Entry, Ledger, LedgerBroken


def write(path: Path, *texts: str) -> Ledger:
    ledger = Ledger(path)
    for text in texts:
        with ledger.held() as held:
            held.append(Entry(at=1.0, what="asked", text=text))
    return ledger


def test_entries_are_read_again_as_they_were_written(tmp_path: Path) -> None:
    ledger = write(tmp_path / "new" / "ledger.jsonl", "one", "zwei ä\n\N{LINE SEPARATOR}", "three")
    assert [entry.text for entry in Ledger(ledger.path).entries()] == ["one", "zwei ä\n\N{LINE SEPARATOR}", "three"]
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600
    assert Ledger(tmp_path / "none").entries() == []
    assert Ledger(tmp_path / "none").head() == START


def test_an_entry_is_synced_before_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bytes] = []
    write(tmp_path / "ledger.jsonl", "none")
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.pread(file, 10_000, 0)))
    write(tmp_path / "ledger.jsonl", "one")
    assert b'"one"' in synced[-1]


def test_what_was_being_written_when_the_machine_stopped_is_taken_off(tmp_path: Path) -> None:
    ledger = write(tmp_path / "ledger.jsonl", "one", "two")
    with ledger.path.open("ab") as file:
        file.write(b'{"after": "half a li')
    assert len(ledger.entries()) == 2
    write(ledger.path, "three")
    assert [entry.text for entry in ledger.entries()] == ["one", "two", "three"]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_line_but_the_last_that_is_changed_or_gone_shows(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ledger = write(tmp_path_factory.mktemp("ledger") / "ledger.jsonl", *"abcde")
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    victim = data.draw(st.integers(0, len(lines) - 2))
    deed = data.draw(st.sampled_from(["drop", "change", "swap", "double"]))
    if deed == "drop":
        del lines[victim]
    elif deed == "change":
        lines[victim] = lines[victim].replace(b'"at": 1.0', b'"at": 2.0')
    elif deed == "swap":
        lines[victim], lines[victim + 1] = lines[victim + 1], lines[victim]
    else:
        lines.insert(victim, lines[victim])
    ledger.path.write_bytes(b"".join(lines))
    with pytest.raises(LedgerBroken, match="line"):
        ledger.entries()
    with pytest.raises(LedgerBroken), ledger.held():
        pass


def test_noting_a_line_is_the_same_as_appending_it(tmp_path: Path) -> None:
    texts = ["one", "x" * 5000, "\N{SNOWMAN}" * 9000, "", "last"]
    appended, noted = write(tmp_path / "appended", *texts), Ledger(tmp_path / "noted")
    for number, text in enumerate(texts):
        noted.note(Entry(at=1.0, what="asked", text=text))
        if number == 2:
            with noted.path.open("ab") as file:
                file.write(b"torn " * 3000)
    assert noted.path.read_bytes() == appended.path.read_bytes()


def test_the_head_shows_that_the_end_was_cut_off(tmp_path: Path) -> None:
    ledger = write(tmp_path / "ledger.jsonl", "one", "two")
    noted = ledger.head()
    ledger.path.write_bytes(ledger.path.read_bytes().splitlines(keepends=True)[0])
    assert ledger.head() != noted


@pytest.mark.parametrize("line", [b"no json\n", b"[]\n", b'{"after": 1}\n', b'{"what": "asked", "at": 1.0}\n'])
def test_what_is_no_entry_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(line)
    with pytest.raises(LedgerBroken, match="line 1"):
        Ledger(path).entries()


def test_two_who_write_at_once_do_not_break_it(tmp_path: Path) -> None:
    def several() -> None:
        write(tmp_path / "ledger.jsonl", *["x"] * 20)

    threads = [threading.Thread(target=several) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Ledger(tmp_path / "ledger.jsonl").entries()) == 80
