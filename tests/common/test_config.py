"""Settings are refused with a sentence that says what to change."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.classes import agreed_classes
from common.config import Config, SettingsError, SiteSettings, fields, flat_values, load, parse, parse_override


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"train.lrr": 1}, ["train.lrr", "1", "did you mean train.lr?"]),
        ({"lr": 1}, ["lr", "train.lr"]),
        ({"train": {"lr": "fast"}}, ["train.lr", "'fast'", "a number > 0"]),
        ({"train.lr": -1}, ["train.lr", "-1", "> 0"]),
        ({"train.lr": float("nan")}, ["train.lr", "nan"]),
        ({"rounds": 1.5}, ["rounds", "1.5", "a whole number ≥ 0"]),
        ({"rounds": True}, ["rounds", "True"]),
        ({"rounds": "3"}, ["rounds", "'3'"]),
        ({"cluster.overlap": 1}, ["cluster.overlap", "true or false"]),
        ({"train.model": "vgg"}, ["train.model", "'vgg'", "resnet9, resnet18, lenet5, mlp"]),
        ({"data.channels": 2}, ["data.channels", "one of 1, 3"]),
        ({"encoder.name": "vit"}, ["encoder.name", "'vit'", "timm:<model>"]),
        ({"cluster.k": 3, "cluster.threshold": 0.2}, ["cluster.k = 3", "cluster.threshold = 0.2", "exclude"]),
        ({"cluster.k": 21, "sites": 20}, ["cluster.k = 21", "sites = 20", "0 (automatic) to 20"]),
        ({"data.classes": ["a", "a"]}, ["data.classes", "twice"]),
        ({"round.min_replies": 30}, ["round.min_replies = 30", "sites = 20"]),
        ({"partition.scheme": "disjoint", "partition.groups": 30}, ["partition.groups = 30", "sites = 20"]),
        ({"train.lr": 10**400}, ["train.lr"]),
        ({"zzzzzz": 1}, ["zzzzzz = 1; `coterie config`"]),
        ({"data.source": "torchvision"}, ["data.name", "CIFAR10"]),
        ({"encoder.weights": "w.pth"}, ["encoder.weights", "timm:<model>"]),
    ],
)
def test_refusals_name_key_value_and_what_is_allowed(values: dict[str, object], words: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(values)
    for word in words:
        assert word in str(caught.value)


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(SettingsError, match=r"(?s)train\.lr.*rounds|rounds.*train\.lr"):
        parse({"train.lr": 0, "rounds": -1})


def test_nested_and_flat_keys_are_the_same() -> None:
    assert parse({"train": {"lr": 0.5}, "data": {"classes": ["a", "b"]}}) == parse(
        {"train.lr": 0.5, "data.classes": "a, b"}
    )


def test_whole_numbers_are_numbers() -> None:
    assert parse({"train.lr": 1}).train.lr == 1.0


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "seed": st.integers(0, 2**40),
            "train.lr": st.floats(1e-6, 10),
            "cluster.overlap": st.booleans(),
            "data.classes": st.lists(st.text("abcé ", min_size=1).map(str.strip).filter(bool), unique=True),
        },
    )
)
def test_flat_form_and_wire_form_round_trip(values: dict[str, object]) -> None:
    config = parse(values)
    assert parse(flat_values(config)) == config
    site = config.for_site()
    assert SiteSettings.model_validate_json(site.model_dump_json(), strict=False) == site


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("rounds = 3\n[train]\nlr = 0.5\n")
    assert load(path, {"train.lr": 0.25}).train.lr == 0.25
    assert load(path).rounds == 3


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read"):
        load(tmp_path / "missing.toml")
    path = tmp_path / "bad.toml"
    path.write_text("rounds = = 3")
    with pytest.raises(SettingsError, match="not valid TOML"):
        load(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train.lr=0.1", ("train.lr", 0.1)),
        ("rounds=3", ("rounds", 3)),
        ("cluster.overlap=false", ("cluster.overlap", False)),
        ("data.path=/a b/c=d", ("data.path", "/a b/c=d")),
        ('method="fmcl"', ("method", "fmcl")),
    ],
)
def test_command_line_overrides(text: str, expected: tuple[str, object]) -> None:
    assert parse_override(text) == expected


def test_command_line_override_without_value_is_refused() -> None:
    with pytest.raises(SettingsError, match="key=value"):
        parse_override("rounds")


def test_every_setting_has_help() -> None:
    assert all(field.description for _, field in fields())


def test_settings_cannot_be_changed_by_accident() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().train.lr = 3.0  # type: ignore[misc]


def test_sites_with_folders_must_agree_on_classes() -> None:
    with pytest.raises(SettingsError, match=r"data\.classes"):
        agreed_classes(parse({"data.source": "folder"}).data)
    assert agreed_classes(parse({"data.source": "torchvision", "data.name": "CIFAR10"}).data)[0] == "airplane"
    assert len(agreed_classes(Config().data)) == 10
