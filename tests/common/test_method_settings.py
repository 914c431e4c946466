"""The settings of a method are declared in its own file, and are everywhere the others are."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from common.config import (
    Config,
    SettingsError,
    SiteSettings,
    allowed,
    fields,
    flat_settings,
    flat_values,
    load,
    parse,
    with_values,
)
from common.methods import AGREEMENTS, agreement_on, cfl, dc_cfl, fedcm, fedprox, pacfl
from common.section import Section

ROOT = Path(__file__).parents[2]
SECTIONS = {agreement.section: agreement.settings for agreement in AGREEMENTS.values() if agreement.settings}


def test_a_method_is_found_by_its_file() -> None:
    declared = {module.AGREEMENT.rule for module in (cfl, dc_cfl, fedcm, fedprox, pacfl)}
    assert declared <= set(AGREEMENTS)
    assert all(agreement.rule == rule for rule, agreement in AGREEMENTS.items())


def test_sections_are_called_as_the_method_unless_it_says_otherwise() -> None:
    assert fedprox.AGREEMENT.section == "fedprox"
    assert dc_cfl.AGREEMENT.section == "collaboration"
    assert agreement_on("some-rule").section == "some_rule"


def test_a_rule_without_a_file_is_the_plain_one() -> None:
    plain = agreement_on("fedavg")
    assert (plain.rule, plain.settings, plain.down, plain.up, plain.remembers) == ("fedavg", None, {}, {}, False)
    state = {"b": np.zeros(1), "a": np.ones(1)}
    assert list(plain.travelling(state, Config())) == ["b", "a"]


@pytest.mark.parametrize("section", sorted(SECTIONS))
def test_every_section_is_listed_with_help_and_default(section: str) -> None:
    listed, flat = dict(fields()), flat_values(Config())
    for name, field in SECTIONS[section].model_fields.items():
        key = f"{section}.{name}"
        assert listed[key].description == field.description != ""
        assert flat[key] == field.default
        assert allowed(listed[key])
    assert not any(key.startswith("methods") for key in [*listed, *flat])


def test_flat_keys_and_tables_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("rounds = 3\n[fedprox]\nmu = 0.5\n[cfl]\nafter = 7\n[collaboration]\nanchors = 'uniform'\n")
    config = load(path)
    assert config == parse({"rounds": 3, "fedprox.mu": 0.5, "cfl.after": 7, "collaboration": {"anchors": "uniform"}})
    assert config.of(fedprox.Settings).mu == 0.5
    assert config.of(cfl.Settings).after == 7
    assert config.of(dc_cfl.Settings).anchors == "uniform"
    assert config.of(fedcm.Settings) == fedcm.Settings()
    assert load(path, {"fedprox.mu": 0.25}).of(fedprox.Settings).mu == 0.25


def test_a_whole_number_is_a_number_in_a_methods_section_too() -> None:
    assert parse({"fedprox.mu": 1}).of(fedprox.Settings).mu == 1.0


def test_flat_values_go_round() -> None:
    config = parse({"pacfl.vectors": 5, "pacfl.angle": "sum", "fedprox.mu": 0.125})
    flat = flat_values(config)
    assert (flat["pacfl.vectors"], flat["pacfl.angle"], flat["fedprox.mu"]) == (5, "sum", 0.125)
    assert set(flat) == set(dict(fields()))
    assert parse(flat) == config
    assert flat_settings(config.model_dump())["pacfl.vectors"] == 5


def test_a_site_is_told_the_settings_of_every_method() -> None:
    site = parse({"fedcm.warm_up": 9, "fedprox.mu": 0.5}).for_site()
    told = SiteSettings.model_validate_json(site.model_dump_json(), strict=False)
    assert told == site
    assert told.of(fedcm.Settings).warm_up == 9
    assert told.of(fedprox.Settings).mu == 0.5


def test_what_a_server_says_of_a_method_is_checked_at_the_site() -> None:
    said = json.loads(Config().for_site().model_dump_json())
    said["methods"]["fedprox"]["mu"] = -1.0
    with pytest.raises(ValueError, match="mu"):
        SiteSettings.model_validate_json(json.dumps(said), strict=False)
    said["methods"] = {"unheard_of": {}}
    with pytest.raises(ValueError, match="unheard_of"):
        SiteSettings.model_validate_json(json.dumps(said), strict=False)


def test_single_values_may_be_exchanged() -> None:
    config = with_values(Config(), {"fedprox.mu": 0.75, "train.lr": 0.5, "rounds": 3})
    assert config.of(fedprox.Settings).mu == 0.75
    assert (config.train.lr, config.rounds) == (0.5, 3)
    assert config == parse({"fedprox.mu": 0.75, "train.lr": 0.5, "rounds": 3})
    assert Config().of(fedprox.Settings).mu == 0.01


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"fedprox.mu": -1}, ["fedprox.mu = -1", "is not allowed: it takes a number ≥ 0", "held near the model"]),
        ({"fedprox": {"mu": "strong"}}, ["fedprox.mu = 'strong' is not allowed: it takes a number ≥ 0"]),
        ({"fedprox.mu": float("nan")}, ["fedprox.mu = nan"]),
        ({"cfl.after": 1.5}, ["cfl.after = 1.5 is not allowed: it takes a whole number ≥ 0"]),
        ({"pacfl.angle": "largest"}, ["pacfl.angle = 'largest'", "one of smallest, sum"]),
        ({"collaboration.noise": -0.1}, ["collaboration.noise = -0.1"]),
        ({"fedprox.nu": 1}, ["unknown setting fedprox.nu = 1; did you mean fedprox.mu?"]),
        ({"methods.fedprox.mu": 1}, ["unknown setting methods.fedprox.mu = 1; did you mean fedprox.mu?"]),
        ({"methods": {"fedprox": {"mu": 1}}}, ["unknown setting methods.fedprox.mu"]),
    ],
)
def test_refusals_speak_of_the_methods_own_key(values: dict[str, object], words: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(values)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("train.mu", "fedprox.mu"),
        ("train.warm_up", "fedclust.warm_up or fedcm.warm_up"),
        ("split.after", "cfl.after"),
        ("split.mean_norm", "cfl.mean_norm"),
        ("split.max_norm", "cfl.max_norm"),
        ("encoder.vectors", "pacfl.vectors"),
        ("cluster.angle", "pacfl.angle"),
    ],
)
def test_who_uses_an_old_name_is_told_the_new_one(old: str, new: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse({old: 1})
    assert str(caught.value) == f"unknown setting {old} = 1; did you mean {new}?"


METHOD = """
from pydantic import Field
from common.methods.agreement import Agreement
from common.section import Section

