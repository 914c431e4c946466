"""Medical images: DICOM as a radiologist sees it, slices of volumes, tiles of slides, and whose they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from pydicom.dataset import Dataset
from pydicom.pixels import apply_voi_lut
from pydicom.uid import DeflatedExplicitVRLittleEndian

from client.data import dicom, load_site
from client.data.dicom import Patients, through_window
from client.data.files import read_folder, read_images, read_manifest
from client.data.samples import FileSamples, Undecodable
from client.identity import Identity
from common.config import DataSettings, SettingsError, SiteSettings
from tests.support.medical import write_dicom, write_nifti

KNOWN = {"cat": 0, "dog": 1}


def shown(path: Path) -> NDArray[np.uint8]:
    samples = read_images([path])
    assert len(samples) == 1, samples.faults
    return np.asarray(samples.original(0))


RAMP = np.arange(-1000, 1040, 1, dtype=np.int16).reshape(51, 40)


class TestDicom:
    @pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
    def test_window_and_rescale_slope_are_those_of_the_standard(self, tmp_path: Path, function: str) -> None:
        path = write_dicom(
            tmp_path / "a.dcm", RAMP, RescaleSlope="2", RescaleIntercept="-24", WindowCenter=["40", "300"],
            WindowWidth=["400", "1500"], VOILUTFunction=function,
        )  # fmt: skip
        data = Dataset()
        data.WindowCenter, data.WindowWidth, data.VOILUTFunction = 40, 400, function
        data.BitsStored, data.PixelRepresentation, data.PhotometricInterpretation = 16, 0, "MONOCHROME2"
        theirs = apply_voi_lut(RAMP.astype(np.float64) * 2 - 24, data)
        assert np.abs(shown(path) - theirs * (255 / (2**16 - 1))).max() <= 0.5001
        assert (shown(path).min(), shown(path).max()) == (0, 255)

    def test_a_window_by_hand(self) -> None:
        found = through_window(np.array([-161.0, -160.0, 39.5, 239.0, 240.0]), 40, 400)
        assert found.tolist() == [0, 0, 128, 255, 255]
        assert through_window(np.array([4.5, 4.6]), 5, 1).tolist() == [0, 255]

    def test_monochrome1_is_turned_round(self, tmp_path: Path) -> None:
        window = {"WindowCenter": 0, "WindowWidth": 2000}
        plain = shown(write_dicom(tmp_path / "a.dcm", RAMP, **window))
        turned = shown(write_dicom(tmp_path / "b.dcm", RAMP, **window, PhotometricInterpretation="MONOCHROME1"))
        np.testing.assert_array_equal(turned, 255 - plain)

    def test_without_a_window_percentiles_without_padding_are_stretched(self, tmp_path: Path) -> None:
        values = RAMP.copy()
        values[:20] = -32000
        found = shown(write_dicom(tmp_path / "a.dcm", values, PixelPaddingValue=-32000))
        inside = values[values > -32000]
        low, high = np.percentile(inside, (0.5, 99.5))
        expected = np.clip((values.astype(float) - low) / (high - low), 0, 1) * 255
        assert np.abs(found - expected).max() <= 0.5001

    def test_colours_stay(self, tmp_path: Path) -> None:
        values = np.random.default_rng(0).integers(0, 256, (7, 5, 3), np.uint8)
        np.testing.assert_array_equal(shown(write_dicom(tmp_path / "a.dcm", values)), values)

    def test_the_frame_is_chosen(self, tmp_path: Path) -> None:
        frames = np.stack([np.full((6, 6), 10 * number, np.uint8) for number in range(1, 6)])
        window = {"WindowCenter": 128, "WindowWidth": 256}
        write_dicom(tmp_path / "loop.dcm", frames, frames=5, **window)
        (tmp_path / "m.csv").write_text(
            "path,label,frame\nloop.dcm,cat,\nloop.dcm,dog,5\nloop.dcm,cat,9\nloop.dcm,cat,5\n"
        )
        samples = read_manifest(tmp_path / "m.csv", KNOWN)
        assert samples.faults[0].reason == "is listed again in line 5"
        found = {samples.name(place): place for place in range(len(samples))}
        assert sorted(found) == ["loop.dcm", "loop.dcm frame 5", "loop.dcm frame 9"]
        assert np.asarray(samples.original(found["loop.dcm"]))[0, 0] == 30
        assert np.asarray(samples.original(found["loop.dcm frame 5"]))[0, 0] == 50
        with pytest.raises(Undecodable, match="has 5 frames, and none with the number 9"):
            samples.image(found["loop.dcm frame 9"], 8, 1)
        # Frames of one file are never on both sides.
        assert samples.groups is not None
        assert len(set(samples.groups.tolist())) == 1

    def test_a_frame_of_many_has_its_own_window(self, tmp_path: Path) -> None:
        frames = np.stack([RAMP[:8, :8], RAMP[:8, :8]])
        items = []
        for centre in (0, -900):
            window, item = Dataset(), Dataset()
            window.WindowCenter, window.WindowWidth = centre, 300
            item.FrameVOILUTSequence = [window]
            items.append(item)
        scale, shared = Dataset(), Dataset()
        scale.RescaleSlope, scale.RescaleIntercept = 1, 50
        shared.PixelValueTransformationSequence = [scale]
        path = write_dicom(
            tmp_path / "e.dcm", frames, frames=2,
            PerFrameFunctionalGroupsSequence=items, SharedFunctionalGroupsSequence=[shared],
        )  # fmt: skip
        second = np.asarray(dicom.image(path, 2))
        np.testing.assert_array_equal(second, through_window(RAMP[:8, :8].astype(np.float64) + 50, -900, 300))
        assert np.asarray(dicom.image(path, 1)).max() == 0

    def test_files_without_an_ending_are_known_by_their_first_bytes(self, tmp_path: Path) -> None:
        write_dicom(tmp_path / "cat" / "IM0001", RAMP)
        (tmp_path / "cat" / "README").write_text("no image")
        samples = read_folder(tmp_path, KNOWN)
        assert [samples.name(0), len(samples)] == ["cat/IM0001", 1]
        assert samples.faults[0].reason == "is not an image by its name"

    def test_what_asks_for_too_much_is_refused(self, tmp_path: Path) -> None:
        for name, changes, said in (
            ("a.dcm", {"Rows": 60_000, "Columns": 60_000}, "at most 100 million"),
            # In runs of one value that is a file of two megabytes, and 18 bytes for a pixel on its way to grey levels.
            ("d.dcm", {"Rows": 9_000, "Columns": 9_000}, "at most 40 million"),
            ("b.dcm", {"syntax": DeflatedExplicitVRLittleEndian}, "deflated"),
            ("c.dcm", {"NumberOfFrames": 10**9}, "."),
        ):
            samples = read_images([write_dicom(tmp_path / name, RAMP, **changes)])
            with pytest.raises(Undecodable, match=said):
                samples.image(0, 8, 1)

    def test_without_pydicom_the_way_out_is_said(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write_dicom(tmp_path / "cat" / "a.dcm", RAMP)
        monkeypatch.setattr("client.data.opening.importlib.util.find_spec", lambda name: None)
        (fault,) = read_folder(path.parent.parent, KNOWN).faults
        assert "pip install coterie[dicom]" in fault.reason


class TestPatients:
    def folder(self, root: Path) -> Path:
        for place in range(24):
            label = ("cat", "dog")[place % 2]
            write_dicom(
                root / label / f"{place:02}.dcm", RAMP + place, PatientID=f"Doe^{place // 4}",
                BurnedInAnnotation="YES" if place < 3 else "NO",
            )  # fmt: skip
        return root

    def test_a_patient_is_a_group_by_a_word_that_only_the_site_can_make(self, tmp_path: Path) -> None:
        root = self.folder(tmp_path / "scans")
        one, again = Patients(tmp_path / "a" / "patients.secret"), Patients(tmp_path / "a" / "patients.secret")
        other = Patients(tmp_path / "b" / "patients.secret")
        samples = read_folder(root, KNOWN, patients=one)
        assert samples.groups is not None
        patients = [int(samples.name(place)[4:6]) // 4 for place in range(24)]
        words = dict(zip(patients, samples.groups.tolist(), strict=True))
        assert [words[patient] for patient in patients] == samples.groups.tolist()
        assert len(set(words.values())) == 6
        assert not any("Doe" in word for word in words.values())
        assert again.word("Doe^0") == words[0] != other.word("Doe^0")
        assert (tmp_path / "a" / "patients.secret").stat().st_mode & 0o777 == 0o600
        assert Patients().word("Doe^0") == Patients().word("Doe^0")

    def test_a_site_never_divides_a_patient_and_counts_burnt_in_text(self, tmp_path: Path) -> None:
        identity = Identity("clinic", self.folder(tmp_path / "scans"), None, tmp_path / "cache")
        data = DataSettings(classes=("cat", "dog"), image_size=8)
        site = load_site(identity, SiteSettings(data=data))
        groups = site.samples.groups
        assert groups is not None
        assert len(site.test)
        assert not set(groups[site.train]) & set(groups[site.test])
        assert (tmp_path / "cache" / "memory" / "patients.secret").exists()
        assert site.samples.notes == ("3 DICOM files with text burnt into the pixels (BurnedInAnnotation)",)
        assert site.faults == ()

    def test_the_source_knows_better_and_the_anonymous_have_studies(self, tmp_path: Path) -> None:
        write_dicom(tmp_path / "a.dcm", RAMP, PatientID="x")
        for name in "bc":
            write_dicom(tmp_path / f"{name}.dcm", RAMP, PatientID="", StudyInstanceUID="1.2.3")
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "d.png")
        (tmp_path / "m.csv").write_text("path,label,group\na.dcm,cat,p\nb.dcm,cat,\nc.dcm,dog,\nd.png,dog,\n")
        samples = read_manifest(tmp_path / "m.csv", KNOWN)
        assert samples.groups is not None
        a, b, c, d = samples.groups.tolist()
        assert (a, b, d) == ("p", c, "line 5")
        assert samples.loners == (False, False, False, True)

    def test_a_secret_that_cannot_be_kept_is_said(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises(SettingsError, match="secret that hides patients"):
            Patients(tmp_path / "file" / "patients.secret").word("x")
        (tmp_path / "short").write_bytes(b"1")
        with pytest.raises(SettingsError, match="damaged"):
            Patients(tmp_path / "short").word("x")


class TestNifti:
    @pytest.mark.parametrize("order", ["<", ">"])
    @pytest.mark.parametrize(
        ("name", "kind"), [("v.nii", "i2"), ("v.nii.gz", "f4"), ("v.nii", "u1"), ("v.nii.gz", "f8")]
    )
    def test_a_slice_is_that_of_the_volume(self, tmp_path: Path, name: str, kind: str, order: str) -> None:
        volume = np.random.default_rng(0).integers(0, 120, (5, 7, 4)).astype(kind)
        path = write_nifti(tmp_path / name, volume, order=order, slope=2, intercept=-10)
        (tmp_path / "m.csv").write_text(f"path,label,frame\n{name},cat,\n{name},cat,4\n{name},cat,5\n")
        samples = read_manifest(tmp_path / "m.csv", KNOWN)
        for place, number in ((0, 2), (1, 4)):
            meant = volume[:, :, number - 1].astype(float) * 2 - 10
            low, high = np.percentile(meant, (0.5, 99.5))
            expected = np.clip((meant - low) / (high - low), 0, 1) * 255
            found = np.asarray(samples.original(place)).astype(float)
            # The first axis goes right, the second up.
            assert np.abs(found - expected.T[::-1]).max() <= 0.5001
        with pytest.raises(Undecodable, match="has 4 slices"):
            samples.image(2, 8, 1)
        assert path.exists()

    @pytest.mark.parametrize("shape", [(5, 7, 30_000), (5, -7, 4), (30_000, 30_000, 1)])
    def test_a_volume_that_is_not_there_is_refused(self, tmp_path: Path, shape: tuple[int, ...]) -> None:
        path = write_nifti(tmp_path / "v.nii.gz", np.zeros((5, 7, 4), np.int16), shape=shape)
        with pytest.raises(Undecodable):
            read_images([path]).image(0, 8, 1)


def test_a_slice_of_a_packed_volume_asks_for_no_more_than_its_bytes_are_worth(tmp_path: Path) -> None:
    """A megabyte of zeros, packed, may be a slice of a billion values, and each takes 17 bytes on its way to grey."""
    path = write_nifti(tmp_path / "v.nii.gz", np.zeros((5, 7, 4), np.uint8), shape=(31_000, 31_000, 1))
    with pytest.raises(Undecodable, match="at most 40 million are read"):
        read_images([path]).image(0, 8, 1)


def test_tiles_of_a_slide_are_cut_out_and_stay_together(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "slide.tif")
    Image.fromarray(pixels[:9, :9]).save(tmp_path / "other.png")
    header = "path,label,x,y,width,height\n"
    (tmp_path / "m.csv").write_text(
        header + "slide.tif,cat,0,0,16,16\nslide.tif,dog,44,24,16,16\nslide.tif,dog,50,30,16,16\nother.png,dog,,,,\n"
    )
    samples = read_manifest(tmp_path / "m.csv", KNOWN)
    found = {samples.name(place): place for place in range(len(samples))}
    np.testing.assert_array_equal(np.asarray(samples.original(found["slide.tif at 44,24"])), pixels[24:40, 44:60])
    assert samples.groups is not None
    assert len(set(samples.groups[[found[name] for name in found if name != "other.png"]])) == 1
    with pytest.raises(Undecodable, match="no region of 16 × 16 at 50,30"):
        samples.image(found["slide.tif at 50,30"], 8, 3)
    for row, said in (("slide.tif,cat,0,0,16,", "x, y, width and height"), ("slide.tif,cat,0,0,-1,4", "width = '-1'")):
        (tmp_path / "m.csv").write_text(header + row + "\n")
        with pytest.raises(SettingsError, match=said):
            read_manifest(tmp_path / "m.csv", KNOWN)


def test_one_folder_may_hold_every_kind_size_and_depth(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    home = tmp_path / "scans" / "cat"
    home.mkdir(parents=True)
    Image.fromarray(rng.integers(0, 256, (30, 20, 3), np.uint8)).save(home / "a.jpg")
    Image.fromarray(rng.integers(0, 4096, (11, 13), np.uint16)).save(home / "b.png")
    Image.fromarray(rng.integers(0, 65536, (9, 9), np.uint16)).save(home / "c.tif")
    Image.fromarray(rng.normal(0, 100, (9, 9)).astype(np.float32)).save(home / "d.tif")
    write_dicom(home / "e.dcm", RAMP)
    write_nifti(home / "f.nii.gz", rng.normal(0, 1, (6, 6, 3)).astype(np.float32))
    samples: FileSamples = read_folder(tmp_path / "scans", KNOWN)
    assert (len(samples), samples.faults) == (6, ())
    pixels = samples.images(np.arange(6), 8, 3)
    assert pixels.shape == (6, 8, 8, 3)
    assert (pixels.reshape(6, -1).std(axis=1) > 10).all()
