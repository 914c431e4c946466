"""A run on a federation of separate machines: sent to its server, and followed to its end."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cli.deployment.address import greet
from cli.deployment.authority import create_file
from cli.deployment.federation import Connection, connection_to, speaking_to, under_way
from cli.deployment.layout import Layout
from cli.deployment.start_file import ServerFile, located, read_start_file
from cli.deployment.supervisor import flower_environment, plain, program, say
from cli.toml_text import settings_toml
from common.classes import agreed_classes
from common.config import Config, SettingsError, flat_values, parse
from server.flower.log_lines import started_run
from server.history.run_directory import CHECKPOINTS, run_name

_PROJECT = Path(__file__).parents[2]
INTERRUPTED = 130  # what Ctrl-C gives everywhere
_LEAVES = 3.0  # seconds for Flower's program to end after Ctrl-C
_SETTLES, _LOOK_EVERY = 20.0, 0.5  # seconds for a run to end whose log is complete
_FLOWERS_WORDS = "ServerApp failed with exception: "
_CALL_EVERY = 2.0  # seconds between two calls to a server that is away


def submit(config: Config, folder: Path, *, out: str | None, resume: bool = False, insecure: bool = False) -> int:
    """Send a run to the federation in `folder` and show its log; return 0 if it finished.

    Parameters
    ----------
    config
        Settings of the run; who does not set `sites` waits for all that the server knows.
    folder
        Of `coterie provision`.
    out
        Run directory on the server; None: the one that the settings name, else a new one in `folder`.
    resume
        Go on with the run that is there.
    insecure
        The server was started without TLS.
    """
    layout, connection = Layout(folder.absolute()), connection_to(folder, insecure=insecure)
    config = _complete(config, layout, out, resume=resume)
    if not (_PROJECT / "pyproject.toml").exists():
        raise SettingsError(f"{_PROJECT} has no pyproject.toml: `coterie run` sends the app from a checkout of Coterie")
    if reason := _not_writable(Path(config.out), connection):
        say(f"out = {config.out} cannot be written: {reason}; nothing was started")
        return 1
    print(f"run directory: {config.out}", flush=True)
    _require_resumable(config)
    follower = _Follower(layout, connection)
    with tempfile.TemporaryDirectory(prefix="coterie-") as scratch:
        # In a file, because values on Flower's command line cannot hold quotes.
        settings = Path(scratch) / "run.toml"
        settings.write_text(settings_toml(config) + "\n", encoding="utf-8")
        code = follower.submit(settings)
    return _told(code, config)


def follow(folder: Path, run: int, *, insecure: bool = False) -> int:
    """Show the log of a run that was started before, to its end; return 0 if it finished."""
    layout, connection = Layout(folder.absolute()), connection_to(folder, insecure=insecure)
    return _Follower(layout, connection, str(run)).follow()


def _told(code: int, config: Config) -> int:
    if code == INTERRUPTED:
        return code
    if code and (Path(config.out) / CHECKPOINTS).is_dir():
        say(f"the run did not finish; `coterie run` with --resume --out {config.out} goes on with it")
    return code


def _complete(config: Config, layout: Layout, out: str | None, *, resume: bool) -> Config:
    """Fill in the number of sites and the run directory."""
    from server.methods import settle

    settle(config)
    if config.simulate.clock:
        raise SettingsError("simulate.clock is for simulations: sites of a federation take the time that they take")
    # Every site would refuse a run without a class list; said here, once.
    agreed_classes(config.data)
    if "sites" not in config.model_fields_set:
        server = read_start_file(layout.server_file, ServerFile)
        known = len(list(located(layout.server_file, server.keys).glob("*.pub")))
        # Read anew: what fits twenty sites need not fit these.
        config = parse(flat_values(config) | {"sites": max(known, 1)})
    if resume and not (out or config.out):
        raise SettingsError("--resume needs to know which run: give its directory with --out")
    directory = Path(out or config.out or layout.root / "runs" / run_name(config)).absolute()
    return config.model_copy(update={"out": str(directory), "resume": "auto" if resume else config.resume})


def _not_writable(out: Path, connection: Connection) -> str:
    """Why a run directory on this machine cannot be made; empty: it can, or it is for another user to try."""
    if not connection.control.is_local:
        return ""
    missing = out
    while not missing.parent.exists():
        missing = missing.parent
    if missing.exists():
        return "" if missing.is_dir() else "it is a file"
    try:
        missing.mkdir(mode=0o700)
        missing.rmdir()
    except PermissionError as error:
        # The server may run as somebody else, who may.
        return (error.strerror or "") if connection.of_this_user else ""
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _require_resumable(config: Config) -> None:
    """Say now what the server would say of a run directory that can be seen from here."""
    from server.history.run_directory import RUN, as_begun, check_resumable
    from server.methods import settle

    path = Path(config.out)
    # The server may run as somebody else, whose directories are closed to this user.
    if os.access(path / RUN, os.R_OK):
        check_resumable(path, as_begun(settle(config)))


class _Follower:
    """Submits a run and shows its log to the end, also if the server is away for a while."""

    def __init__(self, layout: Layout, connection: Connection, run_id: str = "") -> None:
        self._connection, self._layout = connection, layout
        if connection.ca is not None:
            self._show_secret(layout, connection)
        self._environment = flower_environment(layout.operator) | {"FLWR_HOME": str(layout.operator)}
        self._run_id = run_id

    @staticmethod
    def _show_secret(layout: Layout, connection: Connection) -> None:
        """Write the secret where Flower's `flwr` looks for it, under the address that it calls."""
        from server.flower.control import operator_credentials

        path = layout.operator / "credentials.yaml"
        text = operator_credentials(connection.written, connection.secret)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.unlink(missing_ok=True)
            create_file(path, text.encode(), 0o600)

    def submit(self, settings: Path) -> int:
        """Start the run and show its log; return 0 if it finished."""
        with speaking_to(self._connection) as superlink:
            for other in under_way(superlink):
                what = f"run {other.number} ({other.text('method')}, {other.text('out')}) is {other.state}"
                say(f"{what} on this server; sites share their time between runs, and --queue lets a run wait its turn")
        arguments = ("run", str(_PROJECT), self._connection.name, "--stream", "--run-config", str(settings))
        return self._to_the_end(*arguments)

    def follow(self) -> int:
        """Show the log of a run that was started before; return 0 if it finished."""
        return self._to_the_end("log", self._run_id, self._connection.name, "--stream")

    def _to_the_end(self, *arguments: str) -> int:
        try:
            code = self._flower(*arguments)
            while code and self._run_id:
                say("the server does not answer; the run goes on there as soon as it is back. Calling again …")
                while greet(self._connection.control, self._connection.ca):
                    time.sleep(_CALL_EVERY)
                say(f"following run {self._run_id} again, from the beginning of its log")
                code = self._flower("log", self._run_id, self._connection.name, "--stream")
            return code or self._outcome()
        except KeyboardInterrupt:
            say(self._leave())
            return INTERRUPTED

    def _leave(self) -> str:
        """What becomes of a run that nobody looks at any more."""
        on = f"--on {self._layout.root}"
        if not self._run_id:
            return f"the run may have been sent already: `coterie runs {on}` tells"
        return (
            f"run {self._run_id} goes on at the server. `coterie follow {self._run_id} {on}` shows it again, "
            f"`coterie stop {self._run_id} {on}` ends it"
        )

    def _flower(self, *arguments: str) -> int:
        with subprocess.Popen(
            [program("flwr"), *arguments],
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
            # Ctrl-C is for this process, which says what it means.
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    print(line if sys.stdout.isatty() else plain(line), end="", flush=True)
                    self._run_id = started_run(line) or self._run_id
            except KeyboardInterrupt:
                process.terminate()
                try:
                    process.wait(_LEAVES)
                except subprocess.TimeoutExpired:
                    process.kill()
                raise
            return process.wait()

    def _outcome(self) -> int:
        """Return 0 if the server says that the run finished."""
        with speaking_to(self._connection) as superlink:
            end = next((run for run in superlink.runs() if str(run.number) == self._run_id), None)
            deadline = time.monotonic() + _SETTLES
            while end is not None and not end.has_ended and time.monotonic() < deadline:
                # The log may be complete a moment before the run is.
                time.sleep(_LOOK_EVERY)
                end = next((run for run in superlink.runs() if run.number == end.number), None)
        if end is not None and end.state == "failed" and end.details:
            say(end.details.removeprefix(_FLOWERS_WORDS))
        return 0 if end is not None and end.state == "finished" else 1
