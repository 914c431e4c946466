"""Everything that may go wrong in a deployment, in one run: real processes, TLS, site keys, gRPC on loopback.

Four sites train for a while; in each round something is broken, and it is noted who was named, why, and after how many
seconds. `tests/deployment/test_faults.py` checks the outcome, `python -m benchmarks.faults` prints it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cli.deployment import authority
from server.history.event_log import Logged
from server.history.events import (
    CheckpointFailed,
    Event,
    GroupsFormed,
    ReplyAccepted,
    RoundTrained,
    RunEnded,
    RunResumed,
    SiteLeftOut,
    SitePlaced,
    StageStarted,
)
from tests.support.federation import (
    PATIENCE,
    Federation,
    Started,
    changed_project,
    ended,
    events_of,
    until,
    write_digits,
)

OUTCOMES = "outcomes.json"
ROUNDS = 15
# In the run in which a site is too slow; in the other one nobody is.
SHORT_DEADLINE, LONG_DEADLINE = 20.0, 300.0
# Two kinds of sites that share a class; without any, two groups are no more likely than others.
SITES = {"a": (0, 1, 2), "b": (0, 1, 2), "c": (2, 3, 4), "d": (2, 3, 4), "late": (2, 3, 4)}
CONFIG = """
sites = 4
[data]
source = "folder"
classes = ["0", "1", "2", "3", "4"]
image_size = 8
channels = 1
[encoder]
name = "random:resnet10t"
image_size = 32
[train]
model = "lenet5"
lr = 0.05
[cluster]
k = 2
[round]
start_timeout = 120.0
max_message_mb = 1
"""


WRONG_ANSWERS = {
    "raise": "a site's app raises",
    "die": "a task's process dies",
    "nan": "NaN in an update",
    "shape": "an update of another shape",
    "oversized": "a reply over the size limit",
    "truncated": "a truncated array",
    "version": "another version of the messages",
}


@dataclass(frozen=True)
class Outcome:
    """What came of a fault: who was named, in which words, and how many seconds after it was made."""

    fault: str
    named: str
    said: str
    seconds: float


@dataclass
class Stage:
    """The federation while things go wrong in it."""

    federation: Federation
    root: Path
    out: Path
    disk: Path | None
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    @property
    def run(self) -> Started:
        return self.federation.started["run"]

    def events(self, kind: type[Event], **match: object) -> list[Logged]:
        return events_of(self.out, kind, **match)

    def wait(self, kind: type[Event], **match: object) -> Logged:
        """The first event of a kind, as soon as it is there."""

        def found() -> list[Logged]:
            ended = self.run.process.poll() is not None
            events = self.events(kind, **match)
            assert events or not ended, f"the run ended before {kind.__name__} {match}: {self.run.text[-3000:]}"
            return events

        return until(found, LONG_DEADLINE, f"{kind.__name__} {match}")[0]

    def training(self, round_number: int) -> float:
        """Wait until the training of a round has begun; return when that was."""
        return float(self.wait(StageStarted, stage="train", round_number=round_number).time)

    def in_training(self, round_number: int, *sites: str) -> None:
        """Wait until sites are in the middle of the training of a round."""
        for site in sites:
            mark = self.root / "orders" / f"{site}.waits"

            def waits(mark: Path = mark) -> bool:
                return mark.exists() and mark.read_text() == str(round_number)

            until(waits, PATIENCE, f"site {site} trains in round {round_number}")

    def allow(self, round_number: int) -> None:
        """Let the sites get on with the training of a round, for which they have been waiting."""
        order = self.root / "orders" / ".limit"
        order.write_text(str(round_number))
        order.replace(self.root / "orders" / "limit")

    def order(self, site: str, kind: str) -> None:
        """Tell a site what to do wrong in its next training."""
        (self.root / "orders" / site).write_text(kind)

    def note(self, fault: str, named: str, said: str, since: float, at: float) -> None:
        self.outcomes[fault] = Outcome(fault, named, said, at - since)

    def left_out(self, fault: str, site: str, round_number: int, since: float) -> None:
        """Note when a site was left out of a round's training, and why."""
        event = self.wait(SiteLeftOut, stage="train", round_number=round_number, site=site)
        assert isinstance(event.event, SiteLeftOut)
        self.note(fault, event.event.site, event.event.reason, since, event.time)


