"""The cache of embeddings: nothing is computed twice, and nothing that is damaged is trusted."""

from __future__ import annotations

import logging
import multiprocessing
import os
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from client import embeddings as module
from client.embeddings import embeddings

COUNT, DIMENSION = 50, 5


@dataclass
class CountedSamples:
    """Sample i is an image of the colour i; remembers which rows were decoded."""

    digest: str = "colours"
    labels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(COUNT, np.int64))
    decoded: list[int] = field(default_factory=list)

    def images(self, index: NDArray[np.int64], size: int, channels: int) -> NDArray[np.uint8]:
        assert channels == 3
        self.decoded += index.tolist()
        return np.broadcast_to(index.astype(np.uint8)[:, None, None, None], (len(index), size, size, 3))


def colour_encoder(identity: str = "e") -> Any:
    """Embeds an image of colour c as (c + 1) * (1, 2, 3, 4, 5)."""

    def embed(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        return expected(images[:, 0, 0, 0].astype(np.int64))

    return SimpleNamespace(name=identity, identity=identity, size=4, dimension=DIMENSION, block=1, embed=embed)


def expected(index: NDArray[np.int64]) -> NDArray[np.float32]:
    return np.outer(index + 1, np.arange(1, DIMENSION + 1)).astype(np.float32)


def run(
    cache: Path, index: NDArray[np.int64], encoder: Any = None, samples: CountedSamples | None = None, batch: int = 4
) -> list[int]:
    """Check the result and return the rows that had to be embedded."""
    samples = samples or CountedSamples()
    result = embeddings(encoder or colour_encoder(), samples, index, cache, batch)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, expected(index))
    return samples.decoded


def files(cache: Path) -> tuple[Path, Path]:
    folder = cache / "embeddings"
    (rows,), (mask,) = folder.glob("*.npy"), folder.glob("*.mask")
    return rows, mask


ALL = np.arange(COUNT)


def test_only_missing_rows_are_embedded(tmp_path: Path) -> None:
    assert run(tmp_path, np.array([7, 3, 9])) == [7, 3, 9]
    assert run(tmp_path, np.array([9, 4, 3, 5])) == [4, 5]
    assert run(tmp_path, np.array([3, 3, 9, 4])) == []
    assert sorted(run(tmp_path, ALL)) == sorted(set(range(COUNT)) - {3, 4, 5, 7, 9})
    assert run(tmp_path, ALL[::-1]) == []
    assert run(tmp_path, ALL[:0]) == []


def test_the_file_is_a_plain_npy_file(tmp_path: Path) -> None:
    run(tmp_path, ALL)
    np.testing.assert_array_equal(np.load(files(tmp_path)[0]), expected(ALL))


def test_batches_are_whole_blocks(tmp_path: Path) -> None:
    encoder, sizes = colour_encoder(), []

    def embed(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        sizes.append(len(images))
        return expected(images[:, 0, 0, 0].astype(np.int64))

    encoder.block, encoder.embed = 8, embed
    run(tmp_path, ALL, encoder, batch=10)
    assert sizes == [16, 16, 16, 2]


def test_other_encoders_and_other_samples_have_other_files(tmp_path: Path) -> None:
    assert run(tmp_path, ALL) == ALL.tolist()
    assert run(tmp_path, ALL, colour_encoder("other")) == ALL.tolist()
    assert run(tmp_path, ALL, samples=CountedSamples("other")) == ALL.tolist()
    assert run(tmp_path, ALL, colour_encoder("other")) == []


@pytest.mark.parametrize(
    "damage", ["cut", "longer", "header", "shape", "type", "empty", "gone", "mask cut", "mask gone"]
)
def test_damaged_files_are_rebuilt(tmp_path: Path, damage: str) -> None:
    run(tmp_path, ALL)
    rows, mask = files(tmp_path)
    content = rows.read_bytes()
    match damage:
        case "cut":
            rows.write_bytes(content[:-1])
        case "longer":
            rows.write_bytes(content + b"0")
        case "header":
            rows.write_bytes(b"?" + content[1:])
        case "shape":
            np.save(rows, np.ones((DIMENSION, COUNT), np.float32))
        case "type":
            np.save(rows, np.ones((COUNT, DIMENSION), np.int32))
        case "empty":
            rows.write_bytes(b"")
        case "gone":
            rows.unlink()
        case "mask cut":
            mask.write_bytes(b"\x01" * (COUNT - 1))
        case "mask gone":
            mask.unlink()
    assert run(tmp_path, ALL) == ALL.tolist()
    assert run(tmp_path, ALL) == []


def test_rows_that_are_not_finite_and_marks_that_are_not_one_are_not_trusted(tmp_path: Path) -> None:
    run(tmp_path, ALL)
    rows, mask = files(tmp_path)
    table = np.lib.format.open_memmap(rows, mode="r+")
    table[3, 2], table[8, 0] = np.nan, np.inf
    table.flush()
    marks = bytearray(mask.read_bytes())
    marks[11] = 7
    mask.write_bytes(marks)
    assert run(tmp_path, ALL) == [3, 8, 11]
    assert run(tmp_path, ALL) == []


def test_rows_of_an_interrupted_run_are_kept(tmp_path: Path) -> None:
    encoder, calls = colour_encoder(), []

    def interrupted(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        calls.append(len(images))
        if len(calls) == 3:
            raise KeyboardInterrupt
        embedded: NDArray[np.float32] = colour_encoder().embed(images)
        return embedded

    encoder.embed = interrupted
    with pytest.raises(KeyboardInterrupt):
        embeddings(encoder, CountedSamples(), ALL, tmp_path, 4)
    assert run(tmp_path, ALL) == list(range(8, COUNT))


def test_a_row_is_marked_only_after_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def power_cut(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", power_cut)
    run(tmp_path, ALL)
    assert files(tmp_path)[1].read_bytes() == bytes(COUNT)


def test_without_a_usable_folder_everything_is_computed_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    module._warn.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert run(blocked, ALL) == ALL.tolist()
        assert run(blocked, ALL, colour_encoder("other")) == ALL.tolist()
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        f"embeddings are not cached under {blocked}"
    ]


def test_a_full_disk_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with caplog.at_level(logging.WARNING):
        assert run(tmp_path, ALL) == ALL.tolist()
    assert "No space left" in caplog.text


def test_a_sample_that_cannot_be_decoded_is_the_callers_problem(tmp_path: Path) -> None:
    class Broken(CountedSamples):
        def images(self, index: NDArray[np.int64], size: int, channels: int) -> NDArray[np.uint8]:
            raise ValueError("scan 7 is damaged")

    with pytest.raises(ValueError, match="scan 7"):
        embeddings(colour_encoder(), Broken(), ALL, tmp_path, 4)


def _write_share(cache: Path, barrier: Any, share: int) -> None:
    for repeat in range(10):
        barrier.wait()
        run(cache / str(repeat), ALL[share::2])


def test_processes_write_the_same_file_at_the_same_time(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    barrier = fork.Barrier(2)
    writers = [fork.Process(target=_write_share, args=(tmp_path, barrier, share)) for share in (0, 1)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
    assert [writer.exitcode for writer in writers] == [0, 0]
    for repeat in range(10):
        assert run(tmp_path / str(repeat), ALL) == []
