"""Arrays as safetensors."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file


def contiguous(array: NDArray[Any]) -> NDArray[Any]:
    """An array in C order, as safetensors wants it, of the same shape: NumPy alone gives a scalar a dimension."""
    return np.ascontiguousarray(array).reshape(array.shape)


def write_tensors(path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None) -> None:
    """Write contiguous arrays; a full disk is an OSError, as with every other file."""
    try:
        save_file(dict(arrays), path, metadata=None if metadata is None else dict(metadata))
    except SafetensorError as error:
        # The library hands on the number only as a part of its words.
        found = re.search(r"os error (\d+)", str(error))
        raise OSError(int(found[1]) if found else errno.EIO, f"{path.name} cannot be written: {error}") from None
