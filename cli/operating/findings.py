"""What the doctor looks at: each finding is a line, and what to do about it if something is wrong."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common.readable import megabytes
from common.release import VERSION

_LITTLE_DISK, _LITTLE_MEMORY = 5e9, 2e9  # bytes


@dataclass(frozen=True)
class Finding:
    """One line: whether it is right, what was found, and what to do about it."""

    state: Literal["ok", "note", "PROBLEM"]
    what: str
    do: str = ""

    def __str__(self) -> str:
        return f"{self.state:8}{self.what}" + (f"\n{'':8}→ {self.do}" if self.do else "")


def versions() -> Finding:
    """Which Coterie and Python this is."""
    return Finding("ok", f"Coterie {VERSION}, Python {sys.version.split()[0]}, {sys.executable}")


def disk(paths: Sequence[Path]) -> Iterator[Finding]:
    """Whether there is room where something will be written, and whether it can be."""
    seen: set[int] = set()
    for path in paths:
        place = path
        while not place.exists():
            place = place.parent
        if not os.access(place, os.W_OK):
            yield Finding("PROBLEM", f"{path} cannot be written by this user", f"sudo chown $(id -u) {place}")
        device = place.stat().st_dev
        if device in seen:
            continue
        seen.add(device)
        free = shutil.disk_usage(place).free
        if free < _LITTLE_DISK:
            yield Finding("PROBLEM", f"only {megabytes(free)} are free at {place}", "make room, or name another folder")
        else:
            yield Finding("ok", f"{megabytes(free)} are free at {place}")


def memory() -> Finding:
    """How much memory is left."""
    free = next(
        (int(line.split()[1]) * 1024 for line in _lines(Path("/proc/meminfo")) if line.startswith("MemAvailable")), 0
    )
    if free < _LITTLE_MEMORY:
        return Finding(
            "note", f"{megabytes(free)} of memory are free", "a site needs about 0.7 GB, and more for large images"
        )
    return Finding("ok", f"{megabytes(free)} of memory are free")


def proxy() -> Finding:
    """Whether calls go through a proxy."""
    names = ("https_proxy", "HTTPS_PROXY", "grpc_proxy", "no_proxy", "NO_PROXY")
    found = {name: os.environ[name] for name in names if os.environ.get(name)}
    if not found:
        return Finding("ok", "no proxy is set (https_proxy)")
    told = ", ".join(f"{name}={_without_password(value)}" for name, value in found.items())
    return Finding("note", f"a proxy is set: {told}", "the proxy must allow CONNECT to the server's port")


def _without_password(value: str) -> str:
    scheme, separator, rest = value.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def clock() -> Finding:
    """Whether this machine keeps its clock right by itself."""
    if Path("/run/systemd/timesync/synchronized").exists() or any(
        Path(path).exists() for path in ("/run/chrony/chronyd.pid", "/run/ntpd.pid", "/var/run/ntpd.pid")
    ):
        return Finding("ok", "the clock is synchronised")
    return Finding(
        "note",
        "nothing that synchronises the clock was found (in a container that is the host's matter)",
        "timedatectl set-ntp true; clocks may differ by minutes at most",
    )


def gpu() -> Finding:
    """Whether a GPU is used, and why not."""
    import torch

    if torch.cuda.is_available():
        return Finding("ok", f"training uses {torch.cuda.get_device_name()}")
    card = Path("/proc/driver/nvidia/version").exists() or bool(list(Path("/dev").glob("nvidia[0-9]*")))
    threads = f"training uses {torch.get_num_threads()} threads of the processor"
    if torch.version.cuda is None:
        told = f"{threads}: the torch that is installed ({torch.__version__}) has no CUDA"
        return Finding("note", told, "with an NVIDIA card: install torch from PyPI's own wheels" if card else "")
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
        return Finding("note", f"{threads}: CUDA_VISIBLE_DEVICES hides every GPU", "unset CUDA_VISIBLE_DEVICES")
    if not card:
        hint = "if there is one: load its driver; in a container start it with --gpus all (NVIDIA container toolkit)"
        return Finding("note", f"{threads}: no NVIDIA GPU is visible here", hint)
    return Finding(
        "PROBLEM",
        f"{threads}, although there is an NVIDIA GPU: its driver does not go with CUDA {torch.version.cuda}",
        "`nvidia-smi` tells the newest CUDA the driver knows: update the driver, or install an older torch",
    )


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
