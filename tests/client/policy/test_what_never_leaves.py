"""What the docs say never leaves a site: no image, no embedding of one, no file name, no path, no patient."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, RecordDict
from PIL import Image

from client.data.files import read_images
from client.embeddings import embeddings
from client.encoder import load_encoder
from common.config import parse
from tests.client.policy.test_attacks import SETTINGS, Site
from tests.support.federation import write_digits
from tests.support.medical import write_dicom

# All that is answered by default, and what is refused there.
KINDS = (
    "query.hello", "query.signature", "query.mean", "query.subspace", "query.path", "query.head", "train", "evaluate",
    "query.keep", "query.personalise", "query.collaboration", "query.whole_path",
)  # fmt: skip


class Generous(Site):
    """It is sent a model with everything that is made from one."""

    with_model = ("train", "evaluate", "query.keep", "query.personalise", "query.path", "query.head")


def words_of(content: RecordDict) -> Iterator[bytes]:
    """Everything in an answer, as bytes."""
    for name, record in content.items():
        yield name.encode()
        if isinstance(record, ArrayRecord):
            yield from (array.data for array in record.values())
        else:
            yield repr(dict(record)).encode()


@pytest.fixture
def site(tmp_path: Path) -> Generous:
    write_digits(tmp_path / "data", (0, 1), count=20)
    for number, path in enumerate(sorted((tmp_path / "data").rglob("*.png"))):
        path.rename(path.with_name(f"mueller-{number:03d}.png"))
    (tmp_path / "data" / "0" / "schmidt-broken.png").write_bytes(b"no image")
    values = np.arange(64, dtype=np.int16).reshape(8, 8)
    write_dicom(tmp_path / "data" / "1" / "schmidt.dcm", values, PatientID="Musterfrau^Eva", BurnedInAnnotation="YES")
    return Generous(tmp_path, tmp_path / "data", models=str(tmp_path / "models"), memory=str(tmp_path / "memory"))


def test_no_image_no_name_and_no_embedding_of_one_is_in_any_answer(site: Generous, tmp_path: Path) -> None:
    asked = SETTINGS | {"personalise": "finetune"}
    answers = {kind: site.ask(kind, asked, round_number=1) for kind in KINDS}
    declined = {kind for kind, content in answers.items() if set(content) == {"refusal"}}
    assert declined == {"query.collaboration", "query.whole_path"}
    # A model of the site's own stays there: what it is worth is all that is told.
    assert list((tmp_path / "models").rglob("model.safetensors"))
    assert set(answers["query.personalise"]) == {"statistics", "evaluation"}
    told = b"\x1f".join(word for content in answers.values() for word in words_of(content))
    assert len(told) > 10_000
    for word in (b"mueller", b"schmidt", b"Musterfrau", b"patient", str(tmp_path).encode()):
        assert word not in told, word
    paths = sorted((tmp_path / "data").rglob("mueller-*.png"))
    settings = parse(SETTINGS).for_site()
    samples = read_images(paths)
    encoder = load_encoder(settings.encoder, settings.seed)
    rows = embeddings(encoder, samples, np.arange(len(paths)), tmp_path / "elsewhere", 32)
    for place, path in enumerate(paths):
        pixels = samples.image(place, settings.data.image_size, 1)
        scaled = pixels.astype(np.float32) / 255
        kinds = (path.read_bytes(), np.asarray(Image.open(path)), pixels, scaled, 2 * scaled - 1, rows[place])
        for seen in kinds:
            raw = seen if isinstance(seen, bytes) else np.ascontiguousarray(seen).tobytes()
            # A part of it would be enough: names, and the first numbers, may be alike by chance.
            assert raw[len(raw) // 2 : len(raw) // 2 + 24] not in told or not any(raw[len(raw) // 2 :][:24])
