"""Updates in fewer bytes: what a site changed, in steps whose size each block of numbers chooses for itself.

A site that was sent x₀ and made x of it sends d = x − x₀ + e, block by block of 256 numbers of a tensor: as int8
s = max |d| / 127 and round(d / s), as float16 s = max |d| and d / s. What d loses by that is e, what the site has not
said yet, and a part of its next update, so that over the rounds nothing is lost (error feedback, Karimireddy et al.,
ICML 2019).

Only parameters in float32 are written so. What is measured, such as batch norm's statistics, is no sum of changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.config import Precision
from common.state import State
from common.tensor_names import is_parameter
from common.wire.records import WireError, plain_text

FULL: Precision = "float32"
BLOCK = 256
_STEPS: dict[Precision, tuple[type[np.generic], float]] = {"float16": (np.float16, 1.0), "int8": (np.int8, 127.0)}
_SCALES = "scales of "

Arrays = Mapping[str, NDArray[Any]]


def shorten(after: Arrays, before: Arrays, unsaid: Arrays, precision: Precision) -> tuple[State, State]:
    """Return what a site sends of what it made of `before`, and what it leaves unsaid by that.

    `unsaid` is what it left unsaid the last time; a tensor that is not in it has nothing unsaid.
    """
    sent: State = {}
    left: State = {}
    # What is not a number any more is sent as it is, and refused as every such update is.
    with np.errstate(invalid="ignore", over="ignore"):
        for name, array in after.items():
            if not _is_shortened(name, array):
                sent[name] = array
                continue
            change = array - before[name]
            if name in unsaid:
                change += unsaid[name]
            sent[name], sent[_SCALES + name] = _in_steps(change, precision)
            left[name] = change - _out_of_steps(sent[name], sent[_SCALES + name])
    return sent, left


def lengthen(sent: State, before: Arrays, precision: Precision) -> State:
    """Read what a site sent that was itself sent `before`: return what the site made of that.

    What does not depend on `precision`, such as the shape of the other tensors and that all is finite, is screened as
    with every update.
    """
    if precision == FULL:
        return sent
    shortened = [name for name, array in before.items() if _is_shortened(name, array)]
    if unknown := sent.keys() - before.keys() - {_SCALES + name for name in shortened}:
        raise WireError(f"the model has no {plain_text(', '.join(sorted(unknown)[:5]))}")
    state = {name: array for name, array in sent.items() if name in before}
    with np.errstate(invalid="ignore", over="ignore"):
        for name in shortened:
            state[name] = before[name] + _out_of_steps(*_checked(name, sent, before[name].shape, precision))
    return state


def _is_shortened(name: str, array: NDArray[Any]) -> bool:
    return is_parameter(name) and array.dtype == np.float32


def _checked(name: str, sent: State, shape: tuple[int, ...], precision: Precision) -> tuple[NDArray[Any], NDArray[Any]]:
    steps, scales = sent.get(name), sent.get(_SCALES + name)
    if steps is None:
        raise WireError(f"the update lacks {name}")
    if steps.dtype != _STEPS[precision][0] or steps.shape != shape:
        raise WireError(f"{name} is {steps.dtype}{steps.shape}, not {precision}{shape} (wire.precision)")
    if scales is None:
        raise WireError(f"the update lacks the scales of {name}")
    blocks = -(-steps.size // BLOCK)
    if scales.dtype != np.float32 or scales.shape != (blocks,):
        raise WireError(f"the scales of {name} are {scales.dtype}{scales.shape}, not float32({blocks},)")
    if not (np.isfinite(scales) & (scales >= 0)).all():
        raise WireError(f"the scales of {name} hold values that are not finite, or below 0")
    return steps, scales


def _in_steps(values: NDArray[np.float32], precision: Precision) -> tuple[NDArray[Any], NDArray[np.float32]]:
    kind, most = _STEPS[precision]
    blocks = _blocks(values)
    scales = np.abs(blocks).max(axis=1) / np.float32(most)
    # Where all are 0, or too small for a scale, nothing is said.
    blocks /= np.where(scales > 0, scales, np.inf)[:, None]
    if precision == "int8":
        np.rint(blocks, out=blocks)
    # A scale among the smallest numbers there are is rounded a good deal.
    np.clip(blocks, -most, most, out=blocks)
    return np.nan_to_num(blocks).astype(kind).reshape(-1)[: values.size].reshape(values.shape), scales


def _out_of_steps(steps: NDArray[Any], scales: NDArray[np.float32]) -> NDArray[np.float32]:
    blocks = _blocks(steps)
    blocks *= scales[:, None]
    return blocks.reshape(-1)[: steps.size].reshape(steps.shape)


def _blocks(values: NDArray[Any]) -> NDArray[np.float32]:
    """A copy in float32, float32[blocks, 256]; the last one is filled up with zeros."""
    blocks = np.zeros((-(-values.size // BLOCK), BLOCK), np.float32)
    blocks.reshape(-1)[: values.size] = values.reshape(-1)
    return blocks
