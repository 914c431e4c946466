"""What a site has: folders, manifests, arrays; odd images; damaged files; the cache of decoded images."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from client.data import NoUsableData, SiteData, Undecodable, discover_classes, load_site, open_source
from client.data import site as site_module
from client.data.decoded import decode
from client.data.files import read_folder, read_manifest
from client.data.pixels import to_uint8
from client.data.samples import FileSamples, ImageSamples, Samples
from client.identity import Identity
from common.config import DataSettings, SettingsError, SiteSettings

CLASSES = ("cat", "dog")
KNOWN = {"cat": 0, "dog": 1}


def save(path: Path, value: Any = 100, size: tuple[int, int] = (12, 10), mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode in ("L", "I;16", "P") or isinstance(value, tuple) else (value,) * 3).save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of five images each; the i-th has the value 10·i."""
    root = tmp_path / "scans"
    for position in range(10):
        save(root / CLASSES[position // 5] / f"{position}.png", 10 * position)
    return root


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the name of every file that is decoded."""
    names: list[str] = []
    original = FileSamples.original

    def recorded(self: FileSamples, position: int) -> Image.Image:
        names.append(self.name(position))
        return original(self, position)

    monkeypatch.setattr(FileSamples, "original", recorded)
    return names


def load(own: Path | None, cache: Path, *, name: str = "clinic", **data: Any) -> SiteData:
    # Watched, because these tests change folders and caches under a site.
    options: dict[str, Any] = {"classes": CLASSES, "image_size": 8, "watch": True} | data
    return load_site(Identity(name, own, None, cache), SiteSettings(data=DataSettings(**options)))


def as_images(samples: Samples) -> ImageSamples:
    assert isinstance(samples, ImageSamples)
    return samples


def only(samples: Samples, size: int = 8, channels: int = 3) -> NDArray[np.uint8]:
    assert len(samples) == 1, samples.faults
    return as_images(samples).image(0, size, channels)


class TestFolder:
    def test_classes_are_sub_folders_in_the_agreed_order_and_names_in_a_fixed_one(self, folder: Path) -> None:
        samples = read_folder(folder, {"dog": 0, "cat": 1})
        assert samples.labels.tolist() == [1] * 5 + [0] * 5
        assert samples.name(0) == "cat/0.png"
        assert samples.name(9) == "dog/9.png"
        assert as_images(samples).images(np.array([3, 7]), 8, 1)[:, 0, 0, 0].tolist() == [30, 70]

    def test_train_and_test_folders_become_hints(self, tmp_path: Path) -> None:
        for part, count in (("train", 3), ("val", 2), ("test", 1)):
            for position in range(count):
                save(tmp_path / part / "cat" / f"{position}.png")
        samples = read_folder(tmp_path, KNOWN)
        assert sorted(samples.splits.tolist()) == [0, 0, 0, 1, 1, 1]
        assert discover_classes(DataSettings(source="folder", path=str(tmp_path))) == ("cat",)

    def test_a_class_called_train_is_a_class(self, tmp_path: Path) -> None:
        save(tmp_path / "train" / "a.png")
        save(tmp_path / "test" / "b.png")
        samples = read_folder(tmp_path, {"test": 0, "train": 1})
        assert samples.labels.tolist() == [0, 1]
        assert samples.splits.tolist() == [-1, -1]

    def test_images_may_be_nested_below_a_class(self, tmp_path: Path) -> None:
        save(tmp_path / "dog" / "2021" / "march" / "a.png")
        assert read_folder(tmp_path, KNOWN).name(0) == "dog/2021/march/a.png"

    def test_unknown_class_is_named_with_the_agreed_list(self, folder: Path) -> None:
        save(folder / "wolf" / "a.png")
        with pytest.raises(SettingsError, match=r"class 'wolf' .*\(cat, dog\)"):
            read_folder(folder, KNOWN)

    def test_hidden_things_are_ignored_and_strange_ones_named(self, folder: Path) -> None:
        for name in (".git/config", ".DS_Store", "cat/.thumb.png", "cat/.cache/a.png"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text("x")
        for name in ("cat/notes.txt", "dog/Thumbs.db", "README.md"):
            (folder / name).write_text("x")
        (folder / "dog" / "empty.png").touch()
        (folder / "dog" / "gone.png").symlink_to(folder / "nowhere.png")
        samples = read_folder(folder, KNOWN)
        assert len(samples) == 10
        assert {fault.name: fault.reason for fault in samples.faults} == {
            "README.md": "is not in the folder of a class",
            "cat/notes.txt": "is not an image by its name",
            "dog/Thumbs.db": "is not an image by its name",
            "dog/empty.png": "is empty",
            "dog/gone.png": "No such file or directory",
        }

    def test_missing_class_is_fine(self, tmp_path: Path) -> None:
        save(tmp_path / "dog" / "a.png")
        assert read_folder(tmp_path, KNOWN).labels.tolist() == [1]

    def test_digest_follows_the_files(self, folder: Path) -> None:
        before = read_folder(folder, KNOWN).digest
        assert read_folder(folder, KNOWN).digest == before
        os.utime(folder / "cat" / "0.png", ns=(1, 1))
        assert read_folder(folder, KNOWN).digest != before

    def test_two_sites_with_equal_names_sizes_and_times_have_different_digests(self, tmp_path: Path) -> None:
        for site in ("a", "b"):
            os.utime(save(tmp_path / site / "cat" / "1.bmp", 1 if site == "a" else 2), ns=(0, 0))
        assert read_folder(tmp_path / "a", KNOWN).digest != read_folder(tmp_path / "b", KNOWN).digest


class TestPixels:
    """A file with one flat colour (or two) and what it must become."""

    @pytest.mark.parametrize(("channels", "expected"), [(1, [76]), (3, [255, 0, 0])])
    def test_rgb_becomes_grey_by_luma(self, tmp_path: Path, channels: int, expected: list[int]) -> None:
        save(tmp_path / "cat" / "a.png", (255, 0, 0))
        assert only(read_folder(tmp_path, KNOWN), channels=channels)[4, 4].tolist() == expected

    def test_grey_becomes_rgb_by_repetition(self, tmp_path: Path) -> None:
        save(tmp_path / "cat" / "a.png", 77, mode="L")
        assert only(read_folder(tmp_path, KNOWN))[4, 4].tolist() == [77] * 3

    def test_what_is_transparent_is_black(self, tmp_path: Path) -> None:
        save(tmp_path / "cat" / "a.png", (200, 100, 50, 0), mode="RGBA")
        assert only(read_folder(tmp_path, KNOWN)).max() == 0

    def test_what_is_half_transparent_is_dimmed(self, tmp_path: Path) -> None:
        save(tmp_path / "cat" / "a.png", (200, 128), mode="LA")
        assert only(read_folder(tmp_path, KNOWN), channels=1)[4, 4, 0] == pytest.approx(100, abs=1)

    def test_palette_colours_are_looked_up(self, tmp_path: Path) -> None:
        image = Image.new("P", (9, 9), 1)
        image.putpalette([0, 0, 0, 10, 200, 30])
        (tmp_path / "cat").mkdir()
        image.save(tmp_path / "cat" / "a.png")
        assert only(read_folder(tmp_path, KNOWN))[4, 4].tolist() == [10, 200, 30]

    @pytest.mark.parametrize("suffix", [".png", ".tif"])
    @pytest.mark.parametrize("brightest", [65535, 4000, 200])
    def test_deep_images_are_stretched_between_percentiles(self, tmp_path: Path, suffix: str, brightest: int) -> None:
        values = (np.arange(1000).reshape(20, 50) * brightest // 4000).astype(np.uint16)
        values[19, 49] = brightest  # one glaring pixel of a thousand
        (tmp_path / "cat").mkdir()
        Image.fromarray(values).save(tmp_path / "cat" / f"a{suffix}")
        samples = read_folder(tmp_path, KNOWN)
        found = np.asarray(samples.original(0)).astype(int)
        ordered = np.sort(values.ravel()).astype(float)
        low, high = (
            (ordered[4] + 0.995 * (ordered[5] - ordered[4])),
            (ordered[994] + 0.005 * (ordered[995] - ordered[994])),
        )
        expected = np.clip((values - low) / (high - low), 0, 1) * 255
        assert np.abs(found - expected).max() <= 0.5001
        assert (found.min(), found.max()) == (0, 255)

    def test_a_deep_image_of_one_value_is_black(self, tmp_path: Path) -> None:
        (tmp_path / "cat").mkdir()
        Image.fromarray(np.full((8, 8), 3000, np.uint16)).save(tmp_path / "cat" / "a.png")
        assert only(read_folder(tmp_path, KNOWN)).max() == 0

    def test_photographs_are_turned_upright(self, tmp_path: Path) -> None:
        pixels = np.zeros((8, 8), np.uint8)
        pixels[0] = 255
        exif = Image.Exif()
        exif[0x0112] = 3  # turned by 180 degrees
        (tmp_path / "cat").mkdir()
        Image.fromarray(pixels).save(tmp_path / "cat" / "a.png", exif=exif)
        rows = only(read_folder(tmp_path, KNOWN), channels=1)[:, 0, 0]
        assert rows[7] == 255
        assert rows[:7].max() == 0

    def test_shrinking_averages_instead_of_picking(self, tmp_path: Path) -> None:
        """A fine checkerboard picked pixel by pixel would be black or white; averaged it is grey."""
        board = (np.indices((64, 64)).sum(axis=0) % 2 * 255).astype(np.uint8)
        (tmp_path / "cat").mkdir()
        Image.fromarray(board).save(tmp_path / "cat" / "a.png")
        assert np.abs(only(read_folder(tmp_path, KNOWN)).astype(int) - 127).max() < 10

    def test_values_of_any_type_become_bytes(self) -> None:
        assert to_uint8(np.array([True, False])).tolist() == [255, 0]
        assert to_uint8(np.array([0.0, 0.5, 1.0])).tolist() == [0, 128, 255]
        assert to_uint8(np.array([0.0, 1.5, 255.0])).tolist() == [0, 2, 255]
        assert to_uint8(np.array([0, 1, 255], np.int64)).tolist() == [0, 1, 255]
        for values in ([-1.0], [256.0], [np.nan], [70000]):
            with pytest.raises(ValueError, match="pixels"):
                to_uint8(np.array(values))


class TestDamage:
    def test_damaged_files_are_named_and_never_used(self, folder: Path, cache: Path) -> None:
        photo = save(folder / "cat" / "cut.jpg", size=(64, 64)).read_bytes()
        (folder / "cat" / "cut.jpg").write_bytes(photo[: len(photo) // 2])
        (folder / "cat" / "fake.png").write_text("this is not an image")
        # Pillow could open this one, with one of the rare decoders that must not be reached by a wrong name.
        Image.new("L", (9, 9)).save(folder / "dog" / "disguised.png", format="PCX")
        loaded = load(folder, cache)
        assert {fault.name for fault in loaded.faults} == {"cat/cut.jpg", "cat/fake.png", "dog/disguised.png"}
        assert len(loaded.train) + len(loaded.test) == 10
        used = {loaded.samples.name(int(position)) for position in np.concatenate([loaded.train, loaded.test])}
        assert used == {f"{CLASSES[position // 5]}/{position}.png" for position in range(10)}

    def test_a_file_damaged_after_the_check_is_named(self, folder: Path) -> None:
        samples = read_folder(folder, KNOWN)
        (folder / "dog" / "7.png").write_bytes(b"x")
        with pytest.raises(Undecodable, match=r"dog/7\.png"):
            as_images(samples).images(np.arange(10), 8, 3)

    def test_a_site_without_a_usable_image_says_why(self, tmp_path: Path, cache: Path) -> None:
        (tmp_path / "scans" / "cat").mkdir(parents=True)
        with pytest.raises(NoUsableData, match="site clinic has no usable data: no samples found in"):
            load(tmp_path / "scans", cache)
        for number in range(7):
            (tmp_path / "scans" / "cat" / f"{number}.png").touch()
        with pytest.raises(NoUsableData, match=r"cat/0\.png is empty; .* and 2 more") as caught:
            load(tmp_path / "scans", cache)
        assert len(caught.value.reasons) == 7


class TestManifest:
    def write(self, path: Path, *lines: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines), encoding="utf-8-sig")
        return path

    def test_rows_with_splits_and_groups(self, tmp_path: Path, folder: Path) -> None:
        manifest = self.write(
            tmp_path / "lists" / "all.csv",
            "Path, label, group, split",
            "../scans/cat/0.png,cat,p1,train",
            f"{folder}/dog/9.png,dog,p2,TEST",
            "../scans/dog/8.png,dog,,",
            "",
            "../scans/dog/7.png,dog",
        )
        samples = read_manifest(manifest, KNOWN)
        by_name = {samples.name(row): row for row in range(len(samples))}
        rows = [by_name[f"../scans/{name}"] for name in ("cat/0.png", "dog/8.png", "dog/7.png")]
        rows.append(by_name[f"{folder}/dog/9.png"])
        assert samples.labels[rows].tolist() == [0, 1, 1, 1]
        assert samples.splits[rows].tolist() == [0, -1, -1, 1]
        assert samples.groups is not None
        assert len(set(samples.groups)) == 4
        assert [samples.unit(row) for row in rows] == [
            "group p1", "../scans/dog/8.png", "../scans/dog/7.png", "group p2",
        ]  # fmt: skip
        assert as_images(samples).images(np.array(rows), 8, 1)[:, 0, 0, 0].tolist() == [0, 80, 70, 90]
        assert discover_classes(DataSettings(source="manifest", path=str(manifest))) == CLASSES

    def test_missing_files_repeated_files_and_rows_without_a_label_are_named(
        self, tmp_path: Path, folder: Path
    ) -> None:
        manifest = self.write(
            folder / "list.csv", "path,label", "cat/0.png,cat", "cat/99.png,cat", "cat/1.png,", "cat/0.png,dog"
        )
        samples = read_manifest(manifest, KNOWN)
        assert len(samples) == 1
        assert samples.groups is None
        assert {(fault.name, fault.reason) for fault in samples.faults} == {
            ("cat/99.png", "No such file or directory"),
            ("line 4", "has no label"),
            ("cat/0.png", "is listed again in line 5"),
        }

    @pytest.mark.parametrize(
        ("lines", "message"),
        [
            (["file,label", "a,cat"], "must start with the header"),
            ([], "must start with the header"),
            (["path,label", "a.png,wolf"], r"line 2: class 'wolf' .*\(cat, dog\)"),
            (["path,label,split", "a.png,cat,tset"], "split 'tset' is not one of train"),
        ],
    )
    def test_what_cannot_be_meant_is_an_error(self, tmp_path: Path, lines: list[str], message: str) -> None:
        with pytest.raises(SettingsError, match=message):
            read_manifest(self.write(tmp_path / "list.csv", *lines), KNOWN)

    def test_a_file_that_is_no_text_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "list.csv").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(SettingsError, match="cannot read the manifest"):
            read_manifest(tmp_path / "list.csv", KNOWN)


class TestArrays:
    def write(self, tmp_path: Path, **arrays: Any) -> Path:
        np.savez(tmp_path / "data.npz", **arrays)
        return tmp_path / "data.npz"

    def open(self, path: Path) -> Samples:
        return open_source(DataSettings(), path, CLASSES, path.parent / "cache")

    def test_parts_become_hints(self, tmp_path: Path) -> None:
        x = np.arange(6, dtype=np.uint8)[:, None, None] * np.ones((1, 5, 7), np.uint8)
        path = self.write(
            tmp_path, x_train=x[:4], y_train=[0, 1, 0, 1], x_test=x[4:], y_test=[1, 1],
            group_train=[1, 1, 2, 2], group_test=[3, 4],
        )  # fmt: skip
        samples = self.open(path)
        assert samples.splits.tolist() == [0, 0, 0, 0, 1, 1]
        assert samples.labels.tolist() == [0, 1, 0, 1, 1, 1]
        assert samples.groups is not None
        assert samples.groups.tolist() == ["1", "1", "2", "2", "3", "4"]
        assert as_images(samples).images(np.array([5, 2]), 8, 3)[:, 0, 0].tolist() == [[5] * 3, [2] * 3]

    def test_a_row_is_the_same_wherever_it_stands_and_however_it_is_stored(self, tmp_path: Path) -> None:
        x = np.arange(3, dtype=np.uint8)[:, None, None] * np.ones((1, 8, 8), np.uint8)
        units = [self.open(self.write(tmp_path, x=x, y=[0, 1, 0])).unit(row) for row in range(3)]
        assert len(set(units)) == 3
        # One bright pixel more, and all are scaled by another depth.
        bright = np.full((1, 8, 8, 1), 5000, np.int64)
        moved = self.open(self.write(tmp_path, x=np.concatenate([bright, x[::-1, :, :, None]]), y=[0] * 4))
        assert [moved.unit(row) for row in range(1, 4)] == units[::-1]
        assert as_images(moved).stamp(2) != as_images(self.open(self.write(tmp_path, x=x, y=[0, 1, 0]))).stamp(1)
        grouped = self.open(self.write(tmp_path, x=x, y=[0, 1, 0], group=["p", "q", "p"]))
        assert grouped.unit(0) == grouped.unit(2) != grouped.unit(1)

    def test_labels_may_be_class_names_and_columns(self, tmp_path: Path) -> None:
        x = np.zeros((2, 8, 8, 3), np.float32)
        for y in (["dog", "cat"], np.array([b"dog", b"cat"]), [[1], [0]]):
            assert self.open(self.write(tmp_path, x=x, y=y)).labels.tolist() == [1, 0]

    def test_float_rows_that_are_not_finite_are_named(self, tmp_path: Path) -> None:
        x = np.full((3, 8, 8), 0.5, np.float32)
        x[1, 2, 3] = np.nan
        samples = self.open(self.write(tmp_path, x=x, y=[0, 1, 1]))
        assert samples.labels.tolist() == [0, 1]
        assert samples.name(1) == "sample 2"
        assert [fault.name for fault in samples.faults] == ["sample 1"]
        assert as_images(samples).images(np.array([0]), 8, 1)[0, 0, 0, 0] == 128

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({"x": np.zeros((2, 8, 8)), "z": [0, 1]}, "holds x, z; needed are x and y"),
            ({"x": np.zeros((2, 8, 8, 5)), "y": [0, 1]}, r"x has shape \(2, 8, 8, 5\)"),
            ({"x": np.zeros((2, 3, 8, 8)), "y": [0, 1]}, "channels go last"),
            ({"x": np.zeros((2, 64)), "y": [0, 1]}, r"x has shape \(2, 64\)"),
            ({"x": np.zeros((2, 8, 8)), "y": [0, 1, 1]}, "2 images, 3 labels do not match"),
            ({"x": np.zeros((2, 8, 8)), "y": [0, 1], "group": ["a"]}, "2 images, 2 labels, 1 groups do not match"),
            ({"x": np.zeros((2, 8, 8)), "y": [0, 2]}, r"label 2 is outside 0\.\.1, .*\(cat, dog\)"),
            ({"x": np.zeros((2, 8, 8)), "y": [0, -1]}, "label -1 is outside"),
            ({"x": np.zeros((2, 8, 8)), "y": ["cat", "wolf"]}, "class 'wolf'"),
            ({"x": np.zeros((2, 8, 8)), "y": [0.0, 1.0]}, "y is float64"),
            ({"x": np.full((2, 8, 8), -1.0), "y": [0, 1]}, "negative pixels"),
            ({"x": np.zeros((2, 8, 8)), "y": np.array([0, {}], dtype=object)}, "no pickled objects"),
        ],
    )  # fmt: skip
    def test_what_does_not_fit_is_an_error_that_says_so(
        self, tmp_path: Path, arrays: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(SettingsError, match=message):
            self.open(self.write(tmp_path, **arrays))

    def test_parts_of_different_shape_are_an_error(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, x_train=np.zeros((1, 8, 8)), y_train=[0], x_test=np.zeros((1, 9, 9)), y_test=[0])
        with pytest.raises(SettingsError, match="parts of x do not fit together"):
            self.open(path)

    @pytest.mark.parametrize("content", [b"", b"not a zip file", b"PK\x03\x04 cut"])
    def test_a_file_that_is_no_npz_is_an_error(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "data.npz").write_bytes(content)
        with pytest.raises(SettingsError, match="cannot read"):
            self.open(tmp_path / "data.npz")

    def test_classes_are_discovered(self, tmp_path: Path) -> None:
        for y, expected in (([0, 2], ("0", "1", "2")), (["b", "a"], ("a", "b"))):
            path = self.write(tmp_path, x=np.zeros((2, 8, 8)), y=y)
            assert discover_classes(DataSettings(source="npz", path=str(path))) == expected


class FakeCifar:
    """Looks like torchvision's CIFAR10: ten samples, one of each class, whose value is the class."""

    def __init__(self, root: Path, *, train: bool, download: bool) -> None:
        self.targets = list(range(10)) if train else [9]
        self.data = np.array(self.targets, np.uint8)[:, None, None, None] * np.ones((1, 8, 8, 3), np.uint8)


def offer_cifar(monkeypatch: pytest.MonkeyPatch, maker: Any) -> None:
    """Stand in for torchvision, whose import takes longer than all tests here."""
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(datasets=SimpleNamespace(CIFAR10=maker)))


class TestPublic:
    data = DataSettings(source="torchvision", name="CIFAR10")

    def test_targets_follow_the_agreed_order(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        offer_cifar(monkeypatch, FakeCifar)
        backwards = discover_classes(self.data)[::-1]
        samples = open_source(self.data, None, backwards, tmp_path)
        assert samples.labels.tolist() == [*range(9, -1, -1), 0]
        assert samples.splits.tolist() == [0] * 10 + [1]
        assert as_images(samples).images(np.array([3]), 8, 1).max() == 3

    def test_without_a_network_the_error_says_what_to_do(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def unreachable(*_: Any, **__: Any) -> None:
            raise URLError("no route to host")

        offer_cifar(monkeypatch, unreachable)
        with pytest.raises(SettingsError, match=r"cannot download CIFAR10 into .*no route to host.*set data\.path"):
            open_source(self.data, None, discover_classes(self.data), tmp_path)


class TestPlaces:
    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ({"source": "folder"}, "data.path is empty"),
            ({"source": "folder", "path": "/nowhere/at/all"}, r"does not exist: correct data\.path"),
            ({"source": "npz", "path": "."}, "is a folder, but data.source = 'npz'"),
        ],
    )
    def test_a_source_that_is_not_there(self, tmp_path: Path, data: dict[str, Any], message: str) -> None:
        with pytest.raises(SettingsError, match=message):
            open_source(DataSettings(**data), None, CLASSES, tmp_path)

    def test_a_site_whose_own_path_is_wrong(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="correct data-path in the node config"):
            open_source(DataSettings(), tmp_path / "none", CLASSES, tmp_path)
        (tmp_path / "scans.zip").touch()
        with pytest.raises(SettingsError, match="neither a folder nor"):
            open_source(DataSettings(), tmp_path / "scans.zip", CLASSES, tmp_path)

    def test_the_demo_has_digits_and_no_other_classes(self, tmp_path: Path) -> None:
        samples = open_source(DataSettings(), None, discover_classes(DataSettings()), tmp_path)
        assert np.bincount(samples.labels).min() > 170
        pixels = as_images(samples).images(np.arange(20), 8, 1)
        assert pixels.min() == 0
        assert pixels.max() == 255
        with pytest.raises(SettingsError, match="holds the digits 0 to 9"):
            open_source(DataSettings(), None, CLASSES, tmp_path)


class TestCache:
    def test_a_second_opening_decodes_nothing(self, folder: Path, cache: Path, decodings: list[str]) -> None:
        (folder / "dog" / "bad.png").write_text("x")
        first = load(folder, cache)
        assert len(decodings) == 11
        second = load(folder, cache)
        assert len(decodings) == 11
        assert np.array_equal(first.train_images(), second.train_images())
        assert first.faults == second.faults
        assert len(second.faults) == 1

    def test_another_resolution_is_decoded_anew_and_of_a_changed_folder_the_changed_file(
        self, folder: Path, cache: Path, decodings: list[str]
    ) -> None:
        load(folder, cache)
        load(folder, cache, image_size=16)
        load(folder, cache, channels=1)
        assert len(decodings) == 30
        save(folder / "cat" / "0.png", 222)
        os.utime(folder / "cat" / "0.png", ns=(5, 5))
        loaded = load(folder, cache)
        assert decodings[30:] == ["cat/0.png"]
        assert 222 in loaded.train_images() or 222 in loaded.test_images()

    @pytest.mark.parametrize("damage", ["cut", "noise", "shape", "type", "no list", "bad list", "odd list"])
    def test_a_damaged_cache_is_rebuilt(self, folder: Path, cache: Path, decodings: list[str], damage: str) -> None:
        expected = load(folder, cache).train_images()
        (pixels,) = (cache / "decoded").glob("*.npy")
        (listing,) = (cache / "decoded").glob("*.json")
        match damage:
            case "cut":
                pixels.write_bytes(pixels.read_bytes()[:-100])
            case "noise":
                pixels.write_bytes(b"noise")
            case "shape":
                np.save(pixels, np.zeros((9, 8, 8, 3), np.uint8))
            case "type":
                np.save(pixels, np.zeros((10, 8, 8, 3), np.float32))
            case "no list":
                listing.unlink()
            case "bad list":
                listing.write_text("{")
            case "odd list":
                listing.write_text('[[99, "beyond the end", false]]')
        assert np.array_equal(load(folder, cache).train_images(), expected)
        assert len(decodings) == 20
        load(folder, cache)
        assert len(decodings) == 20

    def test_a_file_that_the_disk_hid_is_found_again(
        self, folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        samples = read_folder(folder, KNOWN)
        original = FileSamples.original

        def failing(self: FileSamples, position: int) -> Image.Image:
            if position == 4:
                raise OSError(5, "Input/output error")
            return original(self, position)

        with monkeypatch.context() as patch:
            patch.setattr(FileSamples, "original", failing)
            assert list(decode(samples, 8, 3, cache).failures) == [4]
        recovered = decode(samples, 8, 3, cache)
        assert not recovered.failures
        assert recovered.pixels[4].max() == 40

    def test_pixels_are_mapped_and_read_only(self, folder: Path, cache: Path) -> None:
        pixels = decode(read_folder(folder, KNOWN), 8, 3, cache).pixels
        assert isinstance(pixels, np.memmap)
        assert not pixels.flags.writeable

    def test_a_cache_that_cannot_be_written_is_named(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(SettingsError, match=r"cannot keep decoded images in .*file/decoded"):
            load(folder, tmp_path / "file")


class TestSite:
    def test_own_data_are_used_whole(self, folder: Path, cache: Path) -> None:
        loaded = load(folder, cache, watch=False)
        assert loaded.train_images().shape == (8, 8, 8, 3)
        assert loaded.test_images().shape == (2, 8, 8, 3)
        assert loaded.class_counts.tolist() == [4, 4]
        assert sorted(loaded.test_labels) == [0, 1]
        assert (loaded.train_images()[:, 0, 0, 0] == 10 * loaded.train).all()
        assert (loaded.train_labels == loaded.train // 5).all()

    def test_the_split_belongs_to_the_site(self, folder: Path, cache: Path) -> None:
        sites = [load(folder, cache, name=name) for name in ("a", "b", "c", "a")]
        assert len({tuple(loaded.test) for loaded in sites[:3]}) > 1
        assert np.array_equal(sites[0].test, sites[3].test)

    def test_an_impossible_partition_is_refused(self, folder: Path, cache: Path) -> None:
        with pytest.raises(SettingsError, match="partition-id = 3"):
            load_site(Identity("x", None, (3, 3), cache), SiteSettings())

    def test_a_site_without_data_is_told_to_set_its_path_whatever_the_server_names(
        self, folder: Path, cache: Path
    ) -> None:
        with pytest.raises(SettingsError, match="site clinic has no data: set data-path in the node config"):
            load(None, cache, source="folder", path=str(folder))

    def test_simulated_sites_share_one_source_and_hold_all_of_it(
        self, folder: Path, cache: Path, decodings: list[str]
    ) -> None:
        (folder / "dog" / "bad.png").write_text("x")
        settings = SiteSettings.model_validate(
            {
                "data": {"source": "folder", "path": str(folder), "classes": CLASSES, "image_size": 8},
                "partition": {"min_size": 2},
            }
        )
        sites = [load_site(Identity(f"{index}", None, (index, 3), cache), settings) for index in range(3)]
        assert len(decodings) == 11
        assert all(loaded.samples is sites[0].samples for loaded in sites)
        held = np.concatenate([np.concatenate([loaded.train, loaded.test]) for loaded in sites])
        assert [sites[0].samples.name(int(row)) for row in np.sort(held)] == [
            f"{CLASSES[position // 5]}/{position}.png" for position in range(10)
        ]
        site_module._open_common.cache_clear()
        site_module._shares.cache_clear()
        again = load_site(Identity("1", None, (1, 3), cache), settings)
        assert len(decodings) == 11
        assert np.array_equal(again.train, sites[1].train)
