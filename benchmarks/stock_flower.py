"""Stock Flower as processes on this machine: its own SuperLink, SuperNodes, FedAvg and way to run them, for comparison.

Nothing of this project is in it but the network, the data shares and the training loop (`benchmarks.stock_fedavg`), the
same as those of `benchmarks.deployment`. It runs without TLS and keys, which makes it faster. A round is training and
test of all sites, as there; memory and CPU seconds are counted in the same way.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path

from benchmarks.measured import Measured, Meter, cpu_seconds
from tests.support.federation import ROOT, free_ports, until

_LONGEST = 7200.0
_APP = """
import os, time
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from benchmarks.stock_fedavg import network, stock_client

client = stock_client
server = ServerApp()

def tick(round_number, arrays):
    with open(os.environ["STOCK_TICKS"], "a") as file:
        print(time.time(), file=file)

@server.main()
def main(grid: Grid, context: Context) -> None:
    sites, rounds = (int(os.environ[name]) for name in ("STOCK_SITES", "STOCK_ROUNDS"))
    FedAvg(min_available_nodes=sites, min_train_nodes=sites, min_evaluate_nodes=sites).start(
        grid=grid, initial_arrays=ArrayRecord(network().state_dict()), num_rounds=rounds, evaluate_fn=tick
    )
"""
_PROJECT = """
[project]
name = "stock"
version = "1.0.0"
description = ""
license = "Apache-2.0"
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[tool.flwr.app]
publisher = "stock"
[tool.flwr.app.components]
serverapp = "stock_app:server"
clientapp = "stock_app:client"
"""


def _ticked(ticks: Path, count: int, run: subprocess.Popen[bytes]) -> bool:
    return len(ticks.read_text().split()) >= count or run.poll() is not None


def measure(sites: int, rounds: int) -> Measured:
    """Run FedAvg on `sites` shares of the digits."""
    with tempfile.TemporaryDirectory(prefix="stock-flower-") as folder, ExitStack() as stack:
        root = Path(folder)
        (root / "app").mkdir()
        (root / "app" / "stock_app.py").write_text(_APP)
        (root / "app" / "pyproject.toml").write_text(_PROJECT)
        fleet, runtime, *ports = free_ports(2 + sites)
        ticks = root / "ticks"
        ticks.touch()
        environment = os.environ | {
            "FLWR_HOME": str(root / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "STOCK_TICKS": str(ticks),
            "STOCK_SITES": str(sites),
            "STOCK_ROUNDS": str(rounds),
        }

        def start(name: str, *command: str) -> subprocess.Popen[bytes]:
            output = stack.enter_context((root / f"{name}.log").open("wb"))
            process = subprocess.Popen(command, env=environment, cwd=root, stdout=output, stderr=output)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return process

        link = [
            "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(runtime), "--fleet-api-address",
            f"127.0.0.1:{fleet}", "--database", "state.db", "--disable-runtime-dependency-installation",
        ]  # fmt: skip
        start("superlink", *link)
        until(lambda: "Starting Fleet API" in (root / "superlink.log").read_text(), _LONGEST, "the SuperLink is up")
        for number, port in enumerate(ports):
            node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{fleet}", "--host", "127.0.0.1"]
            config = f"partition-id={number} num-partitions={sites}"
            start(f"supernode-{number}", *node, "--port", str(port), "--node-config", config)
        nodes = [root / f"supernode-{number}.log" for number in range(sites)]
        until(lambda: all("SuperNode ID" in log.read_text() for log in nodes), _LONGEST, "the SuperNodes are in")
        (root / "flwr").mkdir(exist_ok=True)
        connection = f'[superlink.local]\naddress = "127.0.0.1:{runtime}"\ninsecure = true\n'
        (root / "flwr" / "config.toml").write_text(connection)
        meter = Meter(os.getpid())
        run = start("run", "flwr", "run", str(root / "app"), "local", "--stream")
        seen: list[dict[str, float]] = []
        for count in (1, rounds + 1):
            until(partial(_ticked, ticks, count, run), _LONGEST, "a round")
            if len(ticks.read_text().split()) < count:
                raise SystemExit((root / "run.log").read_text()[-3000:])
            seen.append(cpu_seconds(os.getpid()))
        times = [float(line) for line in ticks.read_text().split()]
        cpu = {name: (seen[1][name] - seen[0].get(name, 0.0)) / rounds for name in seen[1]}
        return Measured(float("nan"), [after - before for before, after in pairwise(times)], meter.stop(), cpu, [])
