"""A site answers with 64 MB where 1 MB is allowed: it alone pays for it."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from server.history.events import ReplyAccepted, SiteLeftOut
from tests.support.federation import PATIENCE, Federation, changed_project, ended, events_of, until, write_digits

pytestmark = pytest.mark.federation

CONFIG = """
method = "fedavg"
sites = 2
rounds = 2
[data]
source = "folder"
classes = ["0", "1"]
image_size = 8
channels = 1
[train]
model = "lenet5"
[round]
max_message_mb = 1
"""

GREEDY = """
import numpy as np
from common import wire
_own = reply
def reply(message, context, answer):
    made = _own(message, context, answer)
    if message.metadata.message_type == "train":
        rows = np.frombuffer(np.random.default_rng().bytes(64_000_000), np.float32)
        made.content["model"] = wire.pack_arrays({"w": rows})
    return made
"""


def peak(pid: int) -> float:
    """Most memory that a process ever had, in MB; 0 if it is gone."""
    with suppress(OSError):
        if found := re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text()):
            return int(found[1]) / 1000
    return 0.0


def test_a_greedy_site_costs_the_server_nothing(tmp_path: Path) -> None:
    for site in "ab":
        write_digits(tmp_path / "data" / site, (0, 1), count=40)
    (tmp_path / "run.toml").write_text(CONFIG)
    with ended(Federation(tmp_path)) as made:
        made.provision("ab")
        server = made.start_server()
        made.start_site(made.layout.kit("a"))
        greedy = replace(made, project=changed_project(tmp_path / "greedy", "misbehaviour", GREEDY))
        greedy.start_site(made.layout.kit("b"))
        run = made.start_run(tmp_path / "run.toml", tmp_path / "out")
        folder = made.layout.root
        peaks: dict[str, list[float]] = {"serverapp": [0.0], "superlink": [0.0], "state.db": [0.0]}

        def size() -> float:
            return sum(file.stat().st_size for file in folder.rglob("state.db*")) / 1e6

        def over() -> bool:
            for name in ("serverapp", "superlink"):
                peaks[name] += [peak(pid) for pid in server.below(name)]
            peaks["state.db"].append(size())
            return run.process.poll() is not None

        until(over, PATIENCE, "the run ends")
        assert run.process.returncode == 0, run.text[-3000:]
        most = {name: max(seen) for name, seen in peaks.items()}
        print(most)
        left = events_of(tmp_path / "out", SiteLeftOut, stage="train")
        assert {entry.event.site for entry in left} == {"b"}  # type: ignore[attr-defined]
        assert len(left) == 2
        for entry in left:
            assert "its answer is larger than 1 MB (round.max_message_mb)" in entry.event.reason  # type: ignore[attr-defined]
        assert len(events_of(tmp_path / "out", ReplyAccepted, stage="train", site="a")) == 2
        assert "Refused site b: its answer is larger than 1 MB" in server.text
        assert "larger than 1 MB" in made.started["b"].text
        assert most["state.db"] < 60, most
        until(lambda: size() < 6.0, PATIENCE, "the database is cleaned")
