"""Public data sets by name, through torchvision."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from client.data.arrays import array_samples
from client.data.files import class_index, read_folder
from client.data.samples import TEST, TRAIN, ImageSamples
from common.classes import KNOWN
from common.config import SettingsError
from common.lock import exclusive


def read_public(name: str, folder: Path, classes: Mapping[str, int]) -> ImageSamples:
    """Open a torchvision data set in `folder`, downloading it if it is not there. Its own test part is a hint."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Simulated sites start together and would all download at once.
        with exclusive(folder / f"{name}.lock"):
            train, test = _open(name, folder)
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        raise SettingsError(
            f"cannot download {name} into {folder}: {error}; where there is no network, copy the folder that "
            "torchvision made on a machine that has one, and set data.path to it"
        ) from error
    known = {class_name: class_index(class_name, classes, name) for class_name in KNOWN[name]}
    if name == "Imagenette":
        by_folder = {wnid: known[names[0]] for wnid, names in zip(train.wnids, train.classes, strict=True)}
        return read_folder(folder / "imagenette2-320", by_folder)
    return _joined(train, test, np.array(list(known.values()), np.int64))


def _open(name: str, folder: Path) -> tuple[Any, Any]:
    # Imported here because it takes seconds and most sites never need it.
    from torchvision import datasets

    maker = getattr(datasets, name)
    if name == "Imagenette":
        # 320 pixels are enough for every encoder that looks at 224, at a fifth of the download.
        return tuple(maker(folder, split=split, size="320px", download=True) for split in ("train", "val"))
    if name == "SVHN":
        return tuple(maker(folder, split=split, download=True) for split in ("train", "test"))
    # The CIFAR files are pickles, but torchvision compares them with their published checksums before opening them.
    return tuple(maker(folder, train=train, download=True) for train in (True, False))


def _joined(train: Any, test: Any, class_of_target: np.ndarray[Any, np.dtype[np.int64]]) -> ImageSamples:
    pixels = np.concatenate([np.asarray(part.data) for part in (train, test)])
    if pixels.ndim == 4 and pixels.shape[1] == 3:
        # SVHN is the one that comes with its channels first.
        pixels = pixels.transpose(0, 2, 3, 1)
    targets = [np.asarray(part.labels if hasattr(part, "labels") else part.targets) for part in (train, test)]
    splits = np.repeat(np.array([TRAIN, TEST], np.int8), [len(part) for part in targets])
    return array_samples(pixels, class_of_target[np.concatenate(targets)], splits)
