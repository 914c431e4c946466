"""What there is: of which kind somebody's data are, whose, and what they look like."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from client.data.arrays import npz_says_sites
from client.data.draft import draft_schema
from client.data.files import SPLITS
from client.data.samples import FileSamples, ImageSamples, Samples, Undecodable
from client.data.site import OWN
from client.data.sources import discover_classes, open_source
from client.data.tables import SITE, read_columns
from client.identity import Identity, cache_folder
from common.config import DataSettings, SettingsError
from common.foreign import Unusable, read_csv
from common.table import Table

Kind = Literal["folder", "manifest", "npz", "table"]

LABELS = ("class", "label", "target", "y")
_GROUPS = ("group", "patient", "patient_id", "subject")
_LOOKED_AT = 64  # images that are opened to see their sizes


@dataclass(frozen=True)
class Inventory:
    """Somebody's data.

    Attributes
    ----------
    path, kind
        Where and what they are.
    classes, counts
        Names of the classes, and samples of each.
    sites
        Samples of each site, where the data say whose they are; empty: they do not.
    groups
        How many groups (patients) there are; 0: the data name none.
    faults
        How many files or columns cannot be used as they are.
    side
        Of images: the median of their shorter sides in pixels; 0: a table.
    grey
        Of images: whether none of those looked at has colours.
    table
        The drafted schema of a table.
    """

    path: Path
    kind: Kind
    classes: tuple[str, ...]
    counts: tuple[int, ...]
    sites: dict[str, int]
    groups: int
    faults: int
    side: int = 0
    grey: bool = False
    table: Table | None = None

    @property
    def samples(self) -> int:
        """How many can be used."""
        return sum(self.counts)


def take(path: Path) -> Inventory:
    """Look at a folder, manifest, `.npz` or table, or raise saying what it would have to be."""
    path = path.expanduser().absolute()
    if not path.exists():
        raise SettingsError(f"{path} does not exist")
    kind = _kind(path)
    table = _draft(path) if kind == "table" else None
    by_site = _has_sites(path, kind)
    data = DataSettings(source=kind, path=str(path), table=table)
    classes = discover_classes(data, by_site=by_site)
    if len(classes) < 2:
        raise SettingsError(
            f"{path} shows {len(classes)} class{'es' * (len(classes) != 1)} ({', '.join(classes) or 'none'}); expected "
            "is a folder with a sub-folder for each class, or a folder for each site with such sub-folders; "
            "docs/data.md has all forms"
        )
    place = cache_folder(Identity("000", None, (0, 1), None, in_engine=True), "")
    samples = open_source(data, None, classes, place, by_site=by_site)
    if not len(samples):
        reasons = "; ".join(f"{fault.name} {fault.reason}" for fault in samples.faults[:3])
        raise SettingsError(f"{path} holds nothing that can be used: {reasons}")
    side, grey = _looks(samples)
    return Inventory(
        path,
        kind,
        classes,
        tuple(np.bincount(samples.labels, minlength=len(classes)).tolist()),
        dict(sorted(Counter(samples.sites.tolist()).items())) if by_site and samples.sites is not None else {},
        0 if samples.groups is None else len(np.unique(samples.groups)),
        len(samples.faults),
        side,
        grey,
        table,
    )


def scheme(found: Inventory) -> str:
    """How such data are dealt out in a simulation."""
    return OWN if found.sites else "dirichlet"


def _kind(path: Path) -> Kind:
    if path.is_dir():
        return "folder"
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return "npz"
    if suffix == ".parquet":
        return "table"
    if suffix == ".csv":
        return "manifest" if {"path", "label"} <= set(_header(path)) else "table"
    raise SettingsError(f"{path} is neither a folder nor a .csv, .parquet or .npz file")


def _header(path: Path) -> list[str]:
    try:
        _, header = next(read_csv(path), (0, []))
    except (OSError, Unusable) as error:
        raise SettingsError(f"cannot read {path}: {error}") from None
    return [cell.strip().lower() for cell in header]


def _draft(path: Path) -> Table:
    cells = read_columns(path)
    label = next((name for name in cells if name.lower() in LABELS), list(cells)[-1] if cells else "")
    group = next((name for name in cells if name.lower() in _GROUPS), "")
    split = "split" if "split" in cells else ""
    table = draft_schema(cells, label, group=group, split=split, drop=[SITE] if SITE in cells else [])
    return table.model_copy(update={"correlations": ()})


def _has_sites(path: Path, kind: Kind) -> bool:
    match kind:
        case "folder":
            return _holds_sites(path)
        case "npz":
            return npz_says_sites(path)
        case "manifest":
            return SITE in _header(path)
    return SITE in read_columns(path)


def _holds_sites(root: Path) -> bool:
    """Whether the sub-folders are sites and not classes: then the same names are found in several of them."""
    children = [child for child in root.iterdir() if child.is_dir() and not child.name.startswith(".")]
    inside = [_folders(child) for child in children]
    if len(children) < 2 or not all(inside) or {child.name for child in children} <= SPLITS.keys():
        return False
    if any(child.is_file() and not child.name.startswith(".") for folder in children for child in folder.iterdir()):
        return False
    shared = Counter(name for names in inside for name in names)
    return max(shared.values()) > len(children) / 2


def _folders(root: Path) -> set[str]:
    return {child.name for child in root.iterdir() if child.is_dir() and not child.name.startswith(".")}


def _looks(samples: Samples) -> tuple[int, bool]:
    """The median of the shorter sides of some images, and whether none of them has colours."""
    if not isinstance(samples, ImageSamples):
        return 0, False
    sides, grey = [], True
    for position in np.linspace(0, len(samples) - 1, min(_LOOKED_AT, len(samples))).astype(int).tolist():
        try:
            image = samples.original(position)
        except (Undecodable, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            continue
        sides.append(min(image.size))
        pixels = np.asarray(image)
        grey = grey and (pixels.ndim == 2 or not np.ptp(pixels.astype(np.int16), axis=2).any())
    if not sides:
        what = "image files" if isinstance(samples, FileSamples) else "images"
        raise SettingsError(f"none of the {what} that were opened can be read")
    return int(np.median(sides)), grey
