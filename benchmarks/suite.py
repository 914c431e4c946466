"""How the runs of a suite share a machine, and what Flower and our bookkeeping cost: `python -m benchmarks.suite`.

FedAvg on digits, 20 sites, ResNet9 at 16 pixels, as many runs (seeds) as cores: side by side, each with one site at a
time in one process; and one after the other, each with one site per core in Flower's simulation engine. Then the CPU
seconds of one run beside a plain PyTorch loop that does the same training. Everything includes starting Python.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from cli.toml_text import settings_toml
from common.config import Config, load

CONFIG = Path(__file__).parents[1] / "configs" / "digits.toml"


def config_of(seed: int, rounds: int, cache: Path) -> Config:
    values = {"method": "fedavg", "train.model": "resnet9", "train.lr": 0.01, "train.batch_norm": "running"}
    return load(CONFIG, {**values, "rounds": rounds, "seed": seed, "cache": str(cache)})


def spend(folder: Path, *command: str) -> tuple[float, float]:
    """Run a command to its end; return wall-clock and CPU seconds."""
    with (folder / "log").open("ab") as log:
        start = time.perf_counter()
        process = subprocess.Popen([sys.executable, *command], stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed:\n{(folder / 'log').read_text()[-2000:]}")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime


def simulate(folder: Path, configs: list[Path], jobs: int, name: str) -> tuple[float, float]:
    """Run configurations one after the other with `jobs` sites at a time each."""
    wall = cpu = 0.0
    for number, path in enumerate(configs):
        out = str(folder / f"{name}-{number}")
        seconds, used = spend(folder, "-m", "cli.main", "simulate", str(path), "--jobs", str(jobs), "--out", out)
        wall, cpu = wall + seconds, cpu + used
    return wall, cpu


def side_by_side(folder: Path, configs: list[Path], rounds: int, cache: Path) -> float:
    """Run the same by `coterie bench`; return wall-clock seconds."""
    values = "train.model='resnet9', train.lr=0.01, train.batch_norm='running'"
    suite = folder / "suite.toml"
    suite.write_text(
        f"title = 'side by side'\nseeds = {list(range(len(configs)))}\ndata = [{{name='digits', config='{CONFIG}'}}]\n"
        f"set = {{rounds={rounds}, cache='{cache}', {values}}}\n[[method]]\nname = 'fedavg'\n"
    )
    command = ("-m", "cli.main", "bench", str(suite), "--out", str(folder / "bench"), "--jobs", str(len(configs)))
    return spend(folder, *command)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    rounds = parser.parse_args().rounds
    cores = os.cpu_count() or 1
    with TemporaryDirectory() as place:
        folder = Path(place)
        configs = []
        for seed in range(cores):
            path = folder / f"seed-{seed}.toml"
            path.write_text(settings_toml(config_of(seed, rounds, folder / "cache")) + "\n")
            configs.append(path)
        # Decodes the images, once for all that follow.
        _, plain = spend(folder, "-m", "benchmarks.plain_loop", str(configs[0]))
        _, plain = spend(folder, "-m", "benchmarks.plain_loop", str(configs[0]))
        _, ours = simulate(folder, configs[:1], 1, "one")
        clients, _ = simulate(folder, configs, cores, "clients")
        cells = side_by_side(folder, configs, rounds, folder / "cache")
    print(f"{cores} runs of {rounds} rounds, FedAvg, 20 sites, ResNet9, digits at 16 px, {cores} cores.\n")
    print("| | seconds | ratio |\n|---|---:|---:|")
    print(f"| runs side by side, one site at a time each (`coterie bench`) | {cells:.0f} | {cells / clients:.2f} |")
    print(f"| one run after the other, {cores} sites at a time (simulation engine) | {clients:.0f} | 1 |")
    print("\n| one run | CPU seconds | ratio |\n|---|---:|---:|")
    print(f"| Coterie, one process | {ours:.1f} | {ours / plain:.2f} |")
    print(f"| plain PyTorch loop | {plain:.1f} | 1 |")


if __name__ == "__main__":
    main()
