"""A message as one file, for sites without a network: the same records, carried by hand.

A bundle is a ZIP archive without compression: `manifest.json` (what it is, the scalars, and the SHA-256 of the arrays),
`arrays.safetensors`, and `signature` over the manifest if it is signed. Like everything foreign it is checked before it
is used; what the records say is then checked by `common.wire`, as if they had come over the network.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import zipfile
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray
from safetensors.numpy import save

from common import wire
from common.foreign import Unusable, named_faults, parse_json, parse_tensors
from common.site_name import is_site_name
from common.wire.records import BESIDE_ARRAYS

FORMAT = "coterie bundle 1"
_MANIFEST, _ARRAYS, _SIGNATURE = "manifest.json", "arrays.safetensors", "signature"
_LARGEST_MANIFEST = BESIDE_ARRAYS
_LONGEST_HEADER = 1_000_000  # bytes, of the arrays
_LARGEST_SIGNATURE = 1_000
# The same file every time: archives would else hold the hour they were made.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_KINDS: dict[str, type[ConfigRecord] | type[MetricRecord]] = {"config": ConfigRecord, "metrics": MetricRecord}

Sign = Callable[[bytes], bytes]
# Given the name of the site, the manifest and the signature, if any: raises `InvalidBundle` if it objects.
Verify = Callable[[str, bytes, bytes | None], None]


class InvalidBundle(Unusable):
    """A file that is not a usable bundle; the message says why."""


def write_bundle(path: Path, kind: str, site: str, content: RecordDict, sign: Sign | None = None) -> int:
    """Write a message as a file that is there whole or not at all; return its bytes.

    `kind` says what it is ("collaboration", "answer"), `site` whose it is.
    """
    arrays: dict[str, NDArray[Any]] = {}
    records: dict[str, dict[str, Any]] = {}
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            arrays |= {f"{name}/{key}": array for key, array in wire.unpack_arrays(record).items()}
        else:
            label = "config" if isinstance(record, ConfigRecord) else "metrics"
            records[name] = {"kind": label, "values": dict(record)}
    body = save(arrays)
    manifest = json.dumps(
        {
            "format": FORMAT,
            "kind": kind,
            "site": site,
            "sha256": hashlib.sha256(body).hexdigest(),
            "arrays": {name: [str(array.dtype), list(array.shape)] for name, array in arrays.items()},
            "records": records,
        },
        indent=1,
        allow_nan=False,
    ).encode()
    parts = {_MANIFEST: manifest, _ARRAYS: body}
    if sign is not None:
        parts[_SIGNATURE] = sign(manifest)
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, part in parts.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), part)
    _appear(path, packed.getvalue())
    return len(packed.getvalue())


def read_bundle(path: Path, kind: str, *, limit_mb: int, verify: Verify | None = None) -> tuple[str, RecordDict]:
    """Read a bundle of a kind; return the name of the site and the message."""
    try:
        if path.stat().st_size > limit_mb * 1_000_000 + _LARGEST_MANIFEST:
            raise InvalidBundle(f"it is larger than {limit_mb} MB (round.max_message_mb)")
        with named_faults():
            parts = _parts(path)
            manifest = parse_json(parts[_MANIFEST])
    except InvalidBundle:
        raise
    except (OSError, Unusable) as error:
        raise InvalidBundle(f"it cannot be read: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InvalidBundle(f"it is not a {FORMAT!r}")
    if manifest.get("kind") != kind:
        raise InvalidBundle(f"it holds a {wire.plain_text(manifest.get('kind'))!r}, not a {kind!r}")
    site = manifest.get("site")
    if not isinstance(site, str) or not is_site_name(site):
        raise InvalidBundle("its site has no proper name")
    if verify is not None:
        verify(site, parts[_MANIFEST], parts.get(_SIGNATURE))
    if hashlib.sha256(parts[_ARRAYS]).hexdigest() != manifest.get("sha256"):
        raise InvalidBundle("its checksum is wrong: it was damaged or changed on the way")
    return site, _content(manifest.get("records"), parts[_ARRAYS])


def _parts(path: Path) -> dict[str, bytes]:
    largest = {_MANIFEST: _LARGEST_MANIFEST, _SIGNATURE: _LARGEST_SIGNATURE, _ARRAYS: path.stat().st_size}
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        names = [entry.filename for entry in entries]
        if sorted(names) not in ([_ARRAYS, _MANIFEST], [_ARRAYS, _MANIFEST, _SIGNATURE]):
            raise InvalidBundle(f"it holds {', '.join(wire.plain_text(name) for name in names[:5]) or 'nothing'}")
        for entry in entries:
            # Stored as they are, so that a small file cannot unfold into a huge one.
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > largest[entry.filename]:
                raise InvalidBundle(f"its {entry.filename} is compressed or too large")
        return {entry.filename: archive.read(entry) for entry in entries}


def _content(records: object, body: bytes) -> RecordDict:
    content = RecordDict()
    try:
        arrays: dict[str, dict[str, NDArray[Any]]] = {}
        for name, array in parse_tensors(body, _LONGEST_HEADER).items():
            record, _, key = name.partition("/")
            arrays.setdefault(record, {})[key] = array
        if not isinstance(records, dict):
            raise InvalidBundle("its records are not a table")
        for name, record in records.items():
            if not isinstance(record, dict) or not isinstance(record.get("values"), dict):
                raise InvalidBundle(f"its record {wire.plain_text(name)} is not a table")
            content[name] = _KINDS[record["kind"]](record["values"])
        for name, found in arrays.items():
            content[name] = wire.pack_arrays(found)
    except InvalidBundle:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidBundle(f"its records cannot be read: {error}") from None
    return content


def _appear(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
