"""`python -m client.executor`: the executor's command line."""

from __future__ import annotations

import argparse
import gc
import ipaddress
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from client.executor.capacity import capacity, free_gpu_memory
from client.executor.child import Turn
from client.executor.code import choose
from client.executor.preload import preload
from client.executor.serving import serve
from client.executor.supernode import SuperNode
from client.flower.bundle import run_task
from client.flower.runtime import Link, Task

_log = logging.getLogger("coterie.executor")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `python -m client.executor`."""
    options = _parser().parse_args(arguments)
    log_to_stderr()
    if not sys.platform.startswith("linux"):
        _log.error("the warm executor needs Linux; start the SuperNode without --isolation process instead")
        return 2
    addresses = list(dict.fromkeys(options.supernode))
    try:
        link = Link.from_files(options.root_certificates, options.superexec_auth_secret_file)
    except (OSError, ValueError) as error:
        _log.error("the SuperNodes cannot be spoken to: %s", error)
        return 2
    nodes = [SuperNode(address, link, len(addresses)) for address in addresses]
    if options.insecure and not all(map(is_loopback, addresses)):
        _log.warning("--insecure: tasks, models and tokens cross the network unencrypted")
    # The Runtime API is a local one, but httpx would send even loopback requests to a site's web proxy.
    hosts = {address.rpartition(":")[0] for address in addresses}
    os.environ["no_proxy"] = ",".join(filter(None, [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), *hosts]))
    cores = len(os.sched_getaffinity(0))
    slots = options.tasks or capacity(len(nodes), cores, free_gpu_memory(), options.gpu_memory_mb)
    # Tasks that run side by side share the cores. Read by torch when it is imported.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // slots)))
    preload()
    _log.info(
        "ready: %d SuperNodes, %d tasks at once, %s threads each", len(nodes), slots, os.environ["OMP_NUM_THREADS"]
    )
    serve(nodes, slots, _run_task, options.bell)
    # Otherwise libraries complain of what was frozen and not collected.
    gc.unfreeze()
    return 0


def is_loopback(address: str) -> bool:
    """Whether host:port stays on this machine."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def log_to_stderr() -> None:
    """Show what the executor says, and Flower's warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    coterie = logging.getLogger("coterie")
    coterie.addHandler(handler)
    coterie.setLevel(logging.INFO)
    # At INFO every task would log an empty line.
    logging.getLogger("flwr").setLevel(logging.WARNING)


def _run_task(task: Task, link: Link, turn: Turn) -> None:
    run_task(task, link, turn.wait, choose)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m client.executor", description="Run the tasks of local SuperNodes.")
    parser.add_argument(
        "--supernode",
        type=_address,
        metavar="HOST:PORT",
        action="append",
        required=True,
        help="Runtime API (--host, --port) of a SuperNode started with --isolation process; may be repeated",
    )
    security = parser.add_mutually_exclusive_group(required=True)
    security.add_argument(
        "--root-certificates", type=Path, metavar="CA", help="CA certificate (PEM) of the Runtime API's TLS"
    )
    security.add_argument("--insecure", action="store_true", help="no TLS: the SuperNode has no --ssl-certfile")
    parser.add_argument(
        "--superexec-auth-secret-file", metavar="FILE", help="the same file as the SuperNode's option of this name"
    )
    parser.add_argument(
        "--bell", type=Path, metavar="FILE", help="a named pipe by which SuperNodes say that they have a task"
    )
    parser.add_argument(
        "--tasks", type=_positive, default=0, help="tasks at once; default: by SuperNodes, cores and GPU memory"
    )
    parser.add_argument("--gpu-memory-mb", type=_positive, default=2048, help="GPU memory one task may need")
    return parser


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not (host and port.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return text


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
