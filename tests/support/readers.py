"""Every reader of what others made: something valid for it, and the errors that its callers expect."""

from __future__ import annotations

import hashlib
import io
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from PIL import Image

from benchmarks.invented import Plot, write_run
from cli.deployment import authority
from cli.deployment.start_file import ServerFile, SiteFile, read_start_file
from cli.suites.suite import read_suite
from client.data.arrays import npz_classes, read_npz
from client.data.files import read_images, read_manifest
from client.data.samples import Undecodable
from client.data.tables import read_columns, read_table_samples
from client.memory import Memory
from client.policy.ledger import Entry, Ledger, LedgerBroken
from client.prediction import _read_shares, open_model
from client.pretrained import Asker
from client.secure.credentials import SiteCredentials
from client.secure.participant import Distrust, begin
from client.secure.session_file import SessionFile
from client.weights_file import read_weights
from common import wire
from common.bundle import InvalidBundle, read_bundle, write_bundle
from common.config import Config, SettingsError, load, parse, parse_override
from common.drift import InvalidScenario, read_scenario
from common.extras import Network
from common.head_path import HeadPath
from common.kept_model import describe, save_model
from common.models import build, get_state
from common.secure.advert import Advert, InvalidAdvert, statement_of_keys
from common.secure.terms import Terms
from common.signature import Signature
from common.table import InvalidTable, read_table
from server.history import checkpoint
from server.report import main_part, read_run
from tests.support.breaking import broken, in_archive, in_array, in_json, in_lines, in_model, in_tensors
from tests.support.medical import write_dicom, write_nifti

CLASSES = ("0", "1", "2", "3")
KNOWN = {name: place for place, name in enumerate(CLASSES)}
TABLE = {
    "label": "kind",
    "classes": list(CLASSES),
    "columns": [{"name": "a", "minimum": 0, "maximum": 2}, {"name": "b", "categories": ["x", "y"]}],
}


@dataclass(frozen=True)
class Reader:
    """One way in: what it takes, and which errors say that something is wrong with it."""

    name: str
    valid: bytes
    read: Callable[[Path, bytes], object]
    named: tuple[type[Exception], ...]
    # Changes that get through a container's checksums.
    inside: Callable[[random.Random, bytes], bytes] | None = None
    cost: int = 1  # how many inputs of a plain one it is worth


def readers(folder: Path) -> list[Reader]:
    """Every way in, with something valid for it; `folder` is where they write."""
    return [*_settings(folder), *_data(folder), *_messages(folder), *_sums(folder), *_kept(folder)]


def _file(name: str, read: Callable[[Path], object]) -> Callable[[Path, bytes], object]:
    def at(folder: Path, content: bytes) -> object:
        path = folder / name
        path.write_bytes(content)
        return read(path)

    return at


def _settings(folder: Path) -> Iterator[Reader]:
    config = b'method = "fmcl"\nsites = 3\n[data]\nclasses = ["0", "1"]\n[train]\nlr = 0.05\n[cluster]\nk = 2\n'
    yield Reader("configuration", config, _file("c.toml", load), (SettingsError,))
    yield Reader("--set", b"train.lr = 0.5", lambda _, raw: parse_override(raw.decode("latin-1")), (SettingsError,))
    drift = b'[[drift]]\nkind = "swap"\nat = 0.4\nsites = 0.2\n'
    yield Reader("drift", drift, _file("d.toml", lambda path: read_scenario(str(path))), (InvalidScenario,))
    inline = json.dumps([{"kind": "swap", "at": 0.4, "sites": 0.2}]).encode()
    yield Reader(
        "drift as JSON",
        inline,
        lambda _, raw: read_scenario("[" + raw.decode("latin-1")[1:]),
        (InvalidScenario,),
        in_json,
    )
    schema = json.dumps(TABLE).encode()
    yield Reader(
        "schema as JSON", schema, lambda _, raw: read_table("{" + raw.decode("latin-1")[1:]), (InvalidTable,), in_json
    )
    toml = b'label = "kind"\nclasses = ["0", "1"]\n[[columns]]\nname = "a"\nminimum = 0\nmaximum = 1\n'
    yield Reader("schema", toml, _file("t.toml", lambda path: read_table(str(path))), (InvalidTable,))
    site = b'server = "localhost:9092"\nsite = "a"\ndata = ""\ncache = ""\nport = 9094\n[policy]\nrounds = 5\n'
    yield Reader("site.toml", site, _file("s.toml", lambda path: read_start_file(path, SiteFile)), (SettingsError,))
    server = b'address = "localhost:9092"\nlisten = "0.0.0.0:9092"\nnames = ["localhost"]\n'
    yield Reader(
        "server.toml", server, _file("v.toml", lambda path: read_start_file(path, ServerFile)), (SettingsError,)
    )
    suite = b'title = "t"\nseeds = [0]\n[[data]]\nname = "d"\nconfig = "c.toml"\n[[method]]\nname = "fmcl"\n'
    yield Reader("suite", suite, _file("u.toml", read_suite), (SettingsError,))
    shares = b"0 = 1\n1 = 2\n2 = 3\n3 = 4.5\n"
    yield Reader("shares", shares, _file("h.toml", lambda path: _read_shares(path, CLASSES)), (SettingsError,))
    key = authority.new_key()
    public = authority.public_openssh(key.public_key(), "a")
    yield Reader("public key", public, _file("k.pub", authority.read_public_key), (SettingsError,))
    now = authority.present()
    signed = authority.pem(authority.self_signed_authority(key, now))
    yield Reader(
        "certificate", signed, _file("c.crt", lambda path: authority.read_authority(path, now)), (SettingsError,)
    )


