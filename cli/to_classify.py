"""What a model is to classify: images or rows that nobody has labelled."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from client.data.files import read_images
from client.data.samples import ImageSamples, TableSamples, in_one_line
from client.data.tables import read_rows
from common.config import SettingsError
from common.kept_model import ModelCard


class NothingToClassify(SettingsError):
    """There is not one image or row."""


def opened(card: ModelCard, paths: list[Path], name_column: str = "") -> list[tuple[str, ImageSamples | TableSamples]]:
    """The samples to classify, and what stands in front of their names; what is wrong with them is told."""
    found: list[tuple[str, ImageSamples | TableSamples]] = list(_sources(card, paths, name_column))
    if not any(len(samples) for _, samples in found):
        what = "image" if card.table is None else "row"
        raise NothingToClassify(f"no {what} in {', '.join(map(str, paths))}")
    return found


def _sources(card: ModelCard, paths: list[Path], name_column: str) -> Iterator[tuple[str, ImageSamples | TableSamples]]:
    if card.table is None:
        if name_column:
            raise SettingsError("--id names a column of a table, and this model reads images: leave it out")
        images = read_images(paths)
        for fault in images.faults:
            print(f"skipped {fault.name}: {fault.reason}", file=sys.stderr)
        yield "", images
        return
    for path in paths:
        rows = read_rows(path, card.table, name_column)
        if rows.faults:
            print(f"{path}: {in_one_line(rows.faults)}", file=sys.stderr)
        # A row that has a name of its own needs no file in front of it.
        yield "" if name_column else f"{path}: ", rows
