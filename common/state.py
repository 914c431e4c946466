"""A model as named arrays, and the parts of it that methods speak of. NumPy alone: no network is built here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.tensor_names import is_head, is_parameter

State = dict[str, NDArray[Any]]

# What travels beside a model: sets of named arrays, by name.
Extras = dict[str, State]


def flat_head(state: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Return a copy of the classification head's parameters, bias then weight, as one float64 vector."""
    # By name: a state that arrived over the wire may be in any order.
    return np.concatenate([state[name].ravel() for name in sorted(state) if is_head(name)], dtype=np.float64)


def flat_body(state: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Return a copy of the trained parameters below the head, in the order of their names, as one float64 vector."""
    # A head by itself has nothing below it.
    parts = [state[name].ravel() for name in sorted(state) if is_parameter(name) and not is_head(name)]
    return np.concatenate([*parts, np.empty(0)], dtype=np.float64)


def flat_parameters(state: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Return a copy of all trained parameters, in the order of their names, as one float32 vector.

    Batch norm's statistics and counters are left out: they are measured, not trained, and would outweigh the rest.
    """
    return np.concatenate([state[name].ravel() for name in sorted(state) if is_parameter(name)])
