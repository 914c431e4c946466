"""Any way to train in the groups of any way to group: what follows from the parts, and what contradicts itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from common.config import SettingsError, parse
from common.methods.per_fedavg import Settings
from server.history.events import GroupsFormed, MemoryLost, RoundFinished, RoundTrained, SiteLeftOut
from server.methods import METHODS, RULES, recipe, settle
from tests.support.resuming import check_resumed
from tests.support.runs import MakeConfig, Record, run

GROUPED = {"method": "fmcl", "cluster__k": 2, "sites": 4, "train__lr": 0.02, "pfedme__rate": 0.02}


def test_rules_are_those_that_leave_everybody_in_one_group() -> None:
    assert {"fedavg", "fedprox", "fednova", "scaffold", "fedadam", "fedper", "lg-fedavg", "ditto"} <= set(RULES)
    assert not {"local", "fmcl", "cfl", "ifca", "dc"} & set(RULES)


@pytest.mark.parametrize("rule", sorted(set(RULES) - {"fedavg"}))
def test_every_rule_works_in_the_groups_of_fmcl(small_config: MakeConfig, rule: str) -> None:
    config = small_config(**GROUPED, train__rule=rule)
    record, _ = run(config)
    assert not record.of(SiteLeftOut)
    assert not record.of(MemoryLost)
    assert set(record.of(GroupsFormed)[0].labels) == {0, 1}
    assert len(record.of(RoundFinished)) == 2
    assert np.isfinite(record.of(RoundFinished)[-1].overall.loss)


def last_models(record: Record) -> dict[int, dict[str, np.ndarray]]:
    return record.of(RoundTrained)[-1].models


def test_a_group_is_to_its_rule_what_a_federation_is(small_config: MakeConfig) -> None:
    """With a single group it is the rule itself, bit for bit; with fedavg it is the grouping itself."""
    one = run(small_config(**GROUPED | {"cluster__k": 1}, train__rule="scaffold"))[0]
    alone = run(small_config(**GROUPED | {"method": "scaffold", "cluster__k": 0}))[0]
    for name, array in last_models(alone)[0].items():
        np.testing.assert_array_equal(last_models(one)[0][name], array)
    plain, named = (run(small_config(**GROUPED, train__rule=rule))[0] for rule in ("", "fedavg"))
    for group, model in last_models(plain).items():
        for name, array in model.items():
            np.testing.assert_array_equal(last_models(named)[group][name], array)


def test_groups_have_variates_of_their_own(small_config: MakeConfig) -> None:
    """c is the mean of the group's own c_i: a site alone is not corrected, and several are."""
    record = run(small_config(**GROUPED, train__rule="scaffold"))[0]
    ours, theirs = last_models(record), last_models(run(small_config(**GROUPED))[0])
    labels = record.of(GroupsFormed)[0].labels
    assert sorted(labels.count(group) for group in ours) == [1, 3]
    for group in ours:
        same = np.array_equal(ours[group]["head.weight"], theirs[group]["head.weight"])
        assert same == (labels.count(group) == 1)


def test_a_way_to_train_goes_into_groups_that_split(small_config: MakeConfig) -> None:
    config = small_config(
        method="cfl", train__rule="ditto", rounds=3, cfl__after=0, cfl__mean_norm=1e6, cfl__max_norm=1e-6
    )
    record, _ = run(config)
    assert not record.of(SiteLeftOut)
    assert len(set(record.of(RoundTrained)[-1].labels.values())) > 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "fmcl", "train.rule": "scafold"}, "did you mean scaffold"),
        ({"method": "fedavg", "train.rule": "scaffold"}, "write method = 'scaffold'"),
        ({"method": "ditto", "train.rule": "scaffold"}, "how sites train already"),
        ({"method": "local", "train.rule": "scaffold"}, "every site is alone"),
        ({"method": "dc", "train.rule": "scaffold"}, "single round"),
        ({"method": "ifca", "cluster.k": 2, "train.rule": "scaffold"}, "cannot have two"),
        ({"method": "cfl", "train.rule": "scaffold"}, "sites move between groups"),
        ({"method": "fedcm", "train.rule": "scaffold"}, "sites move between groups"),
        ({"method": "fedcm", "train.rule": "fedper"}, "never sends them"),
        ({"method": "fmcl", "train.rule": "pfedme", "train.lr": 1.0}, "overshoot"),
        ({"method": "fmcl", "train.rule": "fedper", "train.model": "head"}, "nothing that fedper would send"),
    ],
)
def test_what_contradicts_itself_is_refused_with_a_sentence(settings: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        settle(parse(settings))


def test_what_does_not_is_settled() -> None:
    for settings in (
        {"method": "fedcm", "train.rule": "scaffold", "migration.rule": "off"},
        {"method": "fedcm", "train.rule": "ditto"},
        {"method": "fedcm", "train.rule": "lg-fedavg", "train.model": "lenet5"},
        {"method": "cfl", "train.rule": "fedper"},
        {"method": "pacfl", "train.rule": "per-fedavg-hf"},
    ):
        config = settle(parse(settings))
        assert recipe(config).title == f"{METHODS[config.method].title} + {RULES[config.train.rule].title}"


def test_what_a_rule_fixes_is_fixed_in_groups_too() -> None:
    assert settle(parse({"method": "fmcl", "train.rule": "per-fedavg-hf"})).of(Settings).gradient == "hf"


def test_a_resumed_run_ends_in_the_same_bits(small_config: MakeConfig, tmp_path: Path) -> None:
    settings = GROUPED | {"train__rule": "scaffold", "rounds": 4, "checkpoint": 2, "train__fraction": 0.5}
    check_resumed(small_config, tmp_path, stop=4, **settings)