def _data(folder: Path) -> Iterator[Reader]:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (6, 5, 4), np.uint8)
    for packed in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        packed(file, x=pixels, y=np.array([0, 1, 2, 3, 0, 1]), group=np.array(list("abcabc")))
        yield Reader(
            f".npz by {packed.__name__}",
            file.getvalue(),
            _file("x.npz", lambda path: (npz_classes(path), read_npz(path, KNOWN))),
            (SettingsError,),
            in_archive(
                lambda random, name, part: in_array(random, part) if random.randrange(2) else broken(random, part)
            ),
            3,
        )
    manifest = (
        b"path,label,split,group,frame,x,y,width,height\na.png,0,train,p,,,,,\nb.png,1,test,q,2,0,1,5,6\nc,2,,,,,,,\n"
    )
    yield Reader("manifest", manifest, _file("m.csv", lambda path: read_manifest(path, KNOWN)), (SettingsError,))
    table = read_table(json.dumps(TABLE))
    assert table is not None
    cells = b"a,b,kind\n0.5,x,0\n1.5,y,1\n,,2\nnan,z,3\n"
    yield Reader("table", cells, _file("t.csv", lambda path: read_table_samples(path, table, KNOWN)), (SettingsError,))
    yield from _parquet()
    yield from _medical(folder)
    image = Image.fromarray(rng.integers(0, 255, (9, 7, 3), np.uint8))
    for form in ("PNG", "JPEG", "BMP", "TIFF", "GIF", "WEBP", "PPM", "JPEG2000"):
        file = io.BytesIO()
        image.save(file, form)

        def decode(path: Path) -> object:
            return read_images([path]).image(0, 8, 1) if len(read_images([path])) else None

        yield Reader(form, file.getvalue(), _file("i.png", decode), (Undecodable,), cost=2)


def _medical(folder: Path) -> Iterator[Reader]:
    """DICOM of one frame and of several, and volumes; whose a file is, is read when it is listed."""
    values = np.arange(60, dtype=np.int16).reshape(6, 10)
    window = {"WindowCenter": 30, "WindowWidth": 50, "PatientID": "x", "BurnedInAnnotation": "YES"}
    volume = np.arange(60, dtype=np.int16).reshape(5, 4, 3)

    def decode(path: Path) -> object:
        samples = read_images([path])
        return samples.image(0, 8, 1) if len(samples) else None

    for path, kind in (
        (write_dicom(folder / "one.dcm", values, **window), "DICOM"),
        (write_dicom(folder / "many.dcm", volume.transpose(2, 0, 1).copy(), frames=3), "DICOM, many frames"),
        (write_nifti(folder / "v.nii", volume), "NIfTI"),
        (write_nifti(folder / "v.nii.gz", volume), "NIfTI, packed"),
    ):
        name = "f" + "".join(path.suffixes)
        yield Reader(kind, path.read_bytes(), _file(name, decode), (Undecodable,), cost=4)


def _parquet() -> Iterator[Reader]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return
    file = io.BytesIO()
    parquet.write_table(pyarrow.table({"a": [0.5, None], "b": ["x", "y"], "kind": ["0", "1"]}), file)
    yield Reader("Parquet", file.getvalue(), _file("t.parquet", read_columns), (SettingsError,), cost=3)


