"""A federation of real processes on the loopback: TLS, site keys, the supervisor, and who is turned away."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.deployment import authority, supervisor
from cli.deployment.address import CONTROL_PORT, parse_address
from cli.deployment.operator_secret import read_secret
from cli.deployment.registration import register_sites
from cli.deployment.start_file import ServerFile, read_start_file
from cli.deployment.supervisor import Refused, Service, supervise
from cli.main import main
from server.flower.control import connected
from tests.support.federation import PATIENCE, Federation, alive, ended, until, write_digits

# --- the supervisor --------------------------------------------------------------------------------------------


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


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


def test_what_a_program_started_may_finish_its_words(tmp_path: Path) -> None:
    last = "import pathlib, signal, time; signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), "
    last += "pathlib.Path('said').touch(), exit())); pathlib.Path('ready').touch(); time.sleep(99)"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {last!r}]).wait()"
    stop = threading.Event()

    def look() -> None:
        if (tmp_path / "ready").exists():
            stop.set()

    supervise([Service("it", python(code))], os.environ, tmp_path, each_pulse=look, stop=stop)
    assert (tmp_path / "said").exists()


def test_a_listener_that_fails_does_not_block_the_program(tmp_path: Path) -> None:
    stop, done = threading.Event(), tmp_path / "done"

    def fail(line: str) -> bool:
        raise RuntimeError(line)

    def look() -> None:
        if done.exists():
            stop.set()

    code = "print('x' * 300_000); print('y'); open('done', 'w'); import time; time.sleep(99)"
    supervise([Service("it", python(code), hear=fail)], os.environ, tmp_path, each_pulse=look, stop=stop)


# --- a federation ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server and a site, running; whatever a test starts is ended. Whole runs are in `test_faults.py`."""
    root = tmp_path_factory.mktemp("federation")
    for site in ("a", "c"):
        write_digits(root / "data" / site, (0, 1))
    with ended(Federation(root)) as made:
        made.provision(["a"])
        server = made.start_server()
        made.start_site(made.layout.kit("a"))
        assert "registered: a" in server.text
        yield made


@pytest.mark.federation
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
    server = federation.started["server"]
    stranger = federation.start_site(kit, "stranger", "--cold", "--set", "foreign_code=any")
    shown = authority.fingerprint(key.public_key())
    until(lambda: f"does not let in site c with the key {shown}" in stranger.text, PATIENCE, "the stranger is told")
    assert f"a site was turned away: nobody here has its key ({shown})" in server.text
    # The coordinator takes the site in, and it gets in without being started again.
    authority.create_file(layout.public_key("c"), authority.public_openssh(key.public_key(), "c"))
    until(lambda: "registered: c" in server.text, PATIENCE, "the server sees the new key")
    until(lambda: "SuperNode ID:" in stranger.text, PATIENCE, "the site gets in")


@pytest.mark.federation
def test_registering_again_registers_nothing(federation: Federation) -> None:
    layout = federation.layout
    settings = read_start_file(layout.server_file, ServerFile)
    control = parse_address(settings.control, CONTROL_PORT)
    keys = {path.stem: path for path in (layout.server / "keys").glob("*.pub")}
    assert register_sites(control, layout.authority, read_secret(layout.operator_secret), keys) == []


@pytest.mark.federation
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
    assert (
        register_sites(control, layout.authority, read_secret(layout.operator_secret), {"d": layout.public_key("d")})
        == []
    )
    layout.public_key("d").unlink()
    # The site itself is back under its name, with a key that nobody has stolen.
    shutil.rmtree(layout.kit("d"))
    assert main(["provision", folder, "--sites", "d"]) == 0
    assert layout.public_key("d").read_bytes() != key
    with connected(str(control), layout.authority, read_secret(layout.operator_secret)) as superlink:
        assert sorted(site.is_out for site in superlink.sites().values() if site.name == "d") == [False, True]
    assert main(["provision", folder, "--remove", "nobody"]) == 2
    assert "cannot read the public key" in capsys.readouterr().err


@pytest.mark.federation
def test_everything_ends_on_sigterm(federation: Federation) -> None:
    until(lambda: "taking part as a" in federation.started["a"].text, PATIENCE, "site a takes part")
    running = [started for started in federation.started.values() if started.process.poll() is None]
    assert len(running) >= 3
    for started in running:
        started.ask_to_end()
    assert all(started.family for started in running)
    for started in running:
        assert started.process.wait(PATIENCE) == 0, started.text[-2000:]
    left = {pid: name for started in running for pid, name in started.family.items() if alive(pid)}
    assert not left
