"""Sources made of image files: a folder with one sub-folder per class, and a CSV manifest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from client.data.samples import TEST, TRAIN, UNSPECIFIED, Fault, FileSamples
from common.config import SettingsError
from common.foreign import Unusable, read_csv

_EXTENSIONS = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".gif", ".webp", ".pgm", ".ppm", ".pnm", ".pbm", ".jp2"}
)
SPLITS = {
    "train": TRAIN,
    "training": TRAIN,
    "val": TEST,
    "valid": TEST,
    "validation": TEST,
    "test": TEST,
    "testing": TEST,
}


@dataclass(frozen=True)
class _Entry:
    """A file that a source lists.

    `name` is the source's own word for it; `group` is None if the source has no groups and empty if this one has none,
    and then it is called by its `line`.
    """

    name: str
    path: Path
    label: int
    split: int = UNSPECIFIED
    group: str | None = None
    line: int = 0
    site: str = ""


def class_index(name: str, known: Mapping[str, int], where: str) -> int:
    """Return the index of a class, or raise naming the class, where it was met and what is agreed."""
    if name not in known:
        raise SettingsError(
            f"{where}: class {name!r} is not in the agreed class list ({', '.join(known)}); "
            "rename it, leave it out, or have it added to data.classes"
        )
    return known[name]


def read_folder(root: Path, classes: Mapping[str, int], *, by_site: bool = False) -> FileSamples:
    """List `root`/<class>/**/<image>, or `root`/{train,val,test}/<class>/**/<image>, whose split is then a hint.

    `classes` maps a folder's name to the index of its class. `by_site`: all that is in a folder for each site.
    """
    entries: list[_Entry] = []
    faults: list[Fault] = []
    for home, site in _homes(root, by_site=by_site):
        for folder, split in _class_parents(home, classes):
            for child in _visible(folder):
                if not child.is_dir():
                    faults.append(Fault(child.relative_to(root).as_posix(), "is not in the folder of a class"))
                    continue
                label = class_index(child.name, classes, f"folder {child}")
                entries += (
                    _Entry(path.relative_to(root).as_posix(), path, label, split, site=site) for path in _below(child)
                )
    return _checked(root, entries, faults)


def read_images(paths: Sequence[Path]) -> FileSamples:
    """List image files, and all below folders, that nobody has labelled; each is called as it was given."""
    entries: list[_Entry] = []
    faults: list[Fault] = []
    for path in dict.fromkeys(paths):
        if not path.exists():
            faults.append(Fault(str(path), "does not exist"))
            continue
        found = _below(path) if path.is_dir() else [path]
        entries += (_Entry(str(file), file, label=0) for file in found)
    return _checked(Path(), entries, faults)


def folder_classes(root: Path, *, by_site: bool = False) -> tuple[str, ...]:
    """Return the names of the class folders, sorted."""
    parents = (folder for home, _ in _homes(root, by_site=by_site) for folder, _ in _class_parents(home, {}))
    return tuple(sorted({child.name for folder in parents for child in _visible(folder) if child.is_dir()}))


def _homes(root: Path, *, by_site: bool) -> list[tuple[Path, str]]:
    """Where class folders are, and whose they are."""
    return [(child, child.name) for child in _visible(root) if child.is_dir()] if by_site else [(root, "")]


def read_manifest(path: Path, classes: Mapping[str, int]) -> FileSamples:
    """Read a CSV file with the columns path, label and optionally split and group.

    Paths are absolute or relative to the manifest. A row without a group is a group of its own.
    """
    entries: list[_Entry] = []
    faults: list[Fault] = []
    seen: set[Path] = set()
    for number, row in _rows(path):
        name = row["path"]
        if not name or not row["label"]:
            faults.append(Fault(f"line {number}", "has no path" if not name else "has no label"))
            continue
        where = f"{path}, line {number}"
        label = class_index(row["label"], classes, where)
        wish = row.get("split", "").lower()
        if wish and wish not in SPLITS:
            raise SettingsError(f"{where}: split {wish!r} is not one of {', '.join(SPLITS)}")
        file = path.parent / name
        if file in seen:
            # Listed twice, an image could be trained on and tested on.
            faults.append(Fault(name, f"is listed again in line {number}"))
            continue
        seen.add(file)
        entries.append(
            _Entry(name, file, label, SPLITS.get(wish, UNSPECIFIED), row.get("group"), number, row.get("site", ""))
        )
    return _checked(path.parent, entries, faults)


def manifest_classes(path: Path) -> tuple[str, ...]:
    """Return the labels of a manifest, sorted."""
    return tuple(sorted({row["label"] for _, row in _rows(path)} - {""}))


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line number, cells by lower-case column name) of a CSV file, stripped of blanks around values."""
    try:
        rows = read_csv(path)
        _, header = next(rows, (0, []))
        columns = [cell.strip().lower() for cell in header]
        if not {"path", "label"} <= set(columns):
            found = ",".join(columns)
            raise SettingsError(
                f"{path} must start with the header path,label[,split][,group][,site], not with {found!r}"
            )
        for line, cells in rows:
            padded = [cell.strip() for cell in cells] + [""] * (len(columns) - len(cells))
            yield line, dict(zip(columns, padded, strict=False))
    except (OSError, Unusable) as error:
        raise SettingsError(f"cannot read the manifest {path}: {error}") from None