def _messages(folder: Path) -> Iterator[Reader]:
    """What arrives packed; the records around it Flower has parsed."""
    card = wire.SiteCard("a", 5, 2, (2, 3, 0, 0), 1, ("x.png: cut",))
    signature = Signature(np.array([0, 1]), np.ones((2, 3), np.float32), np.array([0.4, 0.6]), np.array([0.5, 1.5]))
    prints = {"signature": signature, "path": HeadPath(np.ones((5, 7), np.float32))}
    for kind, fingerprint in prints.items():
        content = wire.pack_introduction(wire.Introduction(card, fingerprint, 0.5))
        (key,) = (name for name, record in content.items() if isinstance(record, ArrayRecord))

        def introduce(_: Path, raw: bytes, content: Any = content, key: str = key, kind: str = kind) -> object:
            content[key] = ArrayRecord({"safetensors": Array("uint8", (len(raw),), "safetensors", raw)})
            return wire.unpack_introduction(content, classes=4, fingerprint=kind, limit_mb=1)

        packed = next(iter(content[key].values())).data
        yield Reader(f"introduction by {kind}", packed, introduce, (wire.WireError,), in_tensors)
    update = wire.pack_update(wire.Update({"w": np.ones((2, 3), np.float32), "n": np.array(7)}, 5, 0.25, 1.0))

    def read_update(_: Path, raw: bytes) -> object:
        update["model"] = ArrayRecord({"safetensors": Array("uint8", (len(raw),), "safetensors", raw)})
        return wire.unpack_update(update, declared={}, network=Network({}, 4), limit_mb=1)

    yield Reader("update", update["model"]["safetensors"].data, read_update, (wire.WireError,), in_tensors)
    before = {"w": np.ones((2, 3), np.float32)}
    short, _ = wire.shorten({"w": np.full((2, 3), 1.5, np.float32)}, before, {}, "int8")

    def lengthen(_: Path, raw: bytes) -> object:
        content = RecordDict({"model": ArrayRecord({"safetensors": Array("uint8", (len(raw),), "safetensors", raw)})})
        return wire.lengthen(wire.unpack_model(content, "int8"), before, "int8")

    packed = wire.pack_arrays(short)["safetensors"].data
    yield Reader("update in int8", packed, lengthen, (wire.WireError,), in_tensors)
    task = wire.pack_task(wire.Task(Config().for_site(), 3, 20))
    (place,) = (
        (name, key)
        for name, record in task.items()
        if isinstance(record, ConfigRecord)
        for key in record
        if key == "settings"
    )

    def read_task(_: Path, raw: bytes) -> object:
        task[place[0]][place[1]] = raw.decode("latin-1")  # type: ignore[index]
        return wire.unpack_task(task)

    settings = str(task[place[0]][place[1]]).encode()  # type: ignore[index]
    yield Reader("settings of a task", settings, read_task, (wire.WireError, SettingsError), in_json)
    path = folder / "valid.bundle"
    write_bundle(path, "answer", "a", wire.pack_introduction(wire.Introduction(card, signature, 0.5)))

    def manifest(random: random.Random, name: str, part: bytes) -> bytes:
        return in_json(random, part) if name.endswith("json") else in_tensors(random, part)

    def read(path: Path) -> object:
        return read_bundle(path, "answer", limit_mb=1)

    yield Reader("bundle", path.read_bytes(), _file("b.bundle", read), (InvalidBundle,), in_archive(manifest), 2)


def _sums(folder: Path) -> Iterator[Reader]:
    """What sites of a secure sum tell each other, through the coordinator."""
    key, own, now = authority.new_key(), authority.new_key(), authority.present()
    issuer = authority.self_signed_authority(key, now)
    certificate = authority.site_certificate(key, issuer, own.public_key(), "a")
    site = SiteCredentials("a", own, certificate, [issuer])
    terms = Terms(("a", "b", "c", "d"), 10, 0, bytes(32))
    session, advert = begin(terms, bytes(32), "a", site, bytes)

    def keys(_: Path, raw: bytes) -> object:
        # Those of a, as b sees them.
        read = Advert.from_bytes(raw)
        return site.check("a", read.certificate, read.signature, statement_of_keys(bytes(32), 0, read))

    yield Reader("keys of a secure sum", advert, keys, (InvalidAdvert, Distrust))
    letters = wire.pack_lettered(wire.Lettered({0: b"abc", 2: b"de"}, 0.5))

    def read_letters(_: Path, raw: bytes) -> object:
        letters["letters"] = ArrayRecord({"safetensors": Array("uint8", (len(raw),), "safetensors", raw)})
        return wire.unpack_lettered(letters, 4)

    packed = next(iter(letters["letters"].values())).data  # type: ignore[union-attr]
    yield Reader("letters of a secure sum", packed, read_letters, (wire.WireError,), in_tensors)
    with SessionFile(folder).held() as held:
        held.keep(session)

    def recall(path: Path) -> object:
        with SessionFile(path.parent).held() as held:
            return held.recall(bytes(32))

    kept = (folder / "secure-sum.json").read_bytes()
    yield Reader("session of a secure sum", kept, _file("secure-sum.json", recall), (Distrust,), in_json)


