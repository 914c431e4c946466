"""It keeps running: over IPv6, with a certificate renewed in mid-run, and after kills that nobody could handle."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from cli.deployment import authority
from cli.main import main
from server.history.events import RoundTrained, RunEnded, SiteLeftOut
from tests.support.federation import PATIENCE, Federation, alive, ended, events_of, free_ports, until, write_digits

pytestmark = pytest.mark.federation

CONFIG = """
method = "fedavg"
rounds = 3
sites = 2
[data]
source = "folder"
classes = ["0", "1"]
image_size = 8
channels = 1
[encoder]
name = "random:resnet10t"
image_size = 32
[train]
model = "mlp"
[round]
start_timeout = 120.0
"""


def test_a_run_over_ip6_while_the_certificate_is_renewed_and_the_server_is_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for site in "ab":
        write_digits(tmp_path / "data" / site, (0, 1))
    (tmp_path / "run.toml").write_text(CONFIG)
    # A proxy that nobody answers at: nothing of this machine goes through it.
    with ended(Federation(tmp_path, variables={"HTTPS_PROXY": "http://127.0.0.1:9"})) as federation:
        layout = federation.layout
        fleet, control, health = free_ports(3)
        told = ["--server", f"[::1]:{fleet}", "--control", f"[::1]:{control}", "--sites", "a,b"]
        assert main(["provision", str(layout.root), *told]) == 0
        text = layout.server_file.read_text()
        assert f'listen = "[::1]:{fleet}"' in text
        layout.server_file.write_text(text.replace("127.0.0.1:9095", f"[::1]:{health}"))
        server = federation.start_server()
        sites = federation.start("sites", "site", *(str(federation.prepare_site(layout.kit(name))) for name in "ab"))
        run = federation.start_run(tmp_path / "run.toml", layout.root / "runs" / "one", "--set", "rounds=200")
        out = layout.root / "runs" / "one"
        until(lambda: events_of(out, RoundTrained), PATIENCE, "a round")
        before = authority.read_certificate(layout.server / "server.crt").serial_number
        assert main(["provision", str(layout.root), "--renew"]) == 0
        assert authority.read_certificate(layout.server / "server.crt").serial_number != before
        until(lambda: "new connections are shown it" in server.text, PATIENCE, "the server takes it")
        done = len(events_of(out, RoundTrained))
        until(lambda: len(events_of(out, RoundTrained)) > done, PATIENCE, "the run goes on")
        assert not events_of(out, SiteLeftOut)
        # A second process in the same directory is told who is there.
        data = f"data.path={tmp_path / 'data' / 'a'}"
        second = federation.start("second", "simulate", "run.toml", "--resume", "--out", str(out), "--set", data)
        until(lambda: second.process.poll() is not None, PATIENCE, "it is refused")
        assert f"out = {out} is in use by process" in second.text
        # The server is stopped in order: the run says what became of it.
        server.ask_to_end()
        server.end()
        assert json.loads((out / "run.json").read_text())["outcome"] == "interrupted"
        assert events_of(out, RunEnded, outcome="interrupted")
        os.kill(run.process.pid, signal.SIGTERM)
        # A site that is killed takes its programs along, and is back without a word of ports.
        programs = [*sites.below("cli.deployment.supernode"), *sites.below("client.executor")]
        assert len(programs) >= 3
        sites.process.kill()
        sites.process.wait()
        until(lambda: not any(map(alive, programs)), 60, "its programs end")
        # The server finds the run that a power cut left behind.
        (out / "run.json").write_text(json.dumps(json.loads((out / "run.json").read_text()) | {"outcome": "running"}))
        again = federation.start("server", "server", str(layout.server_file))
        until(lambda: f"--resume --out {out}` goes on with it" in again.text, PATIENCE, "the run is named")
        assert json.loads((out / "run.json").read_text())["outcome"] == "interrupted"
