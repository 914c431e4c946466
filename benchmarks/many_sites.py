"""A hundred SuperNodes on this machine: `python -m benchmarks.many_sites [--sites 100] [--rounds 3] [--model lenet5]`.

TLS and site keys, LeNet5 on the digits, FMCL, one executor, as in `benchmarks.deployment`. Only how the SuperNodes are
started is another: one process that has imported what they need forks them, so that a hundred fit into memory and are
there within seconds. What each of them does is what `coterie site` starts.

Says how long a round takes, and whether any message got lost: whether every site's answer is in every round.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from benchmarks.deployment import CONFIG, share_of_digits
from benchmarks.measured import Meter, cpu_seconds
from cli.deployment.site_start import as_node_config, supernode_command
from cli.deployment.start_file import SiteFile, read_start_file
from cli.deployment.supervisor import flower_environment, new_secret
from server.history.events import GroupsFormed, ReplyAccepted, RoundFinished, StageStarted
from tests.support.federation import ROOT, Federation, ended, events_of, until

_LONGEST = 3600.0


def main() -> int:
    """Measure and print a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="lenet5")
    options = parser.parse_args()
    names = [f"site-{number:03d}" for number in range(options.sites)]
    nodes: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="coterie-deployment-") as folder, ended(Federation(Path(folder))) as fed:
        try:
            _measure(fed, names, options.rounds, options.model, nodes)
        finally:
            for pid in nodes:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    return 0


def _measure(federation: Federation, names: list[str], rounds: int, model: str, nodes: list[int]) -> None:
    root = federation.root
    (root / "run.toml").write_text(CONFIG.format(model=model))
    federation.provision(names)
    server = federation.start_server()
    secret, bell = new_secret(root), root / "bell"
    executor = [sys.executable, "-m", "client.executor", "--insecure", "--bell", str(bell)]
    executor += ["--superexec-auth-secret-file", str(secret)]
    fork = _nursery(flower_environment(root / "flwr"))
    for number, name in enumerate(names):
        path = share_of_digits(federation, name, number, len(names))
        settings = read_start_file(path, SiteFile, {})
        config = root / f"{name}.toml"
        config.write_text(as_node_config(path, settings))
        command = supernode_command(path, settings, config, bell, insecure=False)
        words = [*command[command.index("cli.deployment.supernode") :], "--isolation", "process"]
        nodes.append(fork([*words, "--superexec-auth-secret-file", str(secret)], root / f"{name}.log"))
        executor += ["--supernode", f"127.0.0.1:{settings.port}"]
    meter = Meter(os.getpid())
    environment = flower_environment(root / "flwr") | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with (root / "executor.log").open("wb") as log:
        serving = subprocess.Popen(executor, cwd=root, env={**os.environ, **environment}, stdout=log, stderr=log)
    try:
        out = root / "out"
        run = federation.start_run(root / "run.toml", out, "--set", f"rounds={rounds}")
        until(lambda: events_of(out, StageStarted, stage="train") or run.process.poll(), _LONGEST, "training")
        before = cpu_seconds(server.process.pid, os.getpid())
        until(lambda: run.process.poll() is not None, _LONGEST, "the end")
        after = cpu_seconds(server.process.pid, os.getpid())
        if run.process.returncode:
            raise SystemExit(run.text[-3000:])
    finally:
        serving.terminate()
        serving.wait()
    begun = [entry.time for entry in events_of(out, StageStarted, stage="train")]
    (last,) = [entry.time for entry in events_of(out, RoundFinished, round_number=rounds)]
    (asked,), (formed,) = events_of(out, StageStarted, stage="enrol"), events_of(out, GroupsFormed)
    seconds = [after - before for before, after in pairwise([*begun, last])]
    said = [entry.event for entry in events_of(out, ReplyAccepted, stage="train")]
    training = sum(event.seconds for event in said if isinstance(event, ReplyAccepted)) / rounds
    cpu = ", ".join(f"{name} {(after[name] - before.get(name, 0.0)) / rounds:.1f}" for name in after)
    each = ", ".join(f"{one:.1f}" for one in seconds)
    print(f"{len(names)} sites, {model}, {os.cpu_count()} cores: signatures {formed.time - asked.time:.1f} s")
    print(f"a round {statistics.median(seconds):.1f} s ({each}); CPU seconds a round: {cpu}")
    print(f"at work for {training:.1f} s, all sites together; {len(said)} of {len(names) * rounds} answers")
    print(f"{meter.stop() / 1000:.1f} GB, with the server")


def _nursery(environment: dict[str, str]) -> Callable[[list[str], Path], int]:
    """Import what a SuperNode needs, and return what forks one: words of its command, and where its log goes."""
    os.environ.update(environment)
    from flwr.supernode.cli import flower_supernode  # noqa: F401

    from cli.deployment import supernode
    from client.flower import supernode as ours

    assert ours

    def fork(words: list[str], log: Path) -> int:
        if pid := os.fork():
            return pid
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.setsid()
            output = os.open(log, os.O_WRONLY | os.O_CREAT)
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.argv = words
            supernode.main()
        finally:
            os._exit(1)

    return fork


if __name__ == "__main__":
    sys.exit(main())
