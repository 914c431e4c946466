"""Sources made of image files: a folder with one sub-folder per class, and a CSV manifest."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from client.data import dicom
from client.data.dicom import Patients
from client.data.opening import WHOLE, Part, why_not
from client.data.samples import TEST, TRAIN, UNSPECIFIED, Fault, FileSamples
from common.config import SettingsError
from common.foreign import Unusable, read_csv

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
    part: Part = WHOLE


def class_index(name: str, known: Mapping[str, int], where: str) -> int:
    """Return the index of a class, or raise naming the class, where it was met and what is agreed."""
    if name not in known:
        raise SettingsError(
            f"{where}: class {name!r} is not in the agreed class list ({', '.join(known)}); "
            "rename it, leave it out, or have it added to data.classes"
        )
    return known[name]


def read_folder(
    root: Path, classes: Mapping[str, int], *, by_site: bool = False, patients: Patients | None = None
) -> FileSamples:
    """List `root`/<class>/**/<image>, or `root`/{train,val,test}/<class>/**/<image>, whose split is then a hint.

    `classes` maps a folder's name to the index of its class. `by_site`: all that is in a folder for each site.
    `patients` names those that DICOM files are of.
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
    return _checked(root, entries, faults, patients or Patients())


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
    return _checked(Path(), entries, faults, Patients())


def folder_classes(root: Path, *, by_site: bool = False) -> tuple[str, ...]:
    """Return the names of the class folders, sorted."""
    parents = (folder for home, _ in _homes(root, by_site=by_site) for folder, _ in _class_parents(home, {}))
    return tuple(sorted({child.name for folder in parents for child in _visible(folder) if child.is_dir()}))


def _homes(root: Path, *, by_site: bool) -> list[tuple[Path, str]]:
    """Where class folders are, and whose they are."""
    return [(child, child.name) for child in _visible(root) if child.is_dir()] if by_site else [(root, "")]


def read_manifest(path: Path, classes: Mapping[str, int], *, patients: Patients | None = None) -> FileSamples:
    """Read a CSV file with the columns path and label, and optionally split, group, site and those of a part.

    Paths are absolute or relative to the manifest. A row without a group is a group of its own, unless its file says of
    whom it is or has other rows as well. `frame` is one of a volume, counted from 1; `x`, `y`, `width` and `height` are
    a region in pixels, such as a tile of a slide.
    """
    entries: list[_Entry] = []
    faults: list[Fault] = []
    seen: set[tuple[Path, Part]] = set()
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
        file, part = path.parent / name, _part(row, where)
        if (file, part) in seen:
            # Listed twice, an image could be trained on and tested on.
            faults.append(Fault(f"{name}{part}", f"is listed again in line {number}"))
            continue
        seen.add((file, part))
        split, group, site = SPLITS.get(wish, UNSPECIFIED), row.get("group"), row.get("site", "")
        entries.append(_Entry(f"{name}{part}", file, label, split, group, number, site, part))
    return _checked(path.parent, entries, faults, patients or Patients())


def _part(row: Mapping[str, str], where: str) -> Part:
    """What of its file a row speaks of."""
    frame = _whole(row, "frame", where, least=1)
    region = [_whole(row, name, where, least=least) for name, least in _REGION]
    if any(value is None for value in region) and any(value is not None for value in region):
        raise SettingsError(f"{where}: a region has x, y, width and height")
    left, top, width, height = (value or 0 for value in region)
    return Part(frame or 0, (left, top, width, height) if width else None)


_REGION = (("x", 0), ("y", 0), ("width", 1), ("height", 1))
_LARGEST = 10_000_000


def _whole(row: Mapping[str, str], name: str, where: str, *, least: int) -> int | None:
    text = row.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 8 and least <= int(text) <= _LARGEST):
        raise SettingsError(f"{where}: {name} = {text[:20]!r} is not a whole number from {least} to {_LARGEST}")
    return int(text)


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
                f"{path} must start with the header path,label[,split][,group][,site][,frame][,x,y,width,height], "
                f"not with {found!r}"
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


def _checked(root: Path, entries: Iterable[_Entry], faults: list[Fault], patients: Patients) -> FileSamples:
    """Keep the files that can be opened; sorted by name, so that the order is the same on every file system."""
    usable: list[_Entry] = []
    # With the root, because equal names, sizes and times do occur at two sites of one machine, as in images built
    # with all times set to zero, and one must never see the other's pixels.
    place = str(root.resolve())
    digest = hashlib.sha256(place.encode())
    stamps: list[str] = []
    whose: list[str] = []
    burnt_in: set[Path] = set()
    for entry in sorted(entries, key=lambda entry: entry.name):
        size, time, reason = _inspect(entry.path)
        if reason:
            faults.append(Fault(entry.name, reason))
            continue
        usable.append(entry)
        mark = f"\x1e{entry.name}\x1f{size}\x1f{time}"
        digest.update(mark.encode())
        stamps.append(hashlib.sha256(f"{place}{mark}".encode()).hexdigest()[:32])
        about = dicom.about(entry.path, size, time) if dicom.may_be(entry.path) else dicom.About()
        whose.append(patients.word(about.patient) if about.patient else "")
        burnt_in |= {entry.path} if about.burnt_in else set()
    rows = Counter(entry.path for entry in usable)
    # What the source says, what the file says, and what the parts of one file have in common.
    known = [
        entry.group or patient or (f"file {entry.path}" if rows[entry.path] > 1 else "")
        for entry, patient in zip(usable, whose, strict=True)
    ]
    grouped = any(known) or any(entry.group is not None for entry in usable)
    groups = [
        group or (f"line {entry.line}" if entry.line else f"alone {entry.name}")
        for group, entry in zip(known, usable, strict=True)
    ]
    return FileSamples(
        labels=np.array([entry.label for entry in usable], np.int64),
        groups=np.array(groups, np.str_) if grouped else None,
        splits=np.array([entry.split for entry in usable], np.int8),
        digest=digest.hexdigest(),
        faults=tuple(faults),
        paths=tuple(entry.path for entry in usable),
        names=tuple(entry.name for entry in usable),
        stamps=tuple(stamps),
        # Lines are renumbered when others are added, files are not renamed.
        loners=tuple(grouped and not group for group in known),
        parts=tuple(entry.part for entry in usable),
        sites=np.array([entry.site for entry in usable], np.str_) if any(entry.site for entry in usable) else None,
        notes=_notes(len(burnt_in)),
    )


def _notes(burnt_in: int) -> tuple[str, ...]:
    """What is said of words in images: it may be a name."""
    if not burnt_in:
        return ()
    return (f"{burnt_in} DICOM file{'s' * (burnt_in > 1)} with text burnt into the pixels (BurnedInAnnotation)",)


def _inspect(path: Path) -> tuple[int, int, str]:
    """Return size in bytes, time of change in nanoseconds, and why the file cannot be an image (else "")."""
    if reason := why_not(path):
        return 0, 0, reason
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
