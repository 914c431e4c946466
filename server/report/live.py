"""A growing run, served to browsers on this machine. It reads the run directory and touches nothing in it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from common.config import SettingsError
from server.history import run_directory
from server.report import main_part, page, read_run

HOST = "127.0.0.1"

_log = logging.getLogger("coterie")
# What a page is made from: when none of these changes, neither does the page.
_SOURCES = (run_directory.RUN, run_directory.EVENTS, run_directory.DISTANCES)
# Seconds of computing that a page may take without a rest after it.
_CHEAP = 0.5


class LiveRun:
    """The page of a run as it is now; made anew only when the run directory has changed.

    Parameters
    ----------
    directories
        The run to watch, and others to compare it with.
    pause
        Seconds after which a page asks for news.
    """

    def __init__(self, directories: Sequence[Path], pause: float = 2.0) -> None:
        self._directories = directories
        self._pause = pause
        # Several browsers may ask at once; one of them makes the page, the others wait for it.
        self._lock = threading.Lock()
        self._made: dict[str, tuple[str, str]] = {}
        self._rest_until = 0.0

    def stamp(self) -> str:
        """Something that is another whenever the run directories have changed."""
        return "/".join(_stamp(directory / name) for directory in self._directories for name in _SOURCES)

    def whole(self) -> tuple[str, str]:
        """Return the stamp and the whole page."""
        return self._make("whole")

    def news(self, after: str) -> tuple[str, str | None]:
        """Return the stamp and the part that changes; None if nothing has changed since the stamp `after`."""
        now = self.stamp()
        if now == after:
            return now, None
        if time.monotonic() < self._rest_until:
            # Never with `after`: it is anything a reader likes, and the answer goes into a header.
            return self._made["main"][0], None
        return self._make("main")

    def _make(self, kind: str) -> tuple[str, str]:
        with self._lock:
            # Taken before the files are read: what is written meanwhile is news the next time.
            stamp = self.stamp()
            if kind not in self._made or self._made[kind][0] != stamp:
                start = time.thread_time()
                records = [read_run(directory) for directory in self._directories]
                text = page(records, stamp=stamp, pause=self._pause) if kind == "whole" else main_part(records)
                self._made[kind] = (stamp, text)
                spent = time.thread_time() - start
                if kind == "main" and spent > _CHEAP:
                    # The log of a large run grows all the time: leave nine tenths of a core to the run.
                    self._rest_until = time.monotonic() + 9 * spent
            return self._made[kind]


def _stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return "-"
    # The inode too: a run that starts again may write a file of the same size within the clock's resolution.
    return f"{status.st_size}.{status.st_mtime_ns}.{status.st_ino}"


def serve(run: LiveRun, port: int) -> ThreadingHTTPServer:
    """Return a server on the loopback address; port 0: any free one. It answers GET for the page and its news alone."""

    class Handler(BaseHTTPRequestHandler):
        # A reader that goes away or stalls must not hold a thread for ever.
        timeout = 30

        def do_GET(self) -> None:
            address = urlsplit(self.path)
            # Another name for this machine would be a page elsewhere that reads the run through the user's browser.
            allowed = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}  # type: ignore[attr-defined]
            if self.headers.get("Host") not in allowed:
                self._answer(HTTPStatus.FORBIDDEN, "only for this machine")
                return
            try:
                if address.path == "/":
                    self._answer(HTTPStatus.OK, run.whole()[1], run.stamp())
                elif address.path == "/main":
                    after = parse_qs(address.query).get("after", [""])[0]
                    stamp, text = run.news(after)
                    self._answer(HTTPStatus.NO_CONTENT if text is None else HTTPStatus.OK, text or "", stamp)
                else:
                    self._answer(HTTPStatus.NOT_FOUND, "there is only one page")
            except SettingsError as error:
                # The directory is being made, or was removed: it may come back.
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, str(error))

        def _answer(self, status: HTTPStatus, text: str, stamp: str = "") -> None:
            body = text.encode("utf-8")
            self.send_response(status)
            kind = "text/html" if status == HTTPStatus.OK else "text/plain"
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("X-Frame-Options", "DENY")
            self.send_header("X-Stamp", stamp)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            _log.debug(format, *args)

    server = ThreadingHTTPServer((HOST, port), Handler)
    server.daemon_threads = True
    return server
