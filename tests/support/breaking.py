"""Ways to break a file: faults that a disk makes, and such as somebody makes with intent."""

from __future__ import annotations

import io
import json
import random
import re
import struct
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

# What is put in the place of a value.
HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**63, 2**64, 10**30, -(10**30), 0.5, -0.0, 1e308, -1e308, 1e-320, "", "\0", "a\0b",
    "x" * 5_000, "\ud800", "../../etc/passwd", "NaN", "Infinity", [], {}, [[]], [0] * 50, [1e308] * 4, {"": {}}, ["\0"],
)  # fmt: skip
TOKENS = (
    b"NaN", b"Infinity", b"-Infinity", b"nan", b"inf", b"1e999", b"-1e999", b"9" * 5_000, b"1" * 400, b"null", b"true",
    b"-1", b"0", b"[" * 3_000, b"{" * 3_000, b'{"a":' * 2_000, b"[[" + b"]]", b"\x00", b"\xff\xfe", b'"', b"'", b"\n",
    b"a." * 2_000, b"1979-05-27T07:32:00Z", b"(", b"2**63", b"18446744073709551616", b"\xed\xa0\x80",
)  # fmt: skip


def broken(rng: random.Random, content: bytes) -> bytes:
    """Content with one to four faults."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        content = rng.choice(_FAULTS)(rng, content)
    return content


def _flip(rng: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 3, 20))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut(rng: random.Random, content: bytes) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _insert(rng: random.Random, content: bytes) -> bytes:
    place = rng.randrange(len(content) + 1)
    return content[:place] + rng.choice(TOKENS) + content[place:]


def _swap(rng: random.Random, content: bytes) -> bytes:
    a, b, c = sorted(rng.randrange(len(content) + 1) for _ in range(3))
    return content[:a] + content[b:c] + content[a:b] + content[c:]


def _repeat(rng: random.Random, content: bytes) -> bytes:
    a, b = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return content[:b] + content[a:b] * rng.choice((1, 2, 5)) + content[b:]


def _number(rng: random.Random, content: bytes) -> bytes:
    """Another number, or something else, where a number is."""
    numbers = list(re.finditer(rb"\d+(?:\.\d+)?", content))
    if not numbers:
        return _insert(rng, content)
    found = rng.choice(numbers)
    return content[: found.start()] + rng.choice(TOKENS) + content[found.end() :]


def _word(rng: random.Random, content: bytes) -> bytes:
    """A 32- or 64-bit number beyond all bounds, somewhere."""
    packed = struct.pack(rng.choice(("<I", ">I")), rng.choice((0, 2**31, 2**32 - 1))) * rng.choice((1, 2))
    place = rng.randrange(len(content) + 1)
    return content[:place] + packed + content[place + len(packed) :]


_FAULTS = (_flip, _cut, _insert, _swap, _repeat, _number, _word)


def other_value(rng: random.Random, value: Any) -> Any:
    """A structure with something else in the place of one of its parts."""
    places = list(_places(value))
    if not places:
        return rng.choice(HOSTILE)
    container, key = rng.choice(places)
    kind = rng.randrange(5)
    if kind == 0:
        del container[key]
    elif kind == 1:
        container[key] = [container[key]]
    elif kind == 2 and isinstance(container, dict):
        container[str(rng.choice(HOSTILE))[:40]] = container[key]
    else:
        container[key] = rng.choice(HOSTILE)
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _places(value[key])


def in_json(rng: random.Random, content: bytes) -> bytes:
    """JSON with another value somewhere."""
    return json.dumps(other_value(rng, json.loads(content))).encode()


def in_lines(rng: random.Random, content: bytes) -> bytes:
    """Lines of JSON, one of them with another value."""
    lines = content.splitlines()
    place = rng.randrange(len(lines))
    lines[place] = in_json(rng, lines[place])
    return b"\n".join(lines) + b"\n"


def in_tensors(rng: random.Random, content: bytes) -> bytes:
    """Tensors with another header, whose length is right."""
    size = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + size]
    header = in_json(rng, header) if rng.randrange(2) else broken(rng, header)
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def in_archive(inside: Callable[[random.Random, str, bytes], bytes]) -> Callable[[random.Random, bytes], bytes]:
    """An archive that is whole, with another member."""

    def change(rng: random.Random, content: bytes) -> bytes:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        name = rng.choice(sorted(parts))
        parts[name] = inside(rng, name, parts[name])
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
            for each, part in parts.items():
                archive.writestr(each, part)
        return packed.getvalue()

    return change


_HEADERS: tuple[tuple[bytes, ...], ...] = (
    (
        b"'<f8'",
        b"'|O'",
        b"'<U9'",
        b"'<f2'",
        b"'>i8'",
        b"'<c16'",
        b"'|V8'",
        b"[('a','<f4')]",
        b"None",
        b"(",
    ),
    (b"False", b"True", b"1", b"'"),
    (
        b"(3, 3)",
        b"()",
        b"(10000000000,)",
        b"(-1,)",
        b"(1" + b",1" * 70 + b")",
        b"((2,),)",
        b"(0, 5)",
        b"(2",
    ),
)


def in_array(rng: random.Random, content: bytes) -> bytes:
    """A .npy file with another header, of the same length where that can be."""
    header = b"{'descr': %s, 'fortran_order': %s, 'shape': %s, }" % tuple(map(rng.choice, _HEADERS))
    body = header.ljust(rng.choice((118, len(header), 9_000)))
    version = rng.choice((b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x09"))
    length = len(body).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + length + body + content[-72:]


def in_model(rng: random.Random, content: bytes) -> bytes:
    """A model with another value in its card, or other tensors."""
    if rng.randrange(2):
        return in_tensors(rng, content)
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    notes = header["__metadata__"]
    key = rng.choice(sorted(notes))
    notes[key] = in_json(rng, notes[key].encode()).decode()
    changed = json.dumps(header).encode()
    return len(changed).to_bytes(8, "little") + changed + content[8 + size :]
