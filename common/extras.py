"""Arrays that travel beside a model: what a method declares of them, and how they are held against that.

A method declares, per direction, named records; a record is a set of named arrays. Which arrays it must hold, of what
type and shape and in what range, follows from the network by a rule: `like_parameters`, or `exactly(steps=…)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from common.tensor_names import is_head, is_parameter

if TYPE_CHECKING:
    # Every command reads the settings of methods, and with them these declarations: none waits for NumPy.
    from numpy.typing import NDArray

    from common.state import State

# A declared name that ends so stands for records that are numbered: `group.*` for `group.0`, `group.1`, …
NUMBERED = ".*"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
_MOST_NUMBERED = 1000


class InvalidExtras(ValueError):
    """Arrays that are not what was declared; the message names the record, the array and the fault."""


@dataclass(frozen=True)
class Expected:
    """What an array must be. A size of None may be anything; bounds hold for every element."""

    dtype: str
    shape: tuple[int | None, ...] = ()
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class Network:
    """The tensors of the network that a run trains, and how many classes it tells apart."""

    tensors: Mapping[str, Expected]
    classes: int

    @classmethod
    def of(cls, state: Mapping[str, NDArray[Any]], classes: int) -> Network:
        """Describe the network whose state this is."""
        return cls({name: Expected(str(array.dtype), array.shape) for name, array in state.items()}, classes)


Rule = Callable[[Network], Mapping[str, Expected]]


def like_model(network: Network) -> Mapping[str, Expected]:
    """A whole state of the network."""
    return network.tensors


def like_parameters(network: Network) -> Mapping[str, Expected]:
    """One array for each trained parameter."""
    return {name: tensor for name, tensor in network.tensors.items() if is_parameter(name)}


def like_head(network: Network) -> Mapping[str, Expected]:
    """One array for each tensor of the classification head."""
    return {name: tensor for name, tensor in network.tensors.items() if is_head(name)}


def exactly(**arrays: Expected) -> Rule:
    """These arrays, whatever the network."""
    return lambda network: arrays


def check_extras(
    extras: Mapping[str, State], declared: Mapping[str, Rule], network: Network, *, complete: bool = True
) -> None:
    """Raise `InvalidExtras` unless the records are those declared, and each holds what its rule says.

    With `complete` false some may be missing.
    """
    for name, arrays in extras.items():
        rule = declared.get(name) or declared.get(_family(name))
        if rule is None or name.endswith(NUMBERED):
            raise InvalidExtras(f"it carries {name!r}, which nobody asked for")
        _check_record(name, arrays, rule(network))
    if complete and (missing := [name for name in declared if not name.endswith(NUMBERED) and name not in extras]):
        raise InvalidExtras(f"it lacks {', '.join(missing)}")
    if len(extras) > len(declared) + _MOST_NUMBERED:
        raise InvalidExtras(f"it carries {len(extras)} sets of arrays, more than anybody sends")


def _family(name: str) -> str:
    family, _, number = name.rpartition(".")
    # A number is written in one way alone: no two records are the same one.
    return f"{family}{NUMBERED}" if _NUMBER.fullmatch(number) else ""


def _check_record(record: str, arrays: State, expected: Mapping[str, Expected]) -> None:
    import numpy as np

    if missing := [name for name in expected if name not in arrays]:
        raise InvalidExtras(f"{record} lacks {', '.join(missing)}")
    if unknown := [name for name in arrays if name not in expected]:
        raise InvalidExtras(f"{record} has {', '.join(unknown)}, which nobody asked for")
    for name, limits in expected.items():
        array, place = arrays[name], f"{record}: {name}"
        fits = len(array.shape) == len(limits.shape) and all(
            wanted in (None, found) for wanted, found in zip(limits.shape, array.shape, strict=True)
        )
        if str(array.dtype) != limits.dtype or not fits:
            shape = "×".join("any" if size is None else str(size) for size in limits.shape) or "a single number"
            raise InvalidExtras(f"{place} is {array.dtype}{array.shape}, not {limits.dtype} of {shape}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InvalidExtras(f"{place} holds values that are not finite")
        if limits.least is not None and array.size and array.min() < limits.least:
            raise InvalidExtras(f"{place} holds values below {limits.least}")
        if limits.most is not None and array.size and array.max() > limits.most:
            raise InvalidExtras(f"{place} holds values above {limits.most}")
