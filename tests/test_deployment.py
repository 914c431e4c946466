"""A federation of real processes on the loopback: TLS, site keys, the supervisor, and who is turned away."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from cli import authority, supervisor
from cli.address import CONTROL_PORT, parse_address
from cli.main import main
from cli.provision import Layout
from cli.registration import register_sites
from cli.start_file import ServerFile, read_start_file
from cli.supervisor import Refused, Service, supervise

ROOT = Path(__file__).parents[1]

# Seconds for anything to happen at all; on an idle machine it takes a few, on one with ten times its load a minute.
PATIENCE = 240

# One thread: two sites, a server and the tests share the cores.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}

CONFIG = """
rounds = 2
[data]
source = "folder"
classes = ["0", "1", "2", "3"]
image_size = 8
channels = 1
[encoder]
name = "random:resnet10t"
image_size = 32
[train]
model = "lenet5"
[cluster]
k = 1
[round]
start_timeout = 120.0
deadline = 150.0
"""


# --- the supervisor --------------------------------------------------------------------------------------------


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.1)


def test_a_program_that_dies_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE", 0.1)
    code = "import pathlib, time; f = pathlib.Path('starts'); f.open('a').write('x')\n"
    code += "if len(f.read_text()) == 3: time.sleep(99)"
    starts, stop = tmp_path / "starts", threading.Event()

    def enough() -> None:
        if starts.exists() and len(starts.read_text()) == 3:
            stop.set()

    service = Service("it", python(code))
    supervise([service], os.environ, tmp_path, each_pulse=enough, stop=stop)
    assert starts.read_text() == "xxx"
    assert service.pid is None


def test_a_program_that_cannot_start_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_LONGEST_PAUSE", 0.0)
    monkeypatch.setattr(supervisor, "_MOST_FALSE_STARTS", 2)
    bystander = Service("the other", python("import time; time.sleep(99)"))
    with pytest.raises(Refused, match="it ended 3 times soon after its start"):
        supervise([bystander, Service("it", python("raise SystemExit(7)"))], os.environ, tmp_path)
    assert bystander.pid is None


def test_a_verdict_is_final(tmp_path: Path) -> None:
    heard: list[str] = []
    service = Service(
        "it",
        python("print('go away')"),
        hear=lambda line: heard.append(line) is None,
        verdict=lambda: "turned away" if "go away\n" in heard else "",
    )
    with pytest.raises(Refused, match="turned away"):
        supervise([service], os.environ, tmp_path)


def test_what_a_program_started_ends_with_it(tmp_path: Path) -> None:
    code = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)']); "
    code += "open('pid', 'w').write(str(p.pid)); p.wait()"
    stop, found = threading.Event(), tmp_path / "pid"

    def look() -> None:
        if found.exists() and found.read_text():
            stop.set()

    supervise([Service("it", python(code))], os.environ, tmp_path, each_pulse=look, stop=stop)
    until(lambda: not alive(int(found.read_text())), 5, "the grandchild ends")


def test_a_listener_that_fails_does_not_block_the_program(tmp_path: Path) -> None:
    stop, done = threading.Event(), tmp_path / "done"

    def fail(line: str) -> bool:
        raise RuntimeError(line)

    def look() -> None:
        if done.exists():
            stop.set()

    code = "print('x' * 300_000); print('y'); open('done', 'w'); import time; time.sleep(99)"
    supervise([Service("it", python(code), hear=fail)], os.environ, tmp_path, each_pulse=look, stop=stop)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- a federation ----------------------------------------------------------------------------------------------


def descendants(pid: int) -> dict[int, str]:
    """Process id → command of everything below a process."""
    parents, commands = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            commands[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    family = {pid}
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    return {child: commands[child] for child in family - {pid}}


@dataclass
class Started:
    """A `coterie` command in the background, with its output in a file."""

    log: Path
    process: subprocess.Popen[bytes]
    family: dict[int, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def ask_to_end(self) -> None:
        self.family = descendants(self.process.pid)
        self.process.terminate()

    def end(self) -> None:
        """See it end, or end it by force, and all it started too."""
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pid, command in self.family.items():
            if alive(pid) and command_of(pid) == command:
                os.kill(pid, signal.SIGKILL)


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


@dataclass
class Federation:
    root: Path
    started: list[Started] = field(default_factory=list)

    @property
    def layout(self) -> Layout:
        return Layout(self.root / "fed")

    def start(self, name: str, *arguments: str) -> Started:
        log = self.root / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "cli.main", *arguments],
                env=ENVIRONMENT,
                cwd=self.root,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.started.append(Started(log, process))
        return self.started[-1]

    def named(self, name: str) -> Started:
        return next(started for started in self.started if started.log.stem == name)

    def start_site(self, kit: Path, name: str, *options: str) -> Started:
        path = kit / "site.toml"
        text = path.read_text().replace('data = ""', f'data = "{self.root / "data" / kit.name}"')
        text = text.replace('cache = ""', f'cache = "{self.root / "cache"}"')
        path.write_text(re.sub(r"port = \d+", f"port = {free_ports(1)[0]}", text))
        return self.start(name, "site", str(path), *options)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [taken.getsockname()[1] for taken in sockets]
    for taken in sockets:
        taken.close()
    return ports


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server and two sites with data of their own, running; whatever a test starts is ended."""
    root = tmp_path_factory.mktemp("federation")
    digits = load_digits()
    for site, classes in (("a", (0, 1, 2)), ("b", (1, 2, 3)), ("c", (1,))):
        for label in classes:
            folder = root / "data" / site / str(label)
            folder.mkdir(parents=True)
            for row in np.flatnonzero(digits.target == label)[:20]:
                Image.fromarray((digits.images[row] * 15).astype(np.uint8)).save(folder / f"{row}.png")
    fleet, control, health = free_ports(3)
    made = Federation(root)
    arguments = ["provision", str(root / "fed"), "--server", f"localhost:{fleet}", "--control", f"127.0.0.1:{control}"]
    assert main([*arguments, "--sites", "a,b"]) == 0
    settings = made.layout.server_file
    settings.write_text(settings.read_text().replace("127.0.0.1:9095", f"127.0.0.1:{health}"))
    (root / "run.toml").write_text(CONFIG)
    try:
        server = made.start("server", "server", str(settings))
        for name in ("a", "b"):
            made.start_site(made.layout.kit(name), name)
        until(
            lambda: "the server is up" in server.text or server.process.poll() is not None,
            PATIENCE,
            "the server starts",
        )
        assert "registered: a, b" in server.text
        yield made
    finally:
        for started in made.started:
            started.ask_to_end()
        for started in made.started:
            started.end()