def _kept(folder: Path) -> Iterator[Reader]:
    tensors = safetensors.numpy.save({"a": np.ones((2, 3), np.float32)}, {"run": "r", "rule": "x", "round": "1"})

    def remember(where: Path, raw: bytes) -> object:
        (where / "round-0000000001.safetensors").write_bytes(raw)
        return Memory(where, "r", "x").recall(1)

    yield Reader("memory", tensors, remember, (), in_tensors)
    yield from _models(folder)
    yield from _weights()
    checkpoints = checkpoint.Checkpoints(folder / "checkpoints")
    checkpoints.save(1, {"a": np.ones(3), "b": {"c": [1, 2.5, "x"]}})
    (path,) = (folder / "checkpoints").iterdir()
    whole = path.read_bytes()
    trailer = checkpoint._TRAILER

    def sealed(where: Path, raw: bytes) -> object:
        target = where / "c.checkpoint"
        target.write_bytes(raw + hashlib.sha256(raw).digest() + whole[-(trailer - 32) :])
        return checkpoint.read(target)

    yield Reader("checkpoint", whole[:-trailer], sealed, (checkpoint.InvalidCheckpoint,), in_tensors)
    run = write_run(folder / "run", Plot(sites=4, rounds=2))
    kept = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}

    def read_with(name: str) -> Callable[[Path, bytes], object]:
        def at(_: Path, raw: bytes) -> object:
            (run / name).write_bytes(raw)
            try:
                # What was read must also fit together: the page has it all.
                return main_part([read_run(run)])
            finally:
                (run / name).write_bytes(kept[name])

        return at

    for name, inside, cost in (
        ("events.jsonl", in_lines, 20),
        ("run.json", in_json, 20),
        ("distances.npy", in_array, 20),
        ("confusions.json", in_json, 20),
        ("scores.json", in_json, 20),
    ):
        if name in kept:
            yield Reader(name, kept[name], read_with(name), (SettingsError,), inside, cost)
    ledger = Ledger(folder / "ledger.jsonl")
    with ledger.held() as held:
        for what in ("asked", "sent"):
            held.append(Entry(at=1.5, what=what, run="7", kind="train", bytes=9))
    yield Reader(
        "ledger",
        ledger.path.read_bytes(),
        _file("l.jsonl", lambda path: Ledger(path).entries()),
        (LedgerBroken,),
        in_lines,
    )


def _weights() -> Iterator[Reader]:
    """Weights of an encoder, as the two kinds of files that there are."""
    asker = Asker("encoder.name", "encoder.weights", SettingsError)
    tensors = {"a.weight": torch.ones(2, 3), "a.bias": torch.arange(4)}
    archive, packed = io.BytesIO(), safetensors.torch.save(tensors)
    torch.save({"state_dict": tensors}, archive)

    def member(random: random.Random, name: str, part: bytes) -> bytes:
        return broken(random, part)

    for name, content, inside in (
        ("w.pth", archive.getvalue(), in_archive(member)),
        ("w.safetensors", packed, in_tensors),
    ):
        yield Reader(
            f"weights, {name}",
            content,
            _file(name, lambda path: read_weights(path, asker)),
            (SettingsError,),
            inside,
            2,
        )


def _models(folder: Path) -> Iterator[Reader]:
    settings = parse(
        {"data.classes": CLASSES, "data.image_size": 8, "data.channels": 1, "train.model": "lenet5"}
    ).for_site()
    path = folder / "valid.safetensors"
    model = build("lenet5", classes=4, channels=1, image_size=8, seed=0)
    save_model(path, get_state(model), describe(settings, CLASSES, 0, 3, None))
    yield Reader("model", path.read_bytes(), _file("m.safetensors", open_model), (SettingsError,), in_model, 10)
