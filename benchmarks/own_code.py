"""CPU seconds of a task at a site: its own code, imported before the fork, beside the code of the run's bundle.

`python -m benchmarks.own_code` prints a Markdown table. Both answer the same question (who are you) in children of one
warm executor, in turn; what a SuperNode and the network add is the same for both and left out.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import logging
import os
import statistics
import sys
import tempfile
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.clientapp.utils import get_load_client_app_fn

from client.executor.code import choose
from client.executor.preload import preload
from client.flower.bundle import Shipped, install_whole
from common import release, wire
from common.config import Config
from server.flower.messages import set_message_id, speak_as

_PROJECT = Path(__file__).parents[1]


def main() -> int:
    """Measure both ways and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="coterie-code-") as home:
        os.environ["FLWR_HOME"] = home
        fab = build_fab_from_disk(_PROJECT)
        digest = hashlib.sha256(fab).hexdigest()
        install_whole(fab)
        preload()
        logging.getLogger("coterie").setLevel(logging.ERROR)
        shipped = Shipped(release.APP, release.VERSION, digest)
        seconds: dict[str, list[float]] = {"": [], digest: []}
        for _ in range(options.tasks + 1):
            for foreign_code, found in seconds.items():
                found.append(_child(shipped, foreign_code, home))
    # Otherwise libraries complain of what was frozen and not collected.
    gc.unfreeze()
    print("| code | CPU seconds of a task (median) |")
    print("|---|---:|")
    # The first of each finds files that nobody has read yet.
    own, shipped_code = (statistics.median(found[1:]) for found in seconds.values())
    print(f"| the run's bundle, imported in the child | {shipped_code:.3f} |")
    print(f"| the site's own, imported before the fork | {own:.3f} |")
    print(f"\nratio {own / shipped_code:.2f}, {options.tasks} tasks each")
    return 0


def _child(shipped: Shipped, foreign_code: str, home: str) -> float:
    """Fork a child that answers, and return the CPU seconds it took."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _answer(shipped, foreign_code, home)
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    _, status, used = os.wait4(pid, 0)
    if status:
        raise RuntimeError("a task failed")
    return used.ru_utime + used.ru_stime


def _answer(shipped: Shipped, foreign_code: str, home: str) -> None:
    speak_as(run=1, node=7, task=1)
    message = Message(wire.pack_task(wire.Task(Config().for_site(), 0, 1)), 7, "query.hello")
    set_message_id(message)
    node_config = {"site": "a", "partition-id": 0, "num-partitions": 20, "cache": home, "foreign-code": foreign_code}
    context = Context(run_id=1, node_id=7, node_config=node_config, state=RecordDict(), run_config={})
    app = choose(shipped, node_config)
    if app is None:
        load = get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
        app = load(shipped.app, shipped.version, shipped.digest)
    if "refusal" in app(message, context).content:
        raise RuntimeError("the site refused")


if __name__ == "__main__":
    sys.exit(main())
