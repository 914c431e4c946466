"""A growing run in the browser: on this machine alone, read only, up to date, and never in the way."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.invented import Plot, write_run
from cli.main import main
from server.report.live import HOST, LiveRun, serve
from tests.support.browser import CHROMIUM, DESKTOP, DRIVER, MISSING, chromium


@contextmanager
def served(run: Path | LiveRun) -> Iterator[int]:
    server = serve(run if isinstance(run, LiveRun) else LiveRun([run], 0.2), 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(port: int, path: str = "/", method: str = "GET", host: str = "") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    connection.request(method, path, headers={"Host": host or f"{HOST}:{port}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, answer.headers.get("X-Stamp", "")


class Growing:
    """A run directory whose log grows line by line."""

    def __init__(self, folder: Path) -> None:
        self._whole = write_run(folder / "whole", Plot(sites=6, kinds=2, rounds=4))
        self._lines = (self._whole / "events.jsonl").read_text().splitlines(keepends=True)
        self.directory = folder / "growing"
        self.directory.mkdir()
        for name in ("run.json", "distances.npy"):
            shutil.copy(self._whole / name, self.directory)
        self.start()

    def start(self) -> None:
        (self.directory / "events.jsonl").write_text(self._lines[0])

    def grow_to(self, round_number: int) -> None:
        """Write everything up to the end of a round."""
        ends = [i for i, line in enumerate(self._lines) if json.loads(line)["event"] == "RoundFinished"]
        (self.directory / "events.jsonl").write_text("".join(self._lines[: ends[round_number - 1] + 1]))


@pytest.fixture
def growing(tmp_path: Path) -> Growing:
    return Growing(tmp_path)


def test_news_come_as_rounds_finish(growing: Growing) -> None:
    with served(growing.directory) as port:
        status, text, stamp = ask(port)
        assert status == 200
        assert f'data-stamp="{stamp}"' in text
        assert "connect-src 'self'" in text
        assert ask(port, f"/main?after={stamp}")[:2] == (204, "")
        for number in (1, 3):
            growing.grow_to(number)
            status, text, fresh = ask(port, f"/main?after={stamp}")
            assert status == 200
            assert fresh != stamp
            assert f"after {number} of 4 rounds" in text
            stamp = fresh
        # Started again in the same directory: the log is shorter than before.
        growing.start()
        status, text, _ = ask(port, f"/main?after={stamp}")
        assert status == 200
        assert "No round is complete yet" in text


def test_a_directory_that_goes_away_comes_back(growing: Growing) -> None:
    with served(growing.directory) as port:
        aside = growing.directory.with_name("aside")
        growing.directory.rename(aside)
        assert ask(port)[0] == 503
        aside.rename(growing.directory)
        assert ask(port)[0] == 200


def test_only_this_machine_and_only_reading(growing: Growing) -> None:
    before = {path: path.stat().st_mtime_ns for path in growing.directory.rglob("*")}
    with served(growing.directory) as port:
        for method in ("POST", "PUT", "DELETE"):
            assert ask(port, method=method)[0] == 501
        for path in ("/events.jsonl", "/../run.json", "/main/../..", "/%2e%2e/run.json"):
            assert ask(port, path)[0] == 404
        for host in ("evil.example", f"evil.example:{port}", HOST):
            assert ask(port, host=host)[0] == 403
        assert ask(port, host=f"localhost:{port}")[0] == 200
    assert {path: path.stat().st_mtime_ns for path in growing.directory.rglob("*")} == before


def test_a_reader_that_stalls_holds_nobody_up(growing: Growing) -> None:
    with served(growing.directory) as port:
        stalled = http.client.HTTPConnection(HOST, port)
        stalled.connect()
        assert ask(port)[0] == 200
        stalled.close()


def test_what_a_reader_sends_is_never_sent_back(growing: Growing) -> None:
    run = LiveRun([growing.directory])
    made, _ = run.news("")
    run._rest_until = time.monotonic() + 60
    with served(run) as port:
        for after in ("x%0D%0ASet-Cookie:%20a=b", "%E2%82%AC"):
            connection = http.client.HTTPConnection(HOST, port, timeout=60)
            connection.request("GET", f"/main?after={after}")
            answer = connection.getresponse()
            assert (answer.status, answer.headers["X-Stamp"]) == (204, made)
            assert "Set-Cookie" not in answer.headers
            connection.close()


def test_a_costly_page_is_not_made_all_the_time(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.report.live._CHEAP", 0.0)
    run = LiveRun([growing.directory])
    stamp, text = run.news("")
    assert text is not None
    run._rest_until = time.monotonic() + 60
    growing.grow_to(1)
    assert run.news(stamp) == (stamp, None)
    run._rest_until = 0.0
    fresh, text = run.news(stamp)
    assert fresh != stamp
    assert text is not None
    assert run._rest_until > time.monotonic()


def test_watch_says_what_is_wrong(growing: Growing, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path / "nowhere")]) == 2
    assert "RUN is the directory of a run" in capsys.readouterr().err
    with served(growing.directory) as port:
        assert main(["watch", str(growing.directory), "--port", str(port)]) == 2
    assert "choose another with --port" in capsys.readouterr().err


@pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason=MISSING)
@pytest.mark.browser
def test_an_open_page_follows_the_run(growing: Growing, tmp_path: Path) -> None:
    growing.grow_to(1)
    with served(growing.directory) as port, chromium(tmp_path / "browser") as browser:
        browser.use(DESKTOP)
        browser.open(f"http://{HOST}:{port}/")
        browser.draw_all()
        points = "document.getElementById('training').data[0].x.length"
        assert browser.driver.execute_script(f"return {points}") == 1
        browser.driver.execute_script("scrollTo({top: 700, behavior: 'instant'})")
        growing.grow_to(3)
        browser.wait("return document.querySelector('.lead').textContent.includes('after 3 of 4 rounds')")
        browser.driver.execute_script("dispatchEvent(new Event('beforeprint'))")
        browser.wait(f"return {points} === 3")
        # Nothing jumps under the reader.
        assert browser.driver.execute_script("return scrollY") == 700
        growing.start()
        browser.wait("return document.querySelector('main').textContent.includes('No round is complete yet')")
        assert browser.complaints() == []
        assert all(url.startswith(f"http://{HOST}:{port}/") for url in browser.requests())
