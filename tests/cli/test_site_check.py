"""`coterie site check`: what a site is told about its own data, without any network."""

from __future__ import annotations

import json
import socket
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cli.deployment import site_check
from cli.deployment.authority import present
from cli.deployment.layout import Layout
from cli.deployment.provisioning import provision
from cli.main import main
from common.config import flatten
from common.signature import Signature
from tests.support.tables import wine_settings

CONFIG = """
[data]
source = "folder"
classes = ["benign", "malignant", "normal"]
image_size = 8
channels = 1
[encoder]
name = "random:resnet10t"
image_size = 32
[train]
model = "lenet5"
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kit whose data are 20 benign and 10 malignant images, one file that is none, and one that is empty."""

    def no_network(*_: object) -> None:
        raise AssertionError("the check called somebody")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    rng = np.random.default_rng(0)
    for name, count in (("benign", 20), ("malignant", 10)):
        folder = tmp_path / "scans" / name
        folder.mkdir(parents=True)
        for number in range(count):
            Image.fromarray(rng.integers(0, 255, (12, 12), np.uint8)).save(folder / f"{number:02d}.png")
    (tmp_path / "scans" / "benign" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    (tmp_path / "scans" / "malignant" / "empty.png").touch()
    layout = Layout(tmp_path / "fed")
    provision(layout, server="fl.example.org", also=(), control="127.0.0.1:9", sites=["a"], now=present())
    path = layout.kit("a") / "site.toml"
    text = path.read_text().replace('data = ""', f'data = "{tmp_path / "scans"}"')
    path.write_text(text.replace('cache = ""', f'cache = "{tmp_path / "cache"}"'))
    (tmp_path / "run.toml").write_text(CONFIG)
    return path


def check(site: Path, *config: Path) -> int:
    return main(["site", "check", str(site), *map(str, config)])


def test_it_tells_everything(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(site, tmp_path / "run.toml") == 0
    text = capsys.readouterr().out
    assert "site a: 24 samples to train on and 6 to test on" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["benign", "16", "4"] in rows
    assert ["malignant", "8", "2"] in rows
    assert ["normal", "0", "0"] in rows
    assert "not usable: 2" in text
    assert "benign/torn.png: " in text
    assert "malignant/empty.png: is empty" in text
    assert "device: c" in text
    assert "encoder: random:resnet10t at 32 px, 512 numbers per image" in text
    assert "1 classes × 512, 2.06 kB; training images by class: benign 16; 8 in classes of fewer than 10" in text
    assert "This site answers:" in text
    assert "It will never:" in text
    assert "lenet5 at 8 px, an epoch over 24 samples takes about" in text
    assert "fl.example.org:9092 not called" in text
    assert "PROBLEM" not in text


def test_the_split_and_the_rule_are_those_of_a_real_run(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_check, "load_encoder", lambda *_: (_ for _ in ()).throw(site_check.EncoderError("later")))
    monkeypatch.setattr(site_check, "measure_epoch", lambda *_: site_check.Epoch(1.0, 24))
    greedy = CONFIG.replace("[encoder]", "test_fraction = 0.5\n[encoder]")
    (tmp_path / "run.toml").write_text(f'{greedy}rule = "fedprox"\n')
    site.write_text(site.read_text() + '\n[policy]\nmethods = ["fedprox"]\n')
    check(site, tmp_path / "run.toml")
    text = capsys.readouterr().out
    assert "24 samples to train on and 6 to test on" in text
    assert "would decline" not in text


def test_without_a_configuration_the_data_say_the_classes(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The default encoder and model take half a minute on a busy machine, and are not what is tested.
    monkeypatch.setattr(site_check, "load_encoder", lambda *_: (_ for _ in ()).throw(site_check.EncoderError("later")))
    monkeypatch.setattr(site_check, "measure_epoch", lambda *_: site_check.Epoch(1.0, 24))
    assert check(site) == 1
    text = capsys.readouterr().out
    assert "classes as the data show them" in text
    assert "normal" not in text
    assert "PROBLEM: later" in text


def test_a_class_that_was_not_agreed_on(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").write_text(CONFIG.replace('"malignant", ', ""))
    assert check(site, tmp_path / "run.toml") == 1
    assert "class 'malignant' is not in the agreed class list" in capsys.readouterr().out


def test_a_configuration_without_a_class_list(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").write_text("[data]\nsource = 'folder'\n")
    assert check(site, tmp_path / "run.toml") == 1
    assert "sites with data.source = 'folder' must agree on the class list" in capsys.readouterr().out


def test_nothing_usable(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for image in (tmp_path / "scans").rglob("*.png"):
        image.write_bytes(b"")
    assert check(site, tmp_path / "run.toml") == 1
    assert "site a has no usable data: benign/00.png is empty" in capsys.readouterr().out


def test_a_key_that_others_can_read_is_a_problem(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site.parent / "site.key").chmod(0o644)
    assert check(site, tmp_path / "run.toml") == 1
    assert "PROBLEM: the private key" in capsys.readouterr().out


def test_weights_that_are_not_on_this_machine_are_a_problem(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = CONFIG.replace("random:resnet10t", "timm:resnet10t")
    (tmp_path / "run.toml").write_text(text.replace("[train]", 'weights = "/coordinator/weights.pth"\n[train]'))
    assert check(site, tmp_path / "run.toml") == 1
    assert "PROBLEM: this run's encoder needs a local weights file" in capsys.readouterr().out


def test_a_head_is_timed_on_the_encoders_numbers(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "head.toml"
    run.write_text(CONFIG.replace("lenet5", "head"))
    assert check(site, run) == 0
    assert "training: head on random:resnet10t, an epoch over 24 samples" in capsys.readouterr().out
    run.write_text(run.read_text().replace("random:resnet10t", "timm:resnet10t"))
    assert check(site, run) == 1
    told = capsys.readouterr().out
    assert "PROBLEM: " in told
    assert "training: " not in told


def test_the_size_of_a_signature_is_that_of_its_arrays() -> None:
    signature = Signature(np.arange(3), np.zeros((3, 7), np.float32), np.full(3, 1 / 3))
    arrays = (signature.classes, signature.prototypes, signature.shares)
    assert site_check.signature_bytes(3, 7) == sum(array.nbytes for array in arrays)


def test_a_site_with_a_table_is_told_what_is_missing_in_it(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = wine_settings(tmp_path)
    path = tmp_path / "wine.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "," + lines[1].partition(",")[2], *lines[2:]]) + "\n")
    policy = f'[policy]\nfingerprints = ["collaboration"]\nagreed_schema = "{tmp_path / "wine.toml"}"\n'
    site.write_text(site.read_text().replace(str(tmp_path / "scans"), str(path)) + policy)
    config = tmp_path / "table.toml"
    config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
    assert check(site, config) == 0
    said = capsys.readouterr().out
    assert "142 samples to train on and 36 to test on" in said
    assert "column alcohol: 1 of 178 values are missing" in said
    assert "mlp on 13 numbers per row" in said
    assert "encoder:" not in said


@pytest.mark.parametrize(
    ("change", "line"), [("encoder.name=pixels", "encoders"), ("train.epochs=21", "epochs"), ("rounds=501", "rounds")]
)
def test_a_run_that_the_policy_would_decline_is_a_problem(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, line: str
) -> None:
    key, _, value = change.partition("=")
    flat = flatten(tomllib.loads(CONFIG)) | {key: value if value.isalpha() else int(value)}
    (tmp_path / "run.toml").write_text("".join(f"{name} = {json.dumps(one)}\n" for name, one in flat.items()))
    assert check(site, tmp_path / "run.toml") == 1
    assert f"PROBLEM: this site would decline the run: policy.{line} = " in capsys.readouterr().out


def test_the_command_line_wins_over_the_file(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As in a container, where the data are mounted at a place that the kit knows nothing of."""
    (tmp_path / "scans").rename(tmp_path / "mounted")
    assert check(site) == 1
    assert "does not exist" in capsys.readouterr().out
    assert main(["site", "check", str(site), "--set", f"data={tmp_path / 'mounted'}"]) == 0
    assert f"from {tmp_path / 'mounted'}" in capsys.readouterr().out
    assert main(["site", "check", str(site), "--set", "dat=/data"]) == 2
    assert "did you mean data?" in capsys.readouterr().err


def test_a_site_whose_classes_are_all_too_small_is_not_told_that_it_is_ready(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.write_text(site.read_text() + "\n[policy]\nclass_samples = 20\n")
    (tmp_path / "run.toml").write_text(f'method = "fmcl"\n{CONFIG}')
    assert check(site, tmp_path / "run.toml") == 1
    assert "PROBLEM: this site would decline the run: policy.class_samples = 20" in capsys.readouterr().out
    (tmp_path / "run.toml").write_text(f'method = "fedavg"\n{CONFIG}')
    assert check(site, tmp_path / "run.toml") == 0, "a method that asks for no fingerprint"