class Settings(Section):
    zeal: float = Field(0.5, ge=0, description="how keen a site is")
    steps: int = Field(3, ge=1, description="how often")

AGREEMENT = Agreement("keen-avg", Settings)
"""
LOOK = """
import json, common
from common.config import *
from common.config import SiteSettings
from common.methods import AGREEMENTS
from common.methods.keen_avg import Settings

config = parse({"keen_avg": {"zeal": 2}, "keen_avg.steps": 4})
site = SiteSettings.model_validate_json(config.for_site().model_dump_json(), strict=False)
try:
    parse({"keen_avg.zeal": -1})
except SettingsError as error:
    refused = str(error)
print(json.dumps({
    "from": common.__file__,
    "rules": sorted(AGREEMENTS),
    "listed": [key for key, field in fields() if "keen" in key],
    "flat": {key: value for key, value in flat_values(config).items() if "keen" in key},
    "round trip": parse(flat_values(config)) == config,
    "site": [site.of(Settings).zeal, site.of(Settings).steps],
    "refused": refused,
}))
"""


def test_a_new_file_is_all_that_new_settings_need(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "common", tmp_path / "common", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "common" / "methods" / "keen_avg.py").write_text(METHOD)
    environment = {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    said = subprocess.run(
        [sys.executable, "-c", LOOK], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout)
    assert Path(found["from"]).is_relative_to(tmp_path)
    assert set(found["rules"]) == {*AGREEMENTS, "keen-avg"}
    assert found["listed"] == ["keen_avg.zeal", "keen_avg.steps"]
    assert found["flat"] == {"keen_avg.zeal": 2.0, "keen_avg.steps": 4}
    assert found["round trip"] is True
    assert found["site"] == [2.0, 4]
    assert found["refused"].startswith("keen_avg.zeal = -1")
    assert found["refused"].endswith("is not allowed: it takes a number ≥ 0 (how keen a site is)")


def test_no_method_takes_the_name_of_another_section() -> None:
    assert all(issubclass(settings, Section) for settings in SECTIONS.values())
    assert not set(SECTIONS) & set(Config.model_fields)
    assert len(SECTIONS) == len([agreement for agreement in AGREEMENTS.values() if agreement.settings])
