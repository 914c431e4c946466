"""Size of the page and time to make it, by the number of sites: `python -m benchmarks.report`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.invented import Plot, write_run
from server.report import page, read_run
from server.report.study import study


def measure(sites: int, rounds: int) -> str:
    """One row of the table: a run with failures and moves, read, studied and written as a page."""
    with TemporaryDirectory() as folder:
        directory = write_run(
            Path(folder) / "run", Plot(sites=sites, kinds=min(10, sites // 4), rounds=rounds, trouble=True)
        )
        start, processor = time.perf_counter(), time.process_time()
        record = read_run(directory)
        read = time.perf_counter()
        study(record)
        studied = time.perf_counter()
        text = page([record])
        done, processor = time.perf_counter(), time.process_time() - processor
    parts = [f"{seconds:.1f} s" for seconds in (read - start, studied - read, done - studied, done - start, processor)]
    return " | ".join([f"{sites:,}", f"{len(text.encode()) / 1e6:.2f} MB", *parts])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, nargs="+", default=[20, 200, 1000])
    parser.add_argument("--rounds", type=int, default=50)
    arguments = parser.parse_args()
    print("| sites | size | read the run | study the grouping | write the page | in all | processor |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for sites in arguments.sites:
        print(f"| {measure(sites, arguments.rounds)} |", flush=True)


if __name__ == "__main__":
    main()
