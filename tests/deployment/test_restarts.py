"""What real sites remember outlives their processes: SCAFFOLD's variates and Ditto's models after a restart."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from server.history.events import MemoryLost, ReplyAccepted, RoundTrained, RunEnded, RunResumed
from tests.support.federation import PATIENCE, Federation, ended, events_of, until, write_digits

pytestmark = pytest.mark.federation

ROUNDS = 10
CONFIG = """
rounds = 10
sites = 2
[data]
source = "folder"
classes = ["0", "1", "2", "3"]
image_size = 8
channels = 1
[train]
model = "lenet5"
lr = 0.05
[round]
start_timeout = 120.0
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    root = tmp_path_factory.mktemp("restarts")
    write_digits(root / "data" / "a", (0, 1, 2))
    write_digits(root / "data" / "b", (1, 2, 3), first=20)
    (root / "run.toml").write_text(CONFIG)
    with ended(Federation(root)) as made:
        made.provision("ab")
        made.start_server()
        for site in "ab":
            made.start_site(made.layout.kit(site))
        yield made


def memories(federation: Federation, site: str) -> dict[int, Path]:
    """The versions that a site has on its disk, by round."""
    paths = (federation.layout.kit(site) / "memory").rglob("round-*.safetensors")
    return {int(path.stem.removeprefix("round-")): path for path in paths}


@pytest.mark.parametrize("method", ["scaffold", "ditto"])
def test_a_restarted_site_goes_on_with_what_it_remembers(federation: Federation, method: str) -> None:
    """The run is killed after some rounds, and both sites are started anew. One finds its memory again, and the other,
    from whom it was taken, says so."""
    out = federation.root / method
    for site in "ab":
        shutil.rmtree(federation.layout.kit(site) / "memory", ignore_errors=True)
    run = federation.start_run(federation.root / "run.toml", out, "--set", f"method={method}")
    until(lambda: events_of(out, RoundTrained, round_number=2), PATIENCE, f"two rounds: {run.text[-2000:]}")
    for pid in federation.started["server"].below("flwr-serverapp"):
        os.kill(pid, signal.SIGKILL)
    until(lambda: run.process.poll() is not None, PATIENCE, "the command ends")
    assert not events_of(out, RunEnded), "the run was over before it was killed"
    # In good order: who is killed stays among the connected until Flower misses it, and the run would not wait.
    for site in "ab":
        federation.started[site].ask_to_end()
        federation.started[site].end()
    assert memories(federation, "a")
    shutil.rmtree(federation.layout.kit("b") / "memory")
    for site in "ab":
        calls = federation.started[site].text.count("SuperNode ID:")
        anew = federation.start_site(federation.layout.kit(site))
        until(lambda: anew.text.count("SuperNode ID:") > calls, PATIENCE, f"site {site} gets in again")  # noqa: B023
    again = federation.start_run(federation.root / "run.toml", out, "--set", f"method={method}", "--resume")
    until(lambda: again.process.poll() is not None, 2 * PATIENCE, "the resumed run ends")
    assert events_of(out, RunEnded, outcome="finished"), again.text[-3000:]
    (resumed,) = events_of(out, RunResumed)
    done = resumed.event.round_number
    assert done >= 2
    # Told once: from then on it remembers again.
    assert {entry.event.site for entry in events_of(out, MemoryLost)} == {"b"}
    assert len(events_of(out, MemoryLost)) == 1
    for site in "ab":
        after = [e.event.round_number for e in events_of(out, ReplyAccepted, stage="train", site=site)]
        assert ROUNDS in after
        assert ROUNDS in memories(federation, site)
    newest = load_file(memories(federation, "a")[ROUNDS])
    assert "head.weight" in newest
