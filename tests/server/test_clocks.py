"""Clocks that are off: minutes are tolerated, and both sides say whose clock is off, and by how much."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.client.grpc_rere_client import connection, node_auth_client_interceptor
from flwr.server.superlink.fleet.grpc_rere import node_auth_server_interceptor
from flwr.superlink.cli import flower_superlink  # noqa: F401  (loads what `tolerate` changes)
from hypothesis import given
from hypothesis import strategies as st

from cli.commands.server import _Porter
from cli.commands.site import _Refusal
from cli.deployment import authority
from client.flower import clock
from common.clock import TOLERANCE, ClockWatch, ForeignClock, ahead, foreign_clock, foreign_clock_line, in_words
from common.release import VERSION
from server.flower import clocks, control
from server.flower.sightings import Sighting, Sightings, name_of, read_sightings

METHOD = "/flwr.proto.Fleet/ActivateNode"


def line_of(key: ec.EllipticCurvePublicKey, seconds: float) -> str:
    return foreign_clock_line(ForeignClock(control.key_bytes(key).decode(), seconds))


class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(lambda request, context: b"welcome")


class Site:
    """A signing client of a gRPC server on loopback, whose clock can be wrong."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, registered: bool = True, sightings: Sightings | None = None
    ) -> None:
        self.key = ec.generate_private_key(ec.SECP384R1())
        self.public = control.key_bytes(self.key.public_key())
        known = {self.public: 7} if registered else {}
        state = SimpleNamespace(get_node_id_by_public_key=known.get)
        self.told_server: list[tuple[bytes, float]] = []
        self.told_site: list[float] = []
        guard = clocks.tolerant(
            node_auth_server_interceptor.NodeAuthServerInterceptor,
            lambda *told: self.told_server.append(told),
            sightings,
        )(SimpleNamespace(state=lambda: state))
        # The handler itself, without Flower's look at the node id in a request that this one does not have.
        monkeypatch.setattr(guard, "_wrap_method_handler", lambda handler, key: handler)
        self.server = grpc.server(ThreadPoolExecutor(2), handlers=(Handlers(),), interceptors=[guard])
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        signing = clock.comparing(connection.NodeAuthClientInterceptor, self.told_site.append)
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)])
        intercepted = grpc.intercept_channel(self.channel, signing(self.key, self.key.public_key()))
        self.ask = intercepted.unary_unary(METHOD)
        self._monkeypatch = monkeypatch

    def call(self, off: float) -> bytes:
        """Ask with a clock that is so many seconds ahead."""
        with self._monkeypatch.context() as patch:
            later = datetime.timedelta(seconds=off)
            patch.setattr(node_auth_client_interceptor, "now", lambda: datetime.datetime.now(tz=datetime.UTC) + later)
            patch.setattr(clock, "time", SimpleNamespace(time=lambda: time.time() + off))
            answer: bytes = self.ask(b"", timeout=20)
            return answer


