"""A run on a federation of separate machines: sent to its server, and followed to its end."""

from __future__ import annotations

import subprocess
import tempfile
import time
import tomllib
from pathlib import Path

from cli.deployment.address import CONTROL_PORT, greet, parse_address
from cli.deployment.authority import create_file
from cli.deployment.layout import Layout
from cli.deployment.operator_secret import read_secret
from cli.deployment.start_file import ServerFile, located, read_start_file
from cli.deployment.supervisor import flower_environment, program, say
from cli.toml_text import settings_toml
from common.classes import agreed_classes
from common.config import Config, SettingsError, flat_values, parse
from server.flower.log_lines import started_run
from server.history.event_log import read_events
from server.history.events import RunEnded
from server.history.run_directory import CHECKPOINTS, run_name

_PROJECT = Path(__file__).parents[2]
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
    layout = Layout(folder.absolute())
    config = _complete(config, layout, out, resume=resume)
    if not (_PROJECT / "pyproject.toml").exists():
        raise SettingsError(f"{_PROJECT} has no pyproject.toml: `coterie run` sends the app from a checkout of Coterie")
    print(f"run directory: {config.out}", flush=True)
    follower = _Follower(layout, insecure=insecure)
    with tempfile.TemporaryDirectory(prefix="coterie-") as scratch:
        # In a file, because values on Flower's command line cannot hold quotes.
        settings = Path(scratch) / "run.toml"
        settings.write_text(settings_toml(config) + "\n", encoding="utf-8")
        code = follower.submit(settings)
    code = code or _outcome(Path(config.out))
    if code and (Path(config.out) / CHECKPOINTS).is_dir():
        say(f"the run did not finish; `coterie run` with --resume --out {config.out} goes on with it")
    return code


def _complete(config: Config, layout: Layout, out: str | None, *, resume: bool) -> Config:
    """Fill in the number of sites and the run directory."""
    if not (layout.operator / "config.toml").exists():
        raise SettingsError(f"{layout.root} is not the folder of a federation: `coterie provision` makes one")
    from server.methods import settle

    settle(config)
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


class _Follower:
    """Submits a run and shows its log to the end, also if the server is away for a while."""

    def __init__(self, layout: Layout, *, insecure: bool) -> None:
        self._connection = "coterie-insecure" if insecure else "coterie"
        # From the operator's own file: the operator may sit at another machine than the server.
        table = tomllib.loads((layout.operator / "config.toml").read_text(encoding="utf-8"))
        self._control = parse_address(table["superlink"][self._connection]["address"], CONTROL_PORT)
        self._ca = None if insecure else layout.operator / "ca.crt"
        if not insecure:
            self._show_secret(layout, table["superlink"][self._connection]["address"])
        self._environment = flower_environment(layout.operator) | {"FLWR_HOME": str(layout.operator)}
        self._run_id = ""

    @staticmethod
    def _show_secret(layout: Layout, address: str) -> None:
        """Write the secret where Flower's `flwr` looks for it, under the address that it calls."""
        from server.flower.control import operator_credentials

        path = layout.operator / "credentials.yaml"
        text = operator_credentials(address, read_secret(layout.operator_secret))
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.unlink(missing_ok=True)
            create_file(path, text.encode(), 0o600)

    def submit(self, settings: Path) -> int:
        """Return 0 once the log of the run is complete."""
        if reason := greet(self._control, self._ca):
            raise SettingsError(f"no server answers at {self._control} ({reason}): start it with `coterie server`")
        code = self._flower("run", str(_PROJECT), self._connection, "--stream", "--run-config", str(settings))
        while code and self._run_id:
            say("the server does not answer; the run goes on there as soon as it is back. Calling again …")
            while greet(self._control, self._ca):
                time.sleep(_CALL_EVERY)
            say(f"following run {self._run_id} again, from the beginning of its log")
            code = self._flower("log", self._run_id, self._connection, "--stream")
        return code

    def _flower(self, *arguments: str) -> int:
        with subprocess.Popen(
            [program("flwr"), *arguments],
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                self._run_id = started_run(line) or self._run_id
            return process.wait()


def _outcome(out: Path) -> int:
    """Return 0 if the run directory says that the run finished; on another machine than the server's, nobody knows."""
    try:
        ends = read_events(out).of(RunEnded)
    except OSError:
        return 0
    return 0 if ends and ends[-1].outcome == "finished" else 1
