"""Waiting at the SuperLink: woken by what arrives, for so long, in one's own place, and not without end."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from server.flower import arrivals as arrivals_module
from server.flower.arrivals import Arrivals
from server.flower.patience import _LONGEST, a_wait, is_wait, seconds_of

LONG = 30.0


def soon(action: object) -> None:
    threading.Timer(0.1, action).start()  # type: ignore[arg-type]


def test_who_waits_is_woken_by_what_arrives_and_not_by_something_else() -> None:
    arrivals, there = Arrivals(), threading.Event()

    def arrive() -> None:
        arrivals.tell("another")
        there.set()
        arrivals.tell("mine")

    soon(arrive)
    begun = time.monotonic()
    assert arrivals.wait("mine", LONG, there.is_set)
    assert time.monotonic() - begun < LONG / 2


def test_what_is_there_already_is_not_waited_for() -> None:
    assert Arrivals().wait("mine", LONG, lambda: True)


def test_waiting_ends() -> None:
    begun = time.monotonic()
    assert not Arrivals().wait("mine", 0.2, lambda: False)
    assert 0.2 <= time.monotonic() - begun < LONG


def test_who_waits_is_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals_module, "_LOOK", 0.02)
    looks: list[float] = []
    assert not Arrivals().wait("mine", 0.2, lambda: bool(looks.append(time.monotonic())))  # type: ignore[func-returns-value]
    assert len(looks) == 2, "at the beginning and at the end"


def test_nobody_waits_for_one_who_has_gone() -> None:
    assert not Arrivals().wait("mine", LONG, lambda: False, lambda: False)


def test_of_two_who_wait_for_the_same_the_later_one_counts() -> None:
    arrivals, there = Arrivals(), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(arrivals.wait, "mine", LONG, there.is_set)
        time.sleep(0.1)
        second = pool.submit(arrivals.wait, "mine", LONG, there.is_set)
        assert first.result(LONG / 2) is False
        there.set()
        arrivals.tell("mine")
        assert second.result(LONG / 2) is True


def test_who_finds_no_place_is_answered_at_once() -> None:
    arrivals, there = Arrivals(most=1), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(arrivals.wait, "mine", LONG, there.is_set)
        time.sleep(0.1)
        assert not arrivals.wait("another", LONG, lambda: False)
        assert arrivals.wait("another", LONG, lambda: True)
        there.set()
        arrivals.tell("mine")
        assert first.result(LONG / 2)


def test_hundreds_wait_and_each_is_woken_by_its_own() -> None:
    arrivals, there = Arrivals(), [threading.Event() for _ in range(200)]
    with ThreadPoolExecutor(200) as pool:
        waiting = [pool.submit(arrivals.wait, str(name), LONG, one.is_set) for name, one in enumerate(there)]
        for name, one in enumerate(there):
            one.set()
            arrivals.tell(str(name))
        assert all(one.result(LONG / 2) for one in waiting)


def test_a_wait_says_how_long_and_nobody_waits_longer_than_that() -> None:
    assert is_wait(a_wait(0.25))
    assert seconds_of(a_wait(0.25)) == 0.25
    assert not is_wait("0123abcd")
    assert [seconds_of(f"wait {text}") for text in ("1e9", "nan", "-5", "soon")] == [_LONGEST, 0.0, 0.0, 0.0]
