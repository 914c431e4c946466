"""What a model is to classify: images or rows that nobody has labelled."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from client.data.files import read_images
from client.data.samples import ImageSamples, TableSamples
from client.data.tables import read_rows
from common.config import SettingsError
from common.kept_model import ModelCard


def opened(card: ModelCard, paths: list[Path]) -> list[tuple[str, ImageSamples | TableSamples]]:
    """The samples to classify, and what stands in front of their names; what is wrong with them is told."""
    found: list[tuple[str, ImageSamples | TableSamples]] = list(_sources(card, paths))
    if not any(len(samples) for _, samples in found):
        what = "image" if card.table is None else "row"
        raise SettingsError(f"no {what} in {', '.join(map(str, paths))}")
    return found


def _sources(card: ModelCard, paths: list[Path]) -> Iterator[tuple[str, ImageSamples | TableSamples]]:
    if card.table is None:
        images = read_images(paths)
        for fault in images.faults:
            print(f"skipped {fault.name}: {fault.reason}", file=sys.stderr)
        yield "", images
        return
    for path in paths:
        rows = read_rows(path, card.table)
        for fault in rows.faults:
            print(f"{path}: {fault.name}: {fault.reason}", file=sys.stderr)
        yield f"{path}: ", rows
