"""From settings to samples: which source it is, and whether it is there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from client.data.arrays import npz_classes, read_digits, read_npz
from client.data.dicom import Patients
from client.data.files import folder_classes, manifest_classes, read_folder, read_manifest
from client.data.public import read_public
from client.data.samples import Samples
from client.data.tables import read_table_samples
from common.classes import KNOWN, agreed_classes
from common.config import DataSettings, SettingsError


class DataAway(SettingsError):
    """A source that is not where it should be; it may come back, where a disk is mounted."""


def open_source(
    data: DataSettings,
    path: Path | None,
    classes: tuple[str, ...],
    cache: Path,
    *,
    by_site: bool = False,
    secret: Path | None = None,
) -> Samples:
    """List a source's samples. No image is decoded yet.

    Parameters
    ----------
    data
        Names the source, unless the site has a path of its own.
    path
        The site's own folder, .csv manifest, .npz file or table; what it is says its kind, where the run is not on
        tables. None: the source `data` names.
    classes
        The agreed class list; a label is an index into it.
    cache
        Where a public data set is downloaded to when `data.path` is empty.
    by_site
        The source holds the data of several sites, and says whose each sample is.
    secret
        File with what turns patients into words at a site of its own; it is made when it is needed.
    """
    samples = _read(data, path, classes, cache, by_site=by_site, patients=Patients(secret))
    if by_site and (samples.sites is None or "" in samples.sites):
        raise SettingsError(
            "partition.scheme = 'own' needs data that say whose they are: a folder for each site with class folders in "
            "it, a column `site` of a manifest or table, or an array `site` of a .npz; none of them may be empty"
        )
    return samples if path is None else replace(samples, place=path.absolute())


def _read(
    data: DataSettings,
    path: Path | None,
    classes: tuple[str, ...],
    cache: Path,
    *,
    by_site: bool,
    patients: Patients,
) -> Samples:
    known = {name: index for index, name in enumerate(classes)}
    if path is None and data.source == "demo":
        _require_digits(classes)
        return read_digits()
    if path is None and data.source == "torchvision":
        return read_public(data.name, Path(data.path) if data.path else cache / "torchvision", known)
    kind, place = _locate(data, path)
    if data.table is not None:
        return read_table_samples(place, data.table, known, by_site=by_site)
    if kind == "folder":
        return read_folder(place, known, by_site=by_site, patients=patients)
    return read_manifest(place, known, patients=patients) if kind == "manifest" else read_npz(place, known)


def discover_classes(data: DataSettings, *, by_site: bool = False) -> tuple[str, ...]:
    """Return the configured or well-known class list, or else the one the data themselves show."""
    if data.classes or data.source in ("demo", "torchvision", "table"):
        return agreed_classes(data)
    kind, place = _locate(data, None)
    if kind == "folder":
        return folder_classes(place, by_site=by_site)
    return manifest_classes(place) if kind == "manifest" else npz_classes(place)


def _locate(data: DataSettings, path: Path | None) -> tuple[str, Path]:
    """Return kind and place of a source on disk, or raise saying what to set."""
    if path is not None:
        place, setting = path, "data-path in the node config of this site"
    elif data.path:
        place, setting = Path(data.path).expanduser(), "data.path"
    else:
        raise SettingsError(f"data.path is empty: data.source = {data.source!r} needs to know where the data are")
    if not place.exists():
        raise DataAway(f"{place} does not exist: correct {setting}")
    if data.source == "table":
        if place.is_dir() or place.suffix.lower() not in (".csv", ".parquet"):
            raise SettingsError(
                f"{place} is not a table (.csv or .parquet), which this run is about: correct {setting}"
            )
        return "table", place
    kind = "folder" if place.is_dir() else {".csv": "manifest", ".npz": "npz"}.get(place.suffix.lower())
    if kind is None:
        raise SettingsError(f"{place} is neither a folder nor a .csv or .npz file: correct {setting}")
    if path is None and kind != data.source:
        raise SettingsError(f"{place} is a {kind}, but data.source = {data.source!r}: correct one of them")
    return kind, place


def _require_digits(classes: tuple[str, ...]) -> None:
    if classes != KNOWN["demo"]:
        raise SettingsError(
            f"data.classes = {', '.join(classes)}, but data.source = 'demo' holds the digits 0 to 9: "
            "leave data.classes empty, or name a source"
        )
