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
from client.data.alterations import Alteration, altered_samples
from client.data.arrays import array_samples
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


class ChangingSamples(CountedSamples):
    """What a folder holds at one moment: a colour per sample; a stamp is a colour's, as if files had names by it."""

    def __init__(self, colours: list[int], place: str = "scans", nameless: tuple[int, ...] = ()) -> None:
        super().__init__(str(colours), np.zeros(len(colours), np.int64))
        self.colours, self.place, self.nameless = np.array(colours), Path(place), nameless

    def stamp(self, position: int) -> str:
        colour = int(self.colours[position])
        return "" if colour in self.nameless else f"stamp {colour}"

    def images(self, index: NDArray[np.int64], size: int, channels: int) -> NDArray[np.uint8]:
        return super().images(self.colours[index], size, channels)


class TestChange:
    def run(self, cache: Path, samples: ChangingSamples, encoder: Any = None) -> list[int]:
        """Check the result for all samples, and return the colours that had to be embedded."""
        everything = np.arange(len(samples.colours))
        result = embeddings(encoder or colour_encoder(), samples, everything, cache, 4)
        np.testing.assert_array_equal(result, expected(samples.colours))
        return samples.decoded

    def kept(self, cache: Path) -> list[str]:
        return sorted(path.suffix for path in (cache / "embeddings").iterdir())

    def test_only_new_and_changed_samples_are_embedded_and_the_last_state_stays(self, tmp_path: Path) -> None:
        assert self.run(tmp_path, ChangingSamples([5, 3, 8])) == [5, 3, 8]
        assert self.run(tmp_path, ChangingSamples([7, 3, 8, 5])) == [7]
        assert self.run(tmp_path, ChangingSamples([8, 7])) == []
        assert self.run(tmp_path, ChangingSamples([8, 7])) == []
        # What was removed and comes back is new.
        assert self.run(tmp_path, ChangingSamples([3, 8, 9])) == [3, 9]
        assert self.kept(tmp_path) == [".lock", ".mask", ".npy", ".stamps"]

    def test_rows_that_nobody_asked_for_are_not_taken_over(self, tmp_path: Path) -> None:
        embeddings(colour_encoder(), ChangingSamples([5, 3, 8]), np.array([1]), tmp_path, 4)
        assert self.run(tmp_path, ChangingSamples([4, 5, 3, 8])) == [4, 5, 8]

    def test_places_and_encoders_do_not_disturb_each_other(self, tmp_path: Path) -> None:
        for place, name in (("scans", "e"), ("scans", "f"), ("other", "e")):
            assert self.run(tmp_path, ChangingSamples([5, 3], place), colour_encoder(name)) == [5, 3]
        for place, name in (("scans", "e"), ("scans", "f"), ("other", "e")):
            assert self.run(tmp_path, ChangingSamples([5, 3, 6], place), colour_encoder(name)) == [6]
        assert self.kept(tmp_path) == [".lock"] * 3 + [".mask"] * 3 + [".npy"] * 3 + [".stamps"] * 3

    def test_samples_without_a_stamp_are_embedded_again(self, tmp_path: Path) -> None:
        self.run(tmp_path, ChangingSamples([5, 3, 8], nameless=(3, 8)))
        assert self.run(tmp_path, ChangingSamples([5, 3, 8, 9], nameless=(3, 8))) == [3, 8, 9]

    @pytest.mark.parametrize("damage", ["cut", "no mask", "no stamps", "fewer stamps", "no text", "not finite"])
    def test_of_a_damaged_state_nothing_is_taken_over(self, tmp_path: Path, damage: str) -> None:
        self.run(tmp_path, ChangingSamples([5, 3, 8]))
        rows, mask = files(tmp_path)
        stamps = rows.with_suffix(".stamps")
        match damage:
            case "cut":
                rows.write_bytes(rows.read_bytes()[:-1])
            case "no mask":
                mask.unlink()
            case "no stamps":
                stamps.unlink()
            case "fewer stamps":
                stamps.write_text("stamp 3\nstamp 8")
            case "no text":
                stamps.write_bytes(b"\xff")
            case "not finite":
                np.save(rows, np.full((3, DIMENSION), np.nan, np.float32))
        assert self.run(tmp_path, ChangingSamples([3, 8, 5])) == [3, 8, 5]
        assert self.run(tmp_path, ChangingSamples([3, 8, 5])) == []

    def test_what_a_killed_process_left_behind_is_removed(self, tmp_path: Path) -> None:
        self.run(tmp_path, ChangingSamples([5, 3]))
        rows, _ = files(tmp_path)
        rows.with_suffix(".npy.new").touch()
        self.run(tmp_path, ChangingSamples([5]))
        assert self.kept(tmp_path) == [".lock", ".mask", ".npy", ".stamps"]

    def test_whoever_has_the_last_state_open_goes_on(self, tmp_path: Path) -> None:
        encoder = colour_encoder()
        seen: list[Any] = []

        def overtaken(images: NDArray[np.uint8]) -> NDArray[np.float32]:
            if not seen:
                seen.append(self.run(tmp_path, ChangingSamples([9, 5])))
            return expected(images[:, 0, 0, 0].astype(np.int64))

        encoder.embed = overtaken
        assert self.run(tmp_path, ChangingSamples([5, 3, 8]), encoder) == [5, 3, 8]
        assert seen == [[9, 5]]
        assert self.run(tmp_path, ChangingSamples([9, 5])) == []


def test_altered_samples_share_files_by_what_was_done_to_them(tmp_path: Path) -> None:
    pixels = np.broadcast_to(np.arange(20, dtype=np.uint8)[:, None, None], (20, 4, 4))
    plain = array_samples(pixels, np.zeros(20, np.int64), np.zeros(20, np.int8))
    index = np.array([4, 0, 9, 7])
    encoder, embedded = colour_encoder(), []

    def embed(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        colours = images[:, 0, 0, 0].astype(np.int64)
        embedded.extend(colours.tolist())
        return expected(colours)

    encoder.embed = embed
    # As a gradual drift goes: more and more samples are altered.
    for inverted, new in (([], [4, 0, 9, 7]), ([0], [255]), ([0, 7], [248]), ([0, 4, 7, 9, 11], [251, 246])):
        del embedded[:]
        drift = (Alteration("invert", 0.5, np.array(inverted, np.int64)),) if inverted else ()
        rows = embeddings(encoder, altered_samples(plain, drift), index, tmp_path, 4)
        np.testing.assert_array_equal(rows, expected(np.where(np.isin(index, inverted), 255 - index, index)))
        assert embedded == new
    assert len(list((tmp_path / "embeddings").glob("*.npy"))) == 2


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
