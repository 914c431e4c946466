"""`coterie run`: start a run on a federation of separate machines, and follow it."""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
import time
import tomllib
from pathlib import Path

from cli.arguments import Subparsers, add_config, read_config
from cli.commands.provision import Layout
from cli.commands.settings import as_toml
from cli.deployment.address import CONTROL_PORT, greet, parse_address
from cli.deployment.start_file import ServerFile, located, read_start_file
from cli.deployment.supervisor import flower_environment, program, say
from common.classes import agreed_classes
from common.config import Config, SettingsError
from server.run_directory import CHECKPOINTS

_PROJECT = Path(__file__).parents[2]
_STARTED = re.compile(r"Successfully started run (\d+)")
_CALL_EVERY = 2.0  # seconds between two calls to a server that is away


def register(jobs: Subparsers) -> None:
    """Add the sub-command."""
    parser = jobs.add_parser(
        "run",
        help="start a run on a federation of separate machines",
        description="Sends the app and its settings to the running server and shows the run's log until it ends. "
        "Ctrl-C ends the showing, not the run.",
    )
    add_config(parser)
    parser.add_argument("--on", type=Path, required=True, metavar="FOLDER", help="folder of `coterie provision`")
    parser.add_argument("--out", help="run directory on the server; default FOLDER/runs/<time>-<method>-seed<seed>")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out, if it ended too early")
    parser.add_argument("--insecure", action="store_true", help="the server was started with --insecure")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Submit the run; return 0 if it finished."""
    layout = Layout(options.on.absolute())
    config = prepare(options, layout)
    if not (_PROJECT / "pyproject.toml").exists():
        raise SettingsError(f"{_PROJECT} has no pyproject.toml: `coterie run` sends the app from a checkout of Coterie")
    print(f"run directory: {config.out}", flush=True)
    follower = _Follower(layout, insecure=options.insecure)
    with tempfile.TemporaryDirectory(prefix="coterie-") as scratch:
        # In a file, because values on Flower's command line cannot hold quotes.
        settings = Path(scratch) / "run.toml"
        settings.write_text(as_toml(config) + "\n", encoding="utf-8")
        code = follower.submit(settings)
    code = code or _outcome(Path(config.out))
    if code and (Path(config.out) / CHECKPOINTS).is_dir():
        say(f"the run did not finish; `coterie run` with --resume --out {config.out} goes on with it")
    return code


class _Follower:
    """Submits a run and shows its log to the end, also if the server is away for a while."""

    def __init__(self, layout: Layout, *, insecure: bool) -> None:
        self._connection = "coterie-insecure" if insecure else "coterie"
        # From the operator's own file: the operator may sit at another machine than the server.
        table = tomllib.loads((layout.operator / "config.toml").read_text(encoding="utf-8"))
        self._control = parse_address(table["superlink"][self._connection]["address"], CONTROL_PORT)
        self._ca = None if insecure else layout.operator / "ca.crt"
        self._environment = flower_environment(layout.operator) | {"FLWR_HOME": str(layout.operator)}
        self._run_id = ""

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
                if started := _STARTED.search(line):
                    self._run_id = started[1]
            return process.wait()


def prepare(options: argparse.Namespace, layout: Layout) -> Config:
    """Return the configuration of the run, with the number of sites and the run directory filled in."""
    if not (layout.operator / "config.toml").exists():
        raise SettingsError(f"{layout.root} is not the folder of a federation: `coterie provision` makes one")
    config = read_config(options)
    from server.methods import settle

    settle(config)
    # Every site would refuse a run without a class list; said here, once.
    agreed_classes(config.data)
    if "sites" not in config.model_fields_set:
        server = read_start_file(layout.server_file, ServerFile)
        known = len(list(located(layout.server_file, server.keys).glob("*.pub")))
        options.set.append(f"sites={max(known, 1)}")
        config = read_config(options)
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{config.method}-seed{config.seed}"
    if options.resume and not (options.out or config.out):
        raise SettingsError("--resume needs to know which run: give its directory with --out")
    out = Path(options.out or config.out or layout.root / "runs" / stamp).absolute()
    resume = "auto" if options.resume else config.resume
    return config.model_copy(update={"out": str(out), "resume": resume})


def _outcome(out: Path) -> int:
    """Return 0 if the run directory says that the run finished; on another machine than the server's, nobody knows."""
    # Imported late: the types of events come with libraries that nobody should wait for at the start.
    from server.event_log import read_events
    from server.events import RunEnded

    try:
        ends = read_events(out).of(RunEnded)
    except OSError:
        return 0
    return 0 if ends and ends[-1].outcome == "finished" else 1
