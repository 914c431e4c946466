"""Sources made of arrays: a .npz file, and the handwritten digits that come with scikit-learn."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.data.files import class_index
from client.data.pixels import to_uint8
from client.data.samples import TEST, TRAIN, UNSPECIFIED, ArraySamples, Fault
from common.config import SettingsError
from common.foreign import Unusable, read_archive

_MOST_CLASSES = 10_000
_PARTS = {"": UNSPECIFIED, "_train": TRAIN, "_test": TEST}


def array_samples(
    pixels: NDArray[np.uint8],
    labels: NDArray[np.int64],
    splits: NDArray[np.int8],
    *,
    groups: NDArray[np.str_] | None = None,
    sites: NDArray[np.str_] | None = None,
    rows: NDArray[np.int64] | None = None,
    marks: tuple[str, ...] = (),
    faults: tuple[Fault, ...] = (),
) -> ArraySamples:
    """Make samples of uint8[n, h, w] or uint8[n, h, w, 1 or 3]; their identity is a hash of the pixels."""
    if pixels.ndim == 3:
        pixels = pixels[..., np.newaxis]
    pixels = np.ascontiguousarray(pixels)
    digest = hashlib.sha256(str(pixels.shape).encode())
    digest.update(pixels.data)
    rows = np.arange(len(labels), dtype=np.int64) if rows is None else rows
    return ArraySamples(labels, groups, splits, digest.hexdigest(), faults, pixels, rows, marks, sites=sites)


def read_digits() -> ArraySamples:
    """Return the built-in demo: 1797 handwritten digits of 8 by 8 pixels."""
    # scikit-learn's file, without scikit-learn: to import it takes half a second and 60 MB.
    package = importlib.util.find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        rows = np.loadtxt(file, delimiter=",")
    pixels = np.rint(rows[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return array_samples(pixels, rows[:, -1].astype(np.int64), np.full(len(pixels), UNSPECIFIED, np.int8))


def read_npz(path: Path, classes: Mapping[str, int]) -> ArraySamples:
    """Read x, y[, group] and/or x_train, y_train[, group_train], x_test, y_test[, group_test].

    x is (n, h, w) or (n, h, w, 1 or 3), of any type that `to_uint8` takes; y holds class indices or class names.
    Rows with values that are not finite are left out and named.
    """
    arrays = _load(path)
    images = _joined(arrays, "x", path)
    if images.ndim == 3:
        images = images[..., np.newaxis]
    if images.ndim != 4 or images.shape[3] not in (1, 3) or 0 in images.shape[1:]:
        hint = " (channels go last)" if images.ndim == 4 and images.shape[1] in (1, 3) else ""
        raise SettingsError(f"{path}: x has shape {images.shape}; it must be (n, h, w) or (n, h, w, 1 or 3){hint}")
    labels = _class_indices(_labels(arrays, path), classes, path)
    groups, sites = _groups(arrays, path), _groups(arrays, path, "site")
    splits = np.concatenate([np.full(len(arrays[f"x{part}"]), _PARTS[part], np.int8) for part in _parts(arrays)])
    if len(labels) != len(images) or (groups is not None and len(groups) != len(images)):
        raise SettingsError(
            f"{path}: {len(images)} images, {len(labels)} labels"
            + ("" if groups is None else f", {len(groups)} groups")
            + " do not match"
        )
    if sites is not None and len(sites) != len(images):
        raise SettingsError(f"{path}: {len(images)} images, {len(sites)} sites do not match")
    usable = np.isfinite(images).all(axis=(1, 2, 3)) if images.dtype.kind == "f" else np.ones(len(images), np.bool_)
    rows = np.flatnonzero(usable).astype(np.int64)
    try:
        pixels = to_uint8(images[rows])
    except ValueError as error:
        raise SettingsError(f"{path}: {error}") from None
    return array_samples(
        pixels,
        labels[rows],
        splits[rows],
        groups=None if groups is None else groups[rows],
        sites=None if sites is None else sites[rows],
        rows=rows,
        marks=tuple(_mark(images[row]) for row in rows),
        faults=tuple(Fault(f"sample {row}", "holds values that are not finite") for row in np.flatnonzero(~usable)),
    )


def _mark(image: NDArray[Any]) -> str:
    """Hash one image by its values, whatever type the file stores them in; 16 bits fit into a float exactly."""
    return hashlib.sha256(image.astype("<f4").tobytes()).hexdigest()[:32]


def npz_classes(path: Path) -> tuple[str, ...]:
    """Return the class names a .npz file speaks of: its strings, sorted, or "0" to its largest label."""
    labels = _labels(_load(path), path)
    if labels.dtype.kind == "U":
        return tuple(sorted(set(labels.tolist())))
    largest = int(labels.max()) if len(labels) else -1
    if largest >= _MOST_CLASSES:
        raise SettingsError(f"{path}: label {largest} is no class index; at most {_MOST_CLASSES} classes are read")
    return tuple(str(label) for label in range(largest + 1))


def npz_says_sites(path: Path) -> bool:
    """Whether a .npz file says whose each sample is."""
    return any(name.startswith("site") for name in _load(path))


def _load(path: Path) -> dict[str, NDArray[Any]]:
    wanted = {f"{name}{part}" for name in ("x", "y", "group", "groups", "site", "sites") for part in _PARTS}
    try:
        arrays, found = read_archive(path, wanted)
    except (OSError, Unusable) as error:
        raise SettingsError(
            f"cannot read {path}: {error}; it must be a .npz file of plain arrays (no pickled objects)"
        ) from None
    parts = _parts(arrays)
    if not parts or any(f"y{part}" not in arrays for part in parts):
        raise SettingsError(
            f"{path} holds {', '.join(found) or 'nothing'}; needed are x and y, or x_train, y_train, x_test and y_test"
        )
    return arrays


def _parts(arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    return [part for part in _PARTS if f"x{part}" in arrays]


def _joined(arrays: Mapping[str, NDArray[Any]], name: str, path: Path) -> NDArray[Any]:
    pieces = [arrays[f"{name}{part}"] for part in _parts(arrays)]
    if len({(piece.shape[1:], piece.dtype.kind) for piece in pieces}) != 1 or pieces[0].ndim == 0:
        shapes = " and ".join(f"{piece.dtype}{piece.shape}" for piece in pieces)
        raise SettingsError(f"{path}: the parts of {name} do not fit together: {shapes}")
    return np.concatenate(pieces)


def _labels(arrays: Mapping[str, NDArray[Any]], path: Path) -> NDArray[Any]:
    labels = _joined(arrays, "y", path)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype.kind == "S":
        labels = np.char.decode(labels, "utf-8")
    if labels.ndim != 1 or labels.dtype.kind not in "iuU":
        raise SettingsError(
            f"{path}: y is {labels.dtype}{labels.shape}; it must be one class index or class name per sample"
        )
    return labels


def _class_indices(labels: NDArray[Any], classes: Mapping[str, int], path: Path) -> NDArray[np.int64]:
    if labels.dtype.kind == "U":
        names, inverse = np.unique(labels, return_inverse=True)
        known = [class_index(str(name), classes, str(path)) for name in names]
        return np.array(known, np.int64)[inverse]
    indices = labels.astype(np.int64)
    strangers = indices[(indices < 0) | (indices >= len(classes))]
    if len(strangers):
        raise SettingsError(
            f"{path}: label {strangers[0]} is outside 0..{len(classes) - 1}, "
            f"the indices of the agreed class list ({', '.join(classes)})"
        )
    return indices


def _groups(arrays: Mapping[str, NDArray[Any]], path: Path, what: str = "group") -> NDArray[np.str_] | None:
    parts = _parts(arrays)
    pieces = [arrays[key] for part in parts for key in (f"{what}{part}", f"{what}s{part}") if key in arrays]
    if not pieces:
        return None
    if len(pieces) != len(parts) or any(piece.ndim != 1 for piece in pieces):
        raise SettingsError(f"{path}: every part needs one {what} per sample, or no part has any")
    return np.concatenate([piece.astype(np.str_) for piece in pieces])