def _class_parents(root: Path, classes: Mapping[str, int]) -> list[tuple[Path, int]]:
    """Return the folders that hold class folders, each with the split it stands for."""
    folders = [child for child in _visible(root) if child.is_dir()]
    names = {folder.name for folder in folders}
    # A class may be called "train" as well, but then it has other neighbours or is in the agreed list.
    if "train" in names and names <= SPLITS.keys() and not names & classes.keys():
        return [(folder, SPLITS[folder.name]) for folder in folders]
    return [(root, UNSPECIFIED)]


def _visible(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if not child.name.startswith("."))


def _below(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder, except hidden ones and those in hidden folders."""
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(parent, name) for name in files if not name.startswith("."))


def _checked(root: Path, entries: Iterable[_Entry], faults: list[Fault]) -> FileSamples:
    """Keep the files that can be opened; sorted by name, so that the order is the same on every file system."""
    usable: list[_Entry] = []
    # With the root, because equal names, sizes and times do occur at two sites of one machine, as in images built
    # with all times set to zero, and one must never see the other's pixels.
    place = str(root.resolve())
    digest = hashlib.sha256(place.encode())
    stamps: list[str] = []
    for entry in sorted(entries, key=lambda entry: entry.name):
        size, time, reason = _inspect(entry.path)
        if reason:
            faults.append(Fault(entry.name, reason))
            continue
        usable.append(entry)
        mark = f"\x1e{entry.name}\x1f{size}\x1f{time}"
        digest.update(mark.encode())
        stamps.append(hashlib.sha256(f"{place}{mark}".encode()).hexdigest()[:32])
    groups = [entry.group or f"line {entry.line}" for entry in usable if entry.group is not None]
    return FileSamples(
        labels=np.array([entry.label for entry in usable], np.int64),
        groups=np.array(groups, np.str_) if groups else None,
        splits=np.array([entry.split for entry in usable], np.int8),
        digest=digest.hexdigest(),
        faults=tuple(faults),
        paths=tuple(entry.path for entry in usable),
        names=tuple(entry.name for entry in usable),
        stamps=tuple(stamps),
        # Lines are renumbered when others are added, files are not renamed.
        loners=tuple(entry.group == "" for entry in usable),
        sites=np.array([entry.site for entry in usable], np.str_) if any(entry.site for entry in usable) else None,
    )


def _inspect(path: Path) -> tuple[int, int, str]:
    """Return size in bytes, time of change in nanoseconds, and why the file cannot be an image (else "")."""
    if path.suffix.lower() not in _EXTENSIONS:
        return 0, 0, "is not an image by its name"
    try:
        status = path.stat()
    except OSError as error:
        return 0, 0, error.strerror or "cannot be found"
    except ValueError:
        return 0, 0, "has a name that no file can have"
    if not path.is_file():
        return 0, 0, "is not a file"
    if not os.access(path, os.R_OK):
        return 0, 0, "may not be read by this user"
    return status.st_size, status.st_mtime_ns, "" if status.st_size else "is empty"
