"""Writing arrays as safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file


def write_tensors(path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None) -> None:
    """Write contiguous arrays; a full disk is an OSError, as with every other file."""
    try:
        save_file(dict(arrays), path, metadata=None if metadata is None else dict(metadata))
    except SafetensorError as error:
        raise OSError(f"{path.name} cannot be written: {error}") from None
