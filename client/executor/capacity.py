"""How many tasks may run at once on this machine."""

from __future__ import annotations

import os
import subprocess


def capacity(supernodes: int, cores: int, free_gpu_mb: int | None, mb_per_task: int) -> int:
    """Return how many tasks may run at once. A SuperNode never has more than one under way."""
    slots = min(supernodes, cores)
    if free_gpu_mb is not None:
        slots = min(slots, free_gpu_mb // mb_per_task)
    return max(1, slots)


def free_gpu_memory() -> int | None:
    """Return the free MB of the GPU that tasks will use, None without one. Torch is not asked: it would open it."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    if visible in {"", "-1"}:
        return None
    line = ["nvidia-smi", f"--id={visible}", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        return int(subprocess.run(line, check=True, capture_output=True, text=True, timeout=30).stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