@pytest.fixture
def tolerated(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `clocks.tolerate` changes is put back afterwards."""
    for name in ("MIN_TIMESTAMP_DIFF", "MAX_TIMESTAMP_DIFF"):
        monkeypatch.setattr(node_auth_server_interceptor, name, getattr(node_auth_server_interceptor, name))
    module = clocks.importlib.import_module("flwr.superlink.cli.flower_superlink")
    monkeypatch.setattr(module, "NodeAuthServerInterceptor", module.NodeAuthServerInterceptor)
    clocks.tolerate()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tolerated: None) -> Iterator[Site]:
    made = Site(monkeypatch)
    yield made
    made.channel.close()
    made.server.stop(0)


@pytest.mark.parametrize("off", [12.0, -12.0, 300.0, -600.0])
def test_a_site_whose_clock_is_off_by_minutes_is_let_in_and_both_sides_say_so(site: Site, off: float) -> None:
    assert site.call(off) == b"welcome"
    assert site.call(off) == b"welcome"
    # Once, though it asked twice.
    ((key, seconds),) = site.told_server
    assert key == site.public
    assert seconds == pytest.approx(off, abs=2)
    (heard,) = site.told_site
    assert heard == pytest.approx(off, abs=2)
    # And once more when it is right again.
    assert site.call(0.0) == b"welcome"
    assert [abs(one) < 5 for one in site.told_site] == [False, True]
    assert [abs(one) < 5 for _, one in site.told_server] == [False, True]


def test_of_a_clock_that_is_right_nobody_speaks(site: Site) -> None:
    assert site.call(0.0) == site.call(2.0) == b"welcome"
    assert site.told_server == site.told_site == []


@pytest.mark.parametrize("off", [TOLERANCE + 30, -TOLERANCE - 30])
def test_who_is_too_far_off_is_told_why_he_is_turned_away(
    site: Site, off: float, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(grpc.RpcError, match="Invalid timestamp"):
        site.call(off)
    ((_, seconds),) = site.told_server
    assert seconds == pytest.approx(off, abs=2)
    clock.say(site.told_site[0])
    said = capsys.readouterr().err
    assert f"15 min 30 s {'ahead of' if off > 0 else 'behind'} the coordinator's: set it" in said
    refusal = _Refusal("site a", "host:1")
    assert refusal.hear(said)
    assert refusal.verdict() == ""
    assert "this machine's clock is too far off; trying again for 90 s" in capsys.readouterr().err
    refusal.hear(said)
    refusal._since -= 100
    assert "set the clock of this machine" in refusal.verdict()


def test_strangers_cannot_fill_the_log(monkeypatch: pytest.MonkeyPatch, tolerated: None) -> None:
    site = Site(monkeypatch, registered=False)
    site.call(60.0)
    assert site.told_server == []
    site.channel.close()
    site.server.stop(0)


@pytest.mark.parametrize("registered", [True, False])
def test_version_and_clock_of_a_site_are_kept_if_its_key_is_known(
    monkeypatch: pytest.MonkeyPatch, tolerated: None, tmp_path: Path, registered: bool
) -> None:
    path = tmp_path / "seen.json"
    site = Site(monkeypatch, registered, Sightings(path))
    site.call(60.0)
    site.channel.close()
    site.server.stop(0)
    found = read_sightings(path)
    assert set(found) == ({name_of(site.public)} if registered else set())
    for sighting in found.values():
        assert sighting.version == VERSION
        assert sighting.ahead == pytest.approx(60, abs=2)
        assert sighting.at == pytest.approx(time.time(), abs=30)


def test_sightings_are_kept_over_a_restart_and_are_not_written_for_nothing(tmp_path: Path) -> None:
    now = 1e9
    path = tmp_path / "seen.json"
    seen = Sightings(path, lambda: now)
    seen.note(b"a", "0.2.0", 0.1)
    assert not seen.is_due(b"a", "0.2.0", 0.3)
    assert seen.is_due(b"a", "0.3.0", 0.3)
    assert seen.is_due(b"a", "0.2.0", 9.0)
    seen.note(b"b", "x" * 10_000, 0.0)
    assert len(read_sightings(path)) == 1, "a moment ago it was written"
    now += 61
    assert seen.is_due(b"a", "0.2.0", 0.1)
    seen.note(b"a", "0.2.0", 0.1)
    assert Sightings(path)._found == {
        name_of(b"a"): Sighting("0.2.0", 0.1, now),
        name_of(b"b"): Sighting("?", 0.0, 1e9),
    }


@pytest.mark.parametrize(
    "text", ["", "[]", '{"a": {"version": 1, "ahead": 0, "at": 0}}', '{"a": {"version": "1", "at": 0}}']
)
def test_a_damaged_file_of_sightings_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "seen.json").write_text(text)
    assert read_sightings(tmp_path / "seen.json") == {}


def test_the_servers_log_names_the_site(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    (tmp_path / "clinic-a.pub").write_bytes(authority.public_openssh(key, "clinic-a"))
    line = line_of(key, 12.34)
    assert "\n" not in line
    assert not _Porter(tmp_path).hear(line + "\n")
    assert "the clock of site clinic-a is 12.3 s ahead of this machine's" in capsys.readouterr().err
    assert not _Porter(tmp_path).hear(line_of(key, -2000.0))
    assert "33 min 20 s behind this machine's: it is not let in" in capsys.readouterr().err
    assert not _Porter(tmp_path).hear(line_of(key, 0.2))
    assert "is right again, as this machine's" in capsys.readouterr().err
    assert foreign_clock("coterie-clock is what somebody wrote") is None


@given(before=st.floats(0, 1e9), took=st.floats(0, 100), share=st.floats(0, 1), off=st.floats(-1e4, 1e4))
def test_a_slow_answer_makes_no_clock_wrong(before: float, took: float, share: float, off: float) -> None:
    there = before + share * took - off
    found = ahead(before, there, before + took)
    # Never more than it is, and never the other way.
    assert abs(found) <= abs(off) + 1e-6
    assert found * off >= 0
    assert abs(found) >= abs(off) - took - 1e-6


def test_a_clock_that_stays_off_is_spoken_of_once_a_day() -> None:
    now = 0.0
    watch = ClockWatch(lambda: now)
    said = []
    for hour in range(60):
        now = 3600.0 * hour
        if watch.is_news(20.0 + hour % 2):
            said.append(hour)
    assert said == [0, 25, 50]
    assert watch.is_news(40.0)
    assert not watch.is_news(38.0)
    assert watch.is_news(1.0)
    assert not watch.is_news(0.0)
    assert in_words(0.0) == "right again, as"


def test_flower_signs_and_looks_where_it_is_changed() -> None:
    from tests.support.contract import changed, names_used

    server = node_auth_server_interceptor.NodeAuthServerInterceptor.intercept_service
    assert {"MIN_TIMESTAMP_DIFF", "MAX_TIMESTAMP_DIFF"} <= names_used(server), changed(
        "a site's time was compared with these two", "server/flower/clocks.py"
    )
    lifespan = clocks.importlib.import_module("flwr.superlink.cli.flower_superlink").SuperLinkLifespan
    assert "NodeAuthServerInterceptor" in names_used(lifespan._start_legacy_fleet_grpc_rere), changed(
        "the Fleet API made its interceptor by this name", "server/flower/clocks.py"
    )
    assert "NodeAuthClientInterceptor" in names_used(connection.grpc_request_response.__wrapped__), changed(  # type: ignore[attr-defined]
        "a SuperNode made its interceptor by this name", "client/flower/clock.py"
    )
