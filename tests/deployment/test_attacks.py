"""What somebody with a place in a real federation tries: foreign code, another's name, the operator's port."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cli.deployment.address import CONTROL_PORT, parse_address
from cli.deployment.operator_secret import read_secret
from cli.deployment.start_file import ServerFile, read_start_file
from cli.deployment.supervisor import flower_environment, program
from cli.main import main
from server.flower.control import SuperLinkRefuses, connected
from server.history.events import ReplyAccepted, SiteLeftOut
from tests.support.federation import PATIENCE, Federation, changed_project, ended, events_of, until, write_digits

pytestmark = pytest.mark.federation

CONFIG = """
method = "fedavg"
sites = 2
rounds = 1
[data]
source = "folder"
classes = ["0", "1"]
image_size = 8
channels = 1
[train]
model = "lenet5"
"""

# Of the same id and version; it takes the site's key along, as the coordinator's code could.
FOREIGN = """
import os, pathlib
_own = reply
def reply(message, context, answer):
    key = pathlib.Path(context.node_config["memory"]).parent / "site.key"
    pathlib.Path(os.environ["LOOT"]).write_bytes(key.read_bytes())
    return _own(message, context, answer)
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A run of foreign code with two sites; b calls itself a2, a name that nobody registered its key under."""
    root = tmp_path_factory.mktemp("attacks")
    for site in ("a", "b"):
        write_digits(root / "data" / site, (0, 1), count=40)
    (root / "run.toml").write_text(CONFIG)
    with ended(Federation(root, variables={"LOOT": str(root / "loot")})) as made:
        made.provision(["a", "b"])
        made.start_server()
        impostor = made.layout.kit("b") / "site.toml"
        impostor.write_text(impostor.read_text().replace('site = "b"', 'site = "a"'))
        for site in ("a", "b"):
            made.start_site(made.layout.kit(site))
        foreign = replace(made, project=changed_project(root / "foreign", "misbehaviour", FOREIGN))
        run = foreign.start_run(root / "run.toml", root / "out")
        until(lambda: run.process.poll() is not None, PATIENCE, "the run ends")
        assert run.process.returncode == 0, run.text[-3000:]
        yield made


def test_a_site_runs_its_own_code_whatever_the_coordinator_ships(federation: Federation) -> None:
    assert not (federation.root / "loot").exists(), "the coordinator's code ran at a site, and took its key"
    assert events_of(federation.root / "out", ReplyAccepted, stage="train", site="a")
    assert not list((federation.layout.kit("a") / ".flwr").rglob("app.py")), "the bundle was unpacked"


def test_a_site_cannot_take_the_name_of_another(federation: Federation) -> None:
    (left,) = events_of(federation.root / "out", SiteLeftOut)
    assert left.event.site == "b"  # type: ignore[attr-defined]
    assert left.event.reason == "calls itself 'a', but its key is registered as 'b'"  # type: ignore[attr-defined]
    assert not list((federation.layout.kit("b") / "models").glob("run-*")), "it got the other's model"


def test_the_run_directory_is_its_owners(federation: Federation) -> None:
    assert stat.S_IMODE((federation.root / "out").stat().st_mode) == 0o700


def test_the_operators_port_answers_nobody_without_the_secret(federation: Federation) -> None:
    layout = federation.layout
    address = str(parse_address(read_start_file(layout.server_file, ServerFile).control, CONTROL_PORT))
    for secret in ("", "0" * 64):
        with connected(address, layout.authority, secret) as stranger, pytest.raises(SuperLinkRefuses, match="401"):
            stranger.sites()
    with connected(address, layout.authority, read_secret(layout.operator_secret)) as operator:
        assert len(operator.sites()) == 2
    # As another account of the machine would do it: with Flower's own program, and all that is no secret.
    home = federation.root / "stranger"
    home.mkdir()
    for name in ("config.toml", "ca.crt"):
        (home / name).write_bytes((layout.operator / name).read_bytes())
    for folder, allowed in ((layout.operator, True), (home, False)):
        environment = flower_environment(folder) | {"FLWR_HOME": str(folder)}
        done = subprocess.run(
            [program("flwr"), "ls", "coterie"], check=False, env=environment, capture_output=True, text=True, timeout=99
        )  # fmt: skip
        assert (done.returncode == 0) is allowed, done.stdout + done.stderr
    assert os.stat(layout.operator_secret).st_mode & 0o077 == 0


def test_the_ledger_tells_what_left(federation: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    kit: Path = federation.layout.kit("a")
    assert main(["site", "ledger", str(kit / "site.toml")]) == 0
    said = capsys.readouterr().out
    for part in ("asked    query.hello", "asked    train (round 1)", "all lines follow on each other", "sent"):
        assert part in said
    assert stat.S_IMODE((kit / "ledger.jsonl").stat().st_mode) == 0o600
