"""Arrays that travel beside a model: what a method declares of them, and how they are held against that.

A method declares, per direction, named records; a record is a set of named arrays. Which arrays it must hold, of what
type and shape and in what range, follows from the network by a rule: `like_parameters`, or `exactly(steps=…)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from common.tensor_names import is_parameter

if TYPE_CHECKING:
    # Every command reads the settings of methods, and with them these declarations: none waits for NumPy.
    from numpy.typing import NDArray

    from common.state import State

# A declared name that ends so stands for records that are numbered: `group.*` for `group.0`, `group.1`, …
NUMBERED = ".*"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
_MOST_NUMBERED = 1000
_ITEM_BYTES = {"float32": 4, "float64": 8, "int64": 8, "uint8": 1}


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
    """The network's tensors that travel, how many classes it tells apart, and its tensors that are a site's own."""

    tensors: Mapping[str, Expected]
    classes: int
    own: Mapping[str, Expected] = field(default_factory=dict)

    @classmethod
    def of(
        cls, state: Mapping[str, NDArray[Any]], classes: int, own: Mapping[str, NDArray[Any]] | None = None
    ) -> Network:
        """Describe the network of which this travels, and that stays."""
        return cls(_described(state), classes, _described(own or {}))


def _described(state: Mapping[str, NDArray[Any]]) -> dict[str, Expected]:
    return {name: Expected(str(array.dtype), array.shape) for name, array in state.items()}


Rule = Callable[[Network], Mapping[str, Expected]]


def like_model(network: Network) -> Mapping[str, Expected]:
    """A whole state of the network."""
    return network.tensors


def like_own(network: Network) -> Mapping[str, Expected]:
    """All tensors that are a site's own, where these are told after all."""
    return network.own


def like_parameters(network: Network) -> Mapping[str, Expected]:
    """One array for each trained parameter."""
    return {name: tensor for name, tensor in network.tensors.items() if is_parameter(name)}


def exactly(**arrays: Expected) -> Rule:
    """These arrays, whatever the network."""
    return lambda network: arrays


def check_extras(
    extras: Mapping[str, State], declared: Mapping[str, Rule], network: Network, *, complete: bool = True
) -> None:
    """Raise `InvalidExtras` unless the records are those declared, and each holds what its rule says.

    With `complete` false some may be missing.
    """
    for name, expected in expected_extras(list(extras), declared, network, complete=complete).items():
        check_record(name, extras[name], expected)


def expected_extras(
    names: Sequence[str], declared: Mapping[str, Rule], network: Network, *, complete: bool = True
) -> dict[str, Mapping[str, Expected]]:
    """What records of these names must hold; `InvalidExtras`: one of them, or one that is missing, is not as declared.

    Known before an array is read.
    """
    if len(names) > len(declared) + _MOST_NUMBERED:
        raise InvalidExtras(f"it carries {len(names)} sets of arrays, more than anybody sends")
    found: dict[str, Mapping[str, Expected]] = {}
    for name in names:
        rule = declared.get(name) or declared.get(_family(name))
        if rule is None or name.endswith(NUMBERED):
            raise InvalidExtras(f"it carries {name!r}, which nobody asked for")
        found[name] = rule(network)
    if complete and (missing := [name for name in declared if not name.endswith(NUMBERED) and name not in found]):
        raise InvalidExtras(f"it lacks {', '.join(missing)}")
    return found


def most_bytes(expected: Mapping[str, Expected]) -> int | None:
    """Bytes that a record may have at most, without its header; None: it may have any size."""
    total = 0
    for array in expected.values():
        size = _ITEM_BYTES[array.dtype]
        for side in array.shape:
            if side is None:
                return None
            size *= side
        total += size
    return total


def _family(name: str) -> str:
    family, _, number = name.rpartition(".")
    # A number is written in one way alone: no two records are the same one.
    return f"{family}{NUMBERED}" if _NUMBER.fullmatch(number) else ""


def check_record(record: str, arrays: State, expected: Mapping[str, Expected]) -> None:
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