def stage_faults(root: Path) -> Stage:
    """Stage all faults in a new folder; return what came of them. Takes a few minutes."""
    for number, (site, classes) in enumerate(SITES.items()):
        write_digits(root / "data" / site, classes, first=20 * number)
    (root / "orders").mkdir()
    (root / "run.toml").write_text(CONFIG)
    addition = "\nfrom client import misbehaviour\n\nreply = misbehaviour.around(reply)\n"
    project = changed_project(root / "project", "misbehaviour", addition)
    federation = Federation(root, project, {"MISBEHAVIOUR": str(root / "orders")})
    with small_disk(root / "disk") as disk, ended(federation):
        federation.provision("abcd")
        federation.start_server()
        for site in "abcd":
            federation.start_site(federation.layout.kit(site))
        stage = Stage(federation, root, root / "first", disk)
        _deadline(stage)
        stage.out = (disk or root) / "second"
        _start(stage)
        for act in (_wrong_answers, _strangers, _full_disk, _power_cut, _superlink, _server_app, _leaving):
            act(stage)
        stage.wait(RunEnded)
        until(lambda: stage.run.process.poll() is not None, PATIENCE, "the command ends")
        shutil.copytree(stage.out, root / "kept")
        stage.out = root / "kept"
        (root / OUTCOMES).write_text(json.dumps([asdict(outcome) for outcome in stage.outcomes.values()], indent=1))
        return stage


def _start(stage: Stage, *options: str, rounds: int = ROUNDS, deadline: float = LONG_DEADLINE) -> None:
    settings = [
        "--set",
        "train.prior=off",
        "--set",
        f"rounds={rounds}",
        "--set",
        f"round.deadline={deadline}",
        *options,
    ]
    stage.federation.start_run(stage.root / "run.toml", stage.out, *settings)


def _deadline(stage: Stage) -> None:
    """A run of its own, with a short deadline."""
    stage.allow(2)
    _start(stage, rounds=2, deadline=SHORT_DEADLINE)
    stage.wait(GroupsFormed)
    stage.order("d", f"sleep {SHORT_DEADLINE + 5}")
    stage.left_out("a site is slower than the deadline (20 s)", "d", 1, stage.training(1))
    stage.wait(RunEnded, outcome="finished")
    until(lambda: stage.run.process.poll() is not None, PATIENCE, "the command ends")
    stage.allow(0)


def _wrong_answers(stage: Stage) -> None:
    """Rounds 1 to 4."""
    orders = {
        1: {"a": "raise", "c": "die"},
        2: {"b": "nan", "d": "shape"},
        3: {"a": "oversized", "c": "truncated"},
        4: {"b": "version"},
    }
    for round_number, kinds in orders.items():
        stage.training(round_number)
        for site, kind in kinds.items():
            stage.order(site, kind)
        began = time.time()
        stage.allow(round_number)
        for site, kind in kinds.items():
            stage.left_out(WRONG_ANSWERS[kind], site, round_number, began)


def _strangers(stage: Stage) -> None:
    """Round 5: somebody calls whose key nobody registered. Round 6: a new site has joined."""
    stage.training(5)
    federation = stage.federation
    kit = stage.root / "stranger" / "a"
    kit.mkdir(parents=True)
    (kit / "ca.crt").write_bytes(federation.layout.authority.read_bytes())
    key = authority.new_key()
    authority.create_file(kit / "site.key", authority.private_openssh(key), 0o600)
    (kit / "site.toml").write_text((federation.layout.kit("a") / "site.toml").read_text())
    began = time.time()
    stranger = federation.start_site(kit, "stranger", "--cold", "--set", "foreign_code=any")
    shown = authority.fingerprint(key.public_key())
    told = f"a site was turned away: nobody here has its key ({shown})"
    until(lambda: told in federation.started["server"].text, PATIENCE, "the stranger is turned away")
    stage.note(
        "an unregistered key calls", shown, "a site was turned away: nobody here has its key", began, time.time()
    )
    stranger.kill()
    began = time.time()
    federation.start("provision", "provision", str(federation.layout.root), "--sites", "late").end()
    late = federation.start_site(federation.layout.kit("late"))
    until(lambda: "SuperNode ID:" in late.text, PATIENCE, "the late site gets in")
    stage.allow(6)
    placed = stage.wait(SitePlaced, site="late")
    assert isinstance(placed.event, SitePlaced)
    said = f"joins group {placed.event.group}, confidence {placed.event.confidence:.2f}"
    stage.note("a site joins late", "late", said, began, placed.time)