def test_a_run_over_tls_with_site_keys_survives_its_superlink(federation: Federation, tmp_path: Path) -> None:
    """Two rounds, and the SuperLink is killed after the first."""
    server = federation.named("server")
    out = tmp_path / "out"
    folder = str(federation.layout.root)
    run = federation.start("run", "run", str(federation.root / "run.toml"), "--on", folder, "--out", str(out))
    metrics = out / "metrics.csv"
    until(lambda: metrics.exists() and "\n1," in metrics.read_text(), PATIENCE, "round 1")
    link = next(pid for pid, name in descendants(server.process.pid).items() if "flower-superlink" in name)
    os.kill(link, signal.SIGKILL)
    until(lambda: run.process.poll() is not None, PATIENCE, "the run ends")
    assert run.process.returncode == 0, run.text
    assert "the SuperLink ended by itself (killed by SIGKILL); starting it again" in server.text
    assert json.loads((out / "summary.json").read_text())["rounds"] == 2
    with metrics.open(newline="") as file:
        heard = {(row[0], row[2]) for row in csv.reader(file) if row[1] == "site"}
    assert {("1", "a"), ("1", "b"), ("2", "a"), ("2", "b")} <= heard
    assert (out / "report.html").exists()
    for name in ("a", "b"):
        assert f"answers; taking part as {name}" in federation.named(name).text
        # Each has its group's final model beside its start file.
        assert len(list((federation.layout.root / "sites" / name / "models").glob("run-*/model.safetensors"))) == 1


def test_a_stranger_is_turned_away_by_name(federation: Federation) -> None:
    """Someone with the right CA certificate, but a key that nobody registered."""
    layout = federation.layout
    kit = federation.root / "stranger" / "c"
    kit.mkdir(parents=True)
    (kit / "ca.crt").write_bytes(layout.authority.read_bytes())
    key = authority.new_key()
    authority.create_file(kit / "site.key", authority.private_openssh(key), 0o600)
    text = (layout.kit("a") / "site.toml").read_text().replace('site = "a"', 'site = "c"')
    (kit / "site.toml").write_text(text.replace("/data/a", "/data/c"))
    server = federation.named("server")
    stranger = federation.start_site(kit, "stranger", "--cold")
    shown = authority.fingerprint(key.public_key())
    until(lambda: f"does not let in site c with the key {shown}" in stranger.text, PATIENCE, "the stranger is told")
    assert f"a site was turned away: nobody here has its key ({shown})" in server.text
    # The coordinator takes the site in, and it gets in without being started again.
    authority.create_file(layout.public_key("c"), authority.public_openssh(key.public_key(), "c"))
    until(lambda: "registered: c" in server.text, PATIENCE, "the server sees the new key")
    until(lambda: "SuperNode ID:" in stranger.text, PATIENCE, "the site gets in")


def test_registering_again_registers_nothing(federation: Federation) -> None:
    layout = federation.layout
    settings = read_start_file(layout.server_file, ServerFile)
    control = parse_address(settings.control, CONTROL_PORT)
    keys = {path.stem: path for path in (layout.server / "keys").glob("*.pub")}
    assert register_sites(control, layout.authority, keys) == []


def test_a_site_that_was_shut_out_stays_out(federation: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    layout = federation.layout
    folder = str(layout.root)
    assert main(["provision", folder, "--sites", "d"]) == 0
    # By this command or by the running server, whoever was first.
    assert "The server is not running" not in capsys.readouterr().out
    key = layout.public_key("d").read_bytes()
    assert main(["provision", folder, "--remove", "d"]) == 0
    assert not layout.public_key("d").exists()
    # Somebody puts the key back: it is not registered again.
    layout.public_key("d").write_bytes(key)
    control = parse_address(read_start_file(layout.server_file, ServerFile).control, CONTROL_PORT)
    assert register_sites(control, layout.authority, {"d": layout.public_key("d")}) == []
    layout.public_key("d").unlink()
    assert main(["provision", folder, "--remove", "nobody"]) == 2
    assert "cannot read the public key" in capsys.readouterr().err


def test_everything_ends_on_sigterm(federation: Federation) -> None:
    running = [started for started in federation.started if started.process.poll() is None]
    assert len(running) >= 3
    for started in running:
        started.ask_to_end()
    assert all(started.family for started in running)
    for started in running:
        assert started.process.wait(PATIENCE) == 0, started.text[-2000:]
    left = {pid: name for started in running for pid, name in started.family.items() if alive(pid)}
    assert not left