def _full_disk(stage: Stage) -> None:
    """Round 7: there is no room for the checkpoint; later there is."""
    began = stage.training(7)
    if stage.disk is not None:
        space = os.statvfs(stage.disk)
        (stage.disk / "filler").write_bytes(bytes(max(space.f_bavail * space.f_frsize - (1 << 16), 0)))
        began = time.time()
    stage.allow(7)
    if stage.disk is not None:
        event = stage.wait(CheckpointFailed, round_number=7)
        stage.note("the disk is full at a checkpoint", "round 7", event.event.reason, began, event.time)
        (stage.disk / "filler").unlink()


def _power_cut(stage: Stage) -> None:
    """Round 8: a site is killed in the middle of its training, and started again. Round 10: it trains again."""
    stage.training(8)
    stage.in_training(8, "a")
    began = time.time()
    stage.federation.started["a"].kill()
    calls = stage.federation.started["a"].text.count("SuperNode ID:")
    again = stage.federation.start_site(stage.federation.layout.kit("a"))
    stage.allow(8)
    stage.left_out("a site is killed in mid-round", "a", 8, began)
    stage.training(9)
    until(lambda: again.text.count("SuperNode ID:") > calls, PATIENCE, "the site gets in again")
    stage.allow(10)
    reply = stage.wait(ReplyAccepted, stage="train", round_number=10, site="a")
    stage.note("… and is started again at once", "a", "takes part again", began, reply.time)


def _superlink(stage: Stage) -> None:
    """Round 11: the SuperLink is killed while sites train."""
    stage.training(11)
    stage.in_training(11, "a", "b")
    (link,) = stage.federation.started["server"].below("cli.deployment.superlink")
    began = time.time()
    os.kill(link, signal.SIGKILL)
    stage.allow(11)
    trained = stage.wait(RoundTrained, round_number=11)
    heard = {entry.event.site for entry in stage.events(ReplyAccepted, stage="train", round_number=11)}
    said = f"started again; round 11 is finished by {len(heard)} of 5 sites"
    stage.note("the SuperLink is killed", "the server's log", said, began, trained.time)


def _server_app(stage: Stage) -> None:
    """Round 12: the process of the run is killed, and the run resumed."""
    stage.training(12)
    began = time.time()
    for pid in stage.federation.started["server"].below("flwr-serverapp"):
        os.kill(pid, signal.SIGKILL)
    stage.allow(12)
    until(lambda: stage.run.process.poll() is not None, PATIENCE, "`coterie run` tells that the run is over")
    stage.note("the ServerApp is killed", "the run", stage.run.text.strip().splitlines()[-1], began, time.time())
    began = time.time()
    _start(stage, "--resume")
    resumed = stage.wait(RunResumed)
    assert isinstance(resumed.event, RunResumed)
    said = f"goes on after round {resumed.event.round_number}"
    stage.note("… and the run is resumed", "the run", said, began, stage.wait(RoundTrained, round_number=12).time)


def _leaving(stage: Stage) -> None:
    """Round 13: a site ends in good order and does not come back."""
    stage.training(13)
    stage.in_training(13, "d")
    began = time.time()
    stage.federation.started["d"].ask_to_end()
    stage.federation.started["d"].end()
    stage.allow(ROUNDS)
    stage.left_out("a site leaves for good", "d", 13, began)


@contextmanager
def small_disk(path: Path) -> Iterator[Path | None]:
    """A disk of 8 MB that can be filled; None where this user may mount none."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        yield None
        return
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
