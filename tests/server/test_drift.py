"""Drift: who holds what in which round of a scenario, how images change, and sites that watch their own folders."""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from cli.simulation.preflight import prepare
from client.app import app
from client.data import SiteData, load_site, partition
from client.data import site as site_module
from client.data.alterations import Alteration, altered, altered_samples
from client.data.arrays import read_digits
from client.data.drift import DriftPlan, plan_drift
from client.data.samples import FileSamples
from client.identity import Identity
from common import wire
from common.config import Config, PartitionSettings, SettingsError, SiteSettings, flat_values, load, parse
from common.drift import DriftEvent, InvalidScenario, check_scenario, read_scenario, write_scenario
from tests.support.loopback import set_task_identity

ROOT = Path(__file__).parents[2]
ROUNDS = 10
Index = NDArray[np.int64]
Make = Callable[..., Config]


def event(kind: Any = "swap", at: int | float = 4, sites: Any = 0.5, **options: Any) -> DriftEvent:
    return DriftEvent(kind=kind, at=at, sites=sites, **options)


class TestSeverity:
    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"at": 4}, [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1]),
            ({"at": 1}, [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]),
            ({"at": 0.4}, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]),
            ({"at": 0.999}, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
            ({"at": 4, "over": 4}, [0, 0, 0, 0, 0.25, 0.5, 0.75, 1, 1, 1, 1]),
            ({"at": 0}, [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]),
            ({"at": 7, "extent": 0.5}, [0, 0, 0, 0, 0, 0, 0, 0.5, 0.5, 0.5, 0.5]),
            ({"at": 7, "extent": 0.5, "over": 2}, [0, 0, 0, 0, 0, 0, 0, 0.25, 0.5, 0.5, 0.5]),
            ({"at": 2, "period": 2}, [0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1]),
            ({"at": 3, "period": 3, "over": 2}, [0, 0, 0, 0.5, 1, 1, 0, 0, 0, 0.5, 1]),
        ],
    )
    def test_sudden_gradual_and_recurring(self, options: dict[str, Any], expected: list[float]) -> None:
        drift = event(**options)
        assert [drift.severity(number, ROUNDS) for number in range(ROUNDS + 1)] == expected

    def test_a_share_of_the_run_is_not_spoilt_by_rounding(self) -> None:
        assert event(at=0.29).first_round(100) == 30
        for percent in range(1, 100):
            assert event(at=percent / 100).first_round(100) == percent + 1


class TestScenario:
    def test_a_file_its_tables_in_a_configuration_and_json_are_the_same(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tables = '[[drift]]\nkind = "vanish"\nat = 0.4\nsites = ["000", "003"]\nclasses = ["7"]\n'
        tables += '[[drift]]\nkind = "blur"\nat = 3\nsites = 1.0\nstrength = 1\n'
        expected = (
            event("vanish", 0.4, ("000", "003"), classes=("7",)),
            event("blur", 3, 1.0, strength=1.0),
        )
        (tmp_path / "scenario.toml").write_text(tables)
        (tmp_path / "run.toml").write_text(tables)
        (tmp_path / "named.toml").write_text('drift = "scenario.toml"')
        monkeypatch.chdir(tmp_path)
        assert load(tmp_path / "run.toml").drift == expected
        assert load(tmp_path / "named.toml").drift == expected
        assert parse({"drift": str(tmp_path / "scenario.toml")}).drift == expected
        assert parse({"drift": write_scenario(expected)}).drift == expected
        assert parse({"drift": expected}).drift == expected
        assert load(tmp_path / "run.toml", {"drift": ""}).drift == ()

    @given(
        st.lists(
            st.builds(
                event,
                st.sampled_from(["swap", "vanish", "blur", "contrast", "invert"]),
                st.integers(1, 20) | st.floats(0.01, 0.99),
                st.floats(0.01, 1) | st.sampled_from([("000", "001"), ("003", "002")]),
                over=st.integers(1, 5),
            )
            | st.builds(event, st.sampled_from(["blur", "contrast"]), strength=st.floats(0.1, 1)),
            max_size=3,
        )
    )
    def test_it_travels_unchanged(self, events: list[DriftEvent]) -> None:
        config = parse({"drift": tuple(events)})
        assert parse(flat_values(config)) == config
        assert read_scenario(write_scenario(tuple(events))) == tuple(events)
        site = config.for_site()
        assert SiteSettings.model_validate_json(site.model_dump_json(), strict=False) == site
        assert hash(site) == hash(config.for_site())

    @pytest.mark.parametrize("path", sorted((ROOT / "configs" / "drift").glob("*.toml")), ids=lambda path: path.stem)
    def test_shipped_scenarios_are_valid(self, path: Path) -> None:
        assert len(read_scenario(str(path))) == 1
        assert load(ROOT / "configs" / "demo.toml", {"drift": str(path)}).drift

    def test_all_kinds_are_shipped(self) -> None:
        kinds = {read_scenario(str(path))[0].kind for path in (ROOT / "configs" / "drift").glob("*.toml")}
        assert kinds == {"swap", "vanish", "blur", "contrast", "invert"}

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"at": -1}, ["drift event 1: at = -1", "a round", "between 0 and 1"]),
            ({"extent": 0.0}, ["extent = 0.0"]),
            ({"extent": 1.5}, ["extent = 1.5"]),
            ({"at": 1.5}, ["at = 1.5"]),
            ({"at": True}, ["at = True"]),
            ({"at": float("nan")}, ["at = nan"]),
            ({"at": "4"}, ["at = '4'"]),
            ({"sites": 1}, ["sites = 1 ", "1.0: all", "names"]),
            ({"sites": 0.0}, ["sites = 0.0"]),
            ({"sites": []}, ["sites = []"]),
            ({"sites": [0, 1]}, ["sites = [0, 1]", '"000"']),
            ({"sites": "000"}, ["sites = '000'"]),
            ({"sites": ["000", "000"]}, ["twice"]),
            ({"sites": ["000"]}, ["even number"]),
            ({"over": 3, "period": 2}, ["over = 3", "period = 2"]),
            ({"over": 0}, ["over = 0", "greater than or equal to 1"]),
            ({"classes": ["1"]}, ["'vanish'"]),
            ({"strength": 0.9}, ["strength goes with", "'blur'", "not with 'swap'"]),
            ({"strength": 0.5, "kind": "vanish"}, ["not with 'vanish'"]),
            ({"strength": 0.5, "kind": "invert"}, ["not with 'invert'"]),
            ({"kind": "melt"}, ["kind = 'melt'", "'swap'"]),
            ({"sitse": 3}, ["there is no sitse", "sites"]),
        ],
    )
    def test_mistakes_are_said_in_one_sentence(self, changes: dict[str, Any], words: list[str]) -> None:
        with pytest.raises(SettingsError) as caught:
            parse({"drift": [{"kind": "swap", "at": 4, "sites": 0.5} | changes]})
        message = str(caught.value)
        assert message.count("drift event 1") == 1
        assert all(word in message for word in words), message

    def test_what_is_no_scenario_at_all(self, tmp_path: Path) -> None:
        (tmp_path / "more.toml").write_text("rounds = 3\n[[drift]]\n")
        (tmp_path / "bad.toml").write_text("[[drift")
        (tmp_path / "wrong.toml").write_text("[[drift]]\nkind = 'swap'\nsites = 0.5")
        for text, words in {
            str(tmp_path / "none.toml"): "cannot read the drift scenario .*No such file",
            str(tmp_path): "cannot read the drift scenario",
            str(tmp_path / "more.toml"): "and nothing else",
            str(tmp_path / "bad.toml"): "not valid TOML",
            str(tmp_path / "wrong.toml"): r"wrong\.toml: drift event 1: at is missing \(first round",
            "[{]": "not valid JSON",
            "[3]": "drift event 1: 3 is not a table",
        }.items():
            with pytest.raises(InvalidScenario, match=words):
                read_scenario(text)
        with pytest.raises(InvalidScenario, match="list of"):
            check_scenario(3)
        with pytest.raises(SettingsError, match=r"two brackets: \[\[drift\]\]"):
            parse({"drift": {"kind": "swap", "at": 3, "sites": 0.5}})

    def test_drift_after_the_end_is_refused(self) -> None:
        with pytest.raises(SettingsError, match="drift event 2: at = 11 is after the last round"):
            parse({"rounds": 10, "drift": (event(at=10), event(at=11))})
        assert parse({"rounds": 0, "drift": (event(at=11),)}).drift


SCHEMES = st.sampled_from(["dirichlet", "classes", "disjoint", "iid"])


def deal(labels: Index, sites: int, seed: int, **options: Any) -> list[tuple[Index, Index]]:
    """Every third sample of a site, at least one and not all, is for testing."""
    shares = partition(labels, None, sites, PartitionSettings(**options), seed)
    return [(np.delete(share, np.s_[1::3]), share[1::3]) for share in shares]


def make_plan(
    events: list[DriftEvent], labels: Index, parts: list[tuple[Index, Index]], seed: int = 0, classes: str = "01234"
) -> DriftPlan:
    return plan_drift(events, seed=seed, rounds=ROUNDS, labels=labels, classes=tuple(classes), parts=parts)


class TestSwap:
    @settings(max_examples=80)
    @given(
        sites=st.integers(2, 9),
        scheme=SCHEMES,
        seed=st.integers(0, 9),
        swaps=st.lists(
            st.builds(
                event,
                at=st.integers(1, 6),
                sites=st.floats(0.01, 1) | st.just(("000", "001")),
                over=st.integers(1, 4),
                period=st.sampled_from([0, 4]),
            ),
            min_size=1,
            max_size=3,
        ),
    )
    def test_every_sample_has_one_holder_and_stays_on_its_side(
        self, sites: int, scheme: Any, seed: int, swaps: list[DriftEvent]
    ) -> None:
        labels = np.random.default_rng(seed).permutation(np.arange(60) % 5)
        try:
            parts = deal(labels, sites, seed, scheme=scheme, min_size=2, groups=2)
        except SettingsError:
            assume(False)
        plan = make_plan(swaps, labels, parts, seed)
        all_train = np.sort(np.concatenate([train for train, _ in parts]))
        all_test = np.sort(np.concatenate([test for _, test in parts]))
        for number in range(ROUNDS + 1):
            holdings = [plan.holding(site, number) for site in range(sites)]
            assert np.array_equal(np.sort(np.concatenate([held.train for held in holdings])), all_train)
            assert np.array_equal(np.sort(np.concatenate([held.test for held in holdings])), all_test)
            for held in holdings:
                assert len(held.train)
                assert (np.diff(held.train) > 0).all()
                assert (np.diff(held.test) > 0).all()
                assert not held.alterations

    def test_the_named_exchange_in_the_order_given_and_nobody_else(self) -> None:
        labels = np.arange(60) % 5
        parts = deal(labels, 6, 0, scheme="iid")
        plan = make_plan([event(sites=("004", "000", "001", "002"))], labels, parts)
        partners = {4: 0, 0: 4, 1: 2, 2: 1, 3: 3, 5: 5}
        for site, partner in partners.items():
            held = plan.holding(site, 4)
            assert np.array_equal(held.train, parts[partner][0])
            assert np.array_equal(held.test, parts[partner][1])

    @settings(max_examples=150)
    @given(groups=st.integers(2, 5), per_group=st.integers(1, 5), extra=st.integers(0, 4), share=st.floats(0.01, 1),
           seed=st.integers(0, 50))  # fmt: skip
    def test_with_disjoint_labels_whoever_swaps_changes_group(
        self, groups: int, per_group: int, extra: int, share: float, seed: int
    ) -> None:
        sites = groups * per_group + extra % groups
        labels = np.arange(sites * 20) % 5
        parts = deal(labels, sites, seed, scheme="disjoint", groups=groups, min_size=2)
        plan = make_plan([event(sites=share)], labels, parts, seed)
        swapped = 0
        for site, (train, _) in enumerate(parts):
            now = plan.holding(site, 4).train
            if not np.array_equal(now, train):
                swapped += 1
                assert not set(labels[now]) & set(labels[train])
        assert swapped % 2 == 0
        assert max(2, share * sites - 1 - 1e-9) <= swapped <= max(2, share * sites + 1 + 1e-9)

    @settings(max_examples=60)
    @given(seed=st.integers(0, 999), groups=st.integers(2, 5), flip=st.booleans(), share=st.floats(0.3, 1))
    def test_whoever_swaps_again_changes_group_again(self, seed: int, groups: int, flip: bool, share: float) -> None:
        labels = np.arange(200) % 5
        parts = deal(labels, 10, seed, scheme="disjoint", groups=groups, min_size=2)
        events = [event(at=2, sites=1.0), event(at=5, sites=share), event(at=7, sites=1.0)]
        # Whatever the order of the file: what happens later happens to what there is then.
        plan = make_plan(events[::-1] if flip else events, labels, parts, seed)
        for number in (2, 5, 7):
            for site in range(10):
                before, now = (plan.holding(site, when).train for when in (number - 1, number))
                if not np.array_equal(before, now):
                    assert not set(labels[before]) & set(labels[now])

    def test_a_later_swap_is_of_what_sites_then_hold_whatever_the_order_of_the_file(self) -> None:
        labels = np.arange(60) % 5
        parts = deal(labels, 3, 0, scheme="iid")
        first, then = event(at=2, sites=("000", "002")), event(at=5, sites=("000", "001"))
        for events in ([first, then], [then, first]):
            plan = make_plan(events, labels, parts)
            for number, owners in ((1, (0, 1, 2)), (4, (2, 1, 0)), (5, (1, 2, 0))):
                for site, owner in enumerate(owners):
                    assert np.array_equal(plan.holding(site, number).train, parts[owner][0])

    def test_of_two_swaps_in_one_round_the_second_pairs_what_the_first_made(self) -> None:
        labels = np.arange(200) % 5
        parts = deal(labels, 10, 0, scheme="disjoint", groups=5)
        for seed in range(20):
            once, twice = (make_plan([event(sites=1.0)] * times, labels, parts, seed) for times in (1, 2))
            for site in range(10):
                assert not set(labels[once.holding(site, 4).train]) & set(labels[twice.holding(site, 4).train])

    def test_a_fifth_of_twenty_is_four_and_the_seed_draws_them(self) -> None:
        labels = np.arange(400) % 5
        parts = deal(labels, 20, 0, scheme="disjoint")
        drawn = set()
        for seed in range(5):
            plan = make_plan([event(sites=0.2)], labels, parts, seed)
            swapped = [site for site in range(20) if not np.array_equal(plan.holding(site, 4).train, parts[site][0])]
            assert len(swapped) == 4
            drawn.add(tuple(swapped))
        assert len(drawn) == 5

    def test_gradually_what_has_moved_stays_moved(self) -> None:
        labels = np.arange(400) % 5
        parts = deal(labels, 2, 0, scheme="iid")
        plan = make_plan([event(sites=1.0, over=4)], labels, parts)
        came = [np.setdiff1d(plan.holding(0, number).train, parts[0][0]) for number in range(3, 8)]
        assert all(np.isin(earlier, later).all() for earlier, later in pairwise(came))
        assert len(came[0]) == 0
        assert np.array_equal(came[-1], parts[1][0])
        shares = [len(rows) / len(parts[1][0]) for rows in came]
        assert np.abs(np.array(shares) - [0, 0.25, 0.5, 0.75, 1]).max() < 0.1

    def test_after_a_recurring_swap_everybody_has_their_own_again(self) -> None:
        labels = np.arange(400) % 5
        parts = deal(labels, 4, 0, scheme="iid")
        plan = make_plan([event(at=2, sites=1.0, period=2)], labels, parts)
        for number, home in ((1, True), (2, False), (3, False), (4, True), (5, True), (6, False)):
            for site in range(4):
                assert np.array_equal(plan.holding(site, number).train, parts[site][0]) is home

    def test_halfway_through_an_exchange_of_single_samples_nobody_is_empty_handed(self) -> None:
        labels = np.arange(4)
        parts = [(np.array([0]), np.array([1])), (np.array([2]), np.array([3]))]
        first = []
        for seed in range(20):
            plan = make_plan([event(sites=1.0, over=2)], labels, parts, seed)
            held = [plan.holding(site, 4).train.tolist() for site in (0, 1)]
            assert held in ([[0], [2]], [[2], [0]])
            first.append(held[0] == [2])
            assert [plan.holding(site, 5).train.tolist() for site in (0, 1)] == [[2], [0]]
        assert 0 < sum(first) < 20

    def test_one_site_alone_cannot_swap(self) -> None:
        labels = np.arange(20) % 5
        with pytest.raises(SettingsError, match=r"event 1 \(swap\): .*nobody .*sites = 1"):
            make_plan([event()], labels, deal(labels, 1, 0, scheme="iid"))


class TestVanish:
    labels = np.array([0] * 30 + [1] * 20 + [2] * 10)

    def parts(self) -> list[tuple[Index, Index]]:
        """Site 0 has classes 0 and 1 (more of 0), site 1 only class 0, site 2 classes 1 and 2 (more of 2)."""
        shares = [np.r_[0:12, 30:37], np.r_[12:30], np.r_[37:45, 50:60]]
        return [(share[::2], share[1::2]) for share in shares]

    def held(self, plan: DriftPlan, site: int, number: int = 4) -> tuple[set[int], set[int]]:
        holding = plan.holding(site, number)
        return set(self.labels[holding.train].tolist()), set(self.labels[holding.test].tolist())

    def test_the_most_frequent_class_leaves_training_and_test(self) -> None:
        plan = make_plan([event("vanish", sites=1.0)], self.labels, self.parts())
        assert self.held(plan, 0, 3) == ({0, 1}, {0, 1})
        assert self.held(plan, 0) == ({1}, {1})
        assert self.held(plan, 2) == ({1}, {1})
        assert not plan.holding(0, 4).alterations

    def test_who_would_have_nothing_left_is_spared_at_every_severity(self) -> None:
        parts = self.parts()
        plan = make_plan([event("vanish", sites=1.0, over=4)], self.labels, parts)
        for number in range(ROUNDS + 1):
            assert np.array_equal(plan.holding(1, number).train, parts[1][0])
            assert np.array_equal(plan.holding(1, number).test, parts[1][1])

    def test_named_classes_at_named_sites(self) -> None:
        plan = make_plan([event("vanish", sites=("000",), classes=("1",))], self.labels, self.parts())
        assert self.held(plan, 0) == ({0}, {0})
        assert self.held(plan, 2) == ({1, 2}, {1, 2})

    def test_gradually_the_rest_of_the_class_stays(self) -> None:
        plan = make_plan([event("vanish", sites=1.0, over=3)], self.labels, self.parts())
        counts = [int((self.labels[plan.holding(0, number).train] == 0).sum()) for number in range(3, 7)]
        assert counts == sorted(counts, reverse=True)
        assert counts[0] == 6
        assert 0 < counts[2] < 6
        assert counts[-1] == 0

    def test_it_happens_to_the_data_a_site_has_after_a_swap_whatever_the_order_of_the_file(self) -> None:
        swap, vanish = event(at=2, sites=("000", "002")), event("vanish", 4, ("000",))
        for events in ([swap, vanish], [vanish, swap]):
            plan = make_plan(events, self.labels, self.parts())
            assert self.held(plan, 0, 3) == ({1, 2}, {1, 2})
            assert self.held(plan, 0, 4) == ({1}, {1})
            assert self.held(plan, 2, 4) == ({0, 1}, {0, 1})

    def test_unknown_names_are_said_with_what_is_allowed(self) -> None:
        for drift, words in (
            (event("vanish", sites=("003",)), r"event 2 \(vanish\): '003' is not .* 000 to 002"),
            (event("swap", sites=("000", "7")), "'7' is not the name of a simulated site"),
            (event("vanish", classes=("cat",)), r"class 'cat' is not in the agreed class list \(0, 1, 2, 3, 4\)"),
        ):
            with pytest.raises(SettingsError, match=words):
                make_plan([event("blur"), drift], self.labels, self.parts())


class TestAlterations:
    def change(self, pixels: NDArray[np.uint8], kind: Any, strength: float = 0.5) -> NDArray[np.uint8]:
        positions = np.arange(len(pixels))
        return altered(pixels, positions, [Alteration(kind, strength, positions)])

    def test_contrast_and_inversion_by_hand(self) -> None:
        pixels = np.array([0, 100, 255], np.uint8).reshape(1, 1, 3, 1)
        assert self.change(pixels, "invert").ravel().tolist() == [255, 155, 0]
        assert self.change(pixels, "contrast", 0.5).ravel().tolist() == [64, 114, 191]
        assert self.change(pixels, "contrast", 1.0).ravel().tolist() == [128] * 3

    def test_blur_keeps_the_mean_and_loses_detail_alike_at_every_resolution(self) -> None:
        board = np.indices((4, 4)).sum(axis=0) % 2 * 200
        for size in (16, 32, 64):
            pixels = np.kron(board, np.ones((size // 4, size // 4))).astype(np.uint8)[np.newaxis, :, :, np.newaxis]
            deviations = [float(self.change(pixels, "blur", strength).std()) for strength in (0.5, 1.0)]
            # From 100: clearly visible, and hardly anything left.
            assert deviations == pytest.approx([57, 25], abs=6)
            assert self.change(pixels, "blur").mean() == pytest.approx(100, abs=2)

    def test_only_the_samples_meant_are_altered_one_after_the_other(self) -> None:
        pixels = np.full((3, 8, 8, 1), 10, np.uint8)
        steps = [Alteration("invert", 0.5, np.array([7, 9])), Alteration("contrast", 1.0, np.array([9]))]
        result = altered(pixels, np.array([9, 3, 7]), steps)
        assert result[:, 0, 0, 0].tolist() == [128, 10, 245]
        assert (pixels == 10).all()

    def test_the_encoder_sees_them_and_the_digest_tells(self) -> None:
        digits = read_digits()
        assert altered_samples(digits, ()) is digits
        digests = {digits.digest}
        for kind, strength, rows in (
            ("blur", 0.5, [0, 1]), ("blur", 0.6, [0, 1]), ("blur", 0.5, [0, 2]), ("contrast", 0.5, [0, 1]),
        ):  # fmt: skip
            drift = (Alteration(kind, strength, np.array(rows)),)
            seen = altered_samples(digits, drift)
            digests.add(seen.digest)
            for size, channels in ((8, 1), (24, 3)):
                plain = digits.images(np.arange(4), size, channels)
                shown = seen.images(np.arange(4), size, channels)
                assert np.array_equal(shown, altered(plain, np.arange(4), drift))
                assert [bool((shown[row] != plain[row]).any()) for row in range(4)] == [row in rows for row in range(4)]
        assert len(digests) == 5


@pytest.fixture
def simulated(small_config: Make) -> Callable[..., list[SiteData]]:
    """All sites of a run on digits in one round."""

    def open_all(number: int, *events: DriftEvent, seed: int = 0, name: str = "{:03d}", **overrides: Any) -> Any:
        config = small_config(rounds=ROUNDS, seed=seed, drift=events, **overrides)
        return [
            load_site(Identity(name.format(index), None, (index, 6), None), config.for_site(), number, ROUNDS)
            for index in range(6)
        ]

    return open_all


def same(one: SiteData, other: SiteData) -> bool:
    return (
        one.samples.digest == other.samples.digest
        and np.array_equal(one.train_labels, other.train_labels)
        and np.array_equal(one.test_labels, other.test_labels)
        and np.array_equal(one.train_images(), other.train_images())
        and np.array_equal(one.test_images(), other.test_images())
    )


class TestSites:
    everything = (
        event(sites=1.0, over=3),
        event("vanish", sites=0.5),
        event("blur", sites=0.5),
        event("invert", sites=0.5),
    )

    def test_before_the_drift_nothing_differs_from_a_run_without(
        self, simulated: Callable[..., list[SiteData]]
    ) -> None:
        plain = simulated(3)
        for number in (0, 3):
            for before, without in zip(simulated(number, *self.everything), plain, strict=True):
                # Equal, and perhaps the same: caches of other tests may have let the common data set be read again.
                assert before.samples.digest == without.samples.digest
                assert same(before, without)
        assert not any(same(*pair) for pair in zip(simulated(4, *self.everything), plain, strict=True))

    def test_the_same_seed_gives_the_same_bits_whatever_the_sites_are_called(
        self, simulated: Callable[..., list[SiteData]]
    ) -> None:
        first = simulated(5, *self.everything)
        for kept in (site_module._open_common, site_module._shares, site_module._part, site_module._plan):
            kept.cache_clear()
        again = simulated(5, *self.everything, name="clinic{}")
        assert all(same(*pair) for pair in zip(first, again, strict=True))
        other = simulated(5, *self.everything, seed=1)
        assert not any(same(*pair) for pair in zip(first, other, strict=True))

    @pytest.mark.parametrize("scheme", ["dirichlet", "disjoint", "iid"])
    def test_nobody_is_ever_tested_on_what_anybody_trained_on(
        self, simulated: Callable[..., list[SiteData]], scheme: str
    ) -> None:
        trained: set[int] = set()
        tested: set[int] = set()
        for number in range(1, ROUNDS + 1):
            held: list[int] = []
            for site in simulated(number, *self.everything, partition__scheme=scheme):
                trained |= set(site.train.tolist())
                tested |= set(site.test.tolist())
                held += [*site.train.tolist(), *site.test.tolist()]
            assert len(set(held)) == len(held)
        assert not trained & tested

    def test_images_change_for_training_for_testing_and_for_the_encoder(
        self, simulated: Callable[..., list[SiteData]]
    ) -> None:
        before, after = simulated(3), simulated(4, event("invert", sites=("001", "004")))
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            if index not in (1, 4):
                assert new.samples.digest == old.samples.digest
                assert same(old, new)
                continue
            assert np.array_equal(new.train_images(), 255 - old.train_images())
            assert np.array_equal(new.test_images(), 255 - old.test_images())
            assert np.array_equal(new.images.images(new.train, 8, 1), new.train_images())
            encoder_view = [site.images.images(site.train, 24, 3) for site in (old, new)]
            assert np.array_equal(encoder_view[1], 255 - encoder_view[0])
            assert new.samples.digest != old.samples.digest
        assert after[1].samples.digest != after[4].samples.digest

    def test_a_gradual_change_of_images_grows_and_each_step_has_its_digest(
        self, simulated: Callable[..., list[SiteData]]
    ) -> None:
        plain = simulated(3)[0].train_images()
        digests, shares, changed = [], [], np.zeros(len(plain), np.bool_)
        for number in (3, 4, 5, 6, 7):
            site = simulated(number, event("contrast", sites=1.0, over=3))[0]
            now = (site.train_images() != plain).any(axis=(1, 2, 3))
            assert (now | ~changed).all()
            changed = now
            shares.append(float(now.mean()))
            digests.append(site.samples.digest)
        assert shares[0] == 0
        assert 0 < shares[1] < shares[2] < 1
        assert shares[3:] == [1, 1]
        assert len(set(digests)) == 4
        assert digests[3] == digests[4]

    def test_whoever_is_inverted_twice_is_as_he_was(self, simulated: Callable[..., list[SiteData]]) -> None:
        plain = simulated(0)
        devices = (event("invert", 0, ("001", "004")), event("invert", 6, ("001", "002")))
        for number, inverted in ((0, (1, 4)), (5, (1, 4)), (6, (2, 4))):
            for index, (one, was) in enumerate(zip(simulated(number, *devices), plain, strict=True)):
                pixels = was.train_images()
                assert np.array_equal(one.train_images(), 255 - pixels if index in inverted else pixels)

    def test_a_site_is_split_as_its_number_says(self, simulated: Callable[..., list[SiteData]]) -> None:
        site = simulated(0, name="clinic{}")[3]
        share = np.sort(np.concatenate([site.train, site.test]))
        train, test = site_module._split(site.samples, share, 0.2, 0, "003")
        assert np.array_equal(site.train, train)
        assert np.array_equal(site.test, test)

    def test_a_message_of_a_round_finds_the_data_of_that_round(self, small_config: Make) -> None:
        set_task_identity()
        config = small_config(
            rounds=ROUNDS, drift=(event(sites=("000", "001")),), partition__scheme="disjoint", partition__groups=2
        )

        def class_counts(number: int, index: int) -> tuple[int, ...]:
            task = wire.pack_task(wire.Task(config.for_site(), number, ROUNDS))
            context = Context(1, 7, {"partition-id": index, "num-partitions": 6}, RecordDict(), {})
            reply = app(Message(task, 7, "query.hello"), context)
            introduction = wire.unpack_introduction(reply.content, classes=10, limit_mb=1, fingerprint=None)
            return introduction.card.class_counts

        assert class_counts(0, 0) != class_counts(0, 1)
        assert class_counts(3, 0) == class_counts(0, 0)
        assert class_counts(4, 0) == class_counts(0, 1)
        assert class_counts(4, 1) == class_counts(0, 0)

    def test_mistakes_are_found_before_a_simulation_starts(self, small_config: Make) -> None:
        for drift, words in (
            (event(sites=("000", "006")), "'006' is not the name of a simulated site; they are called 000 to 005"),
            (event("vanish", classes=("ten",)), "class 'ten' is not in the agreed class list"),
        ):
            with pytest.raises(SettingsError, match=words):
                prepare(small_config(rounds=ROUNDS, drift=(drift,)))
        assert prepare(small_config(rounds=ROUNDS, drift=(event(),))).drift == (event(),)


def save(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (8, 8), value).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(12):
        save(tmp_path / "scans" / "ab"[number % 2] / f"{number}.png", 10 * number)
    return tmp_path / "scans"


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    original = FileSamples.original

    def recorded(self: FileSamples, position: int) -> Image.Image:
        names.append(self.name(position))
        return original(self, position)

    monkeypatch.setattr(FileSamples, "original", recorded)
    return names


def own(folder: Path, *, name: str = "clinic", drift: tuple[DriftEvent, ...] = (), **data: Any) -> SiteData:
    options = {"classes": ("a", "b"), "image_size": 8, "channels": 1} | data
    site_settings = SiteSettings.model_validate({"data": options, "drift": drift})
    return load_site(Identity(name, folder, None, folder.parent / "cache"), site_settings, 5, ROUNDS)


def values(site: SiteData) -> list[int]:
    return sorted([*site.train_images()[:, 0, 0, 0].tolist(), *site.test_images()[:, 0, 0, 0].tolist()])


def kept(folder: Path) -> list[str]:
    return sorted(path.suffix for path in (folder.parent / "cache" / "decoded").iterdir())


SIZE = 8
UNIVERSE = 24


def write_state(root: Path, kind: str, rows: list[int]) -> Path:
    """Give a site the samples `rows`, in that order; sample i is of patient i // 3, but the last six are of nobody."""
    if kind.startswith("npz"):
        pixels = np.array(rows, np.uint8)[:, None, None] * np.full((1, SIZE, SIZE), 10, np.uint8)
        groups = {"group": [f"p{row // 3}" for row in rows]} if kind == "npz, groups" else {}
        np.savez(root / "data.npz", x=pixels, y=[row % 2 for row in rows], **groups)  # type: ignore[arg-type]
        return root / "data.npz"
    scans = root / "scans"
    wanted = {scans / "ab"[row % 2] / f"{row}.png": row for row in rows}
    for path in set(scans.rglob("*.png")) - wanted.keys():
        path.unlink()
    for path, row in wanted.items():
        if not path.exists():
            save(path, 10 * row)
    if kind == "folder":
        return scans
    with (root / "list.csv").open("w") as handle:
        table = csv.writer(handle)
        table.writerow(["path", "label", "group"])
        for path, row in wanted.items():
            table.writerow([path.relative_to(root), "ab"[row % 2], f"p{row // 3}" if row < UNIVERSE - 6 else ""])
    return root / "list.csv"


class TestWatch:
    @pytest.mark.parametrize("kind", ["folder", "manifest, groups", "npz", "npz, groups"])
    @settings(max_examples=12, deadline=None)
    @given(
        states=st.lists(st.sets(st.integers(0, UNIVERSE - 1)), min_size=1, max_size=4),
        shuffle=st.randoms(use_true_random=False),
        name=st.sampled_from(["clinic", "practice", "hospital"]),
    )
    def test_nobody_is_ever_tested_on_what_was_trained_on(
        self, kind: str, states: list[set[int]], shuffle: Any, name: str
    ) -> None:
        sides: list[tuple[set[int], set[int]]] = []
        with tempfile.TemporaryDirectory() as folder:
            for state in [set(range(UNIVERSE)), *states]:
                # One that trains is always there: a site that has nothing else would train on what it held out.
                rows = list(state | {min(sides[0][0])} if sides else state)
                shuffle.shuffle(rows)
                path = write_state(Path(folder), kind, rows)
                site = own(path, name=name, watch=True)
                train, test = (set((x[:, 0, 0, 0] // 10).tolist()) for x in (site.train_images(), site.test_images()))
                assert train | test == set(rows)
                if "groups" in kind:
                    patients = [
                        {row // 3 for row in side if kind == "npz, groups" or row < UNIVERSE - 6}
                        for side in (train, test)
                    ]
                    assert not patients[0] & patients[1]
                sides.append((train, test))
        trained, tested = (set().union(*(side[part] for side in sides)) for part in (0, 1))
        assert not trained & tested
        assert tested

    def test_a_site_that_has_only_what_it_would_hold_out_trains_on_one(self, tmp_path: Path) -> None:
        tests = own(write_state(tmp_path, "folder", list(range(UNIVERSE))), watch=True).test_images()[:, 0, 0, 0] // 10
        assert len(tests) > 1
        site = own(write_state(tmp_path, "folder", tests.tolist()), watch=True)
        assert (len(site.train), len(site.test)) == (1, len(tests) - 1)

    def test_a_watched_folder_is_read_anew_and_only_what_is_new_is_decoded(
        self, folder: Path, decodings: list[str]
    ) -> None:
        (folder / "a" / "broken.png").write_text("this is not an image")
        assert values(own(folder, watch=True)) == [10 * number for number in range(12)]
        del decodings[:]
        save(folder / "a" / "new.png", 200)
        save(folder / "b" / "1.png", 210)
        os.utime(folder / "b" / "1.png", ns=(5, 5))
        (folder / "a" / "2.png").unlink()
        changed = own(folder, watch=True)
        assert values(changed) == sorted([10 * number for number in range(12) if number not in (1, 2)] + [200, 210])
        assert sorted(decodings) == ["a/broken.png", "a/new.png", "b/1.png"]
        assert [fault.name for fault in changed.faults] == ["a/broken.png"]
        names = {changed.samples.name(int(row)): row for row in changed.train}
        for name, row in names.items():
            assert changed.images.image(int(row), 8, 1).max() == changed._pixels[row].max(), name

    def test_an_unwatched_folder_is_read_once(self, folder: Path, decodings: list[str]) -> None:
        first = own(folder)
        save(folder / "a" / "new.png", 200)
        assert own(folder) is first
        assert own(folder, image_size=16) is not first
        assert 200 in values(own(folder, watch=True))
        assert 200 not in values(own(folder))

    def test_only_the_last_state_of_a_folder_stays_on_disk(self, folder: Path) -> None:
        first = own(folder, watch=True)
        before = values(first)
        for number in range(3):
            save(folder / "a" / f"new{number}.png", 200 + number)
            own(folder, watch=True)
            assert kept(folder) == [".json", ".lock", ".npy", ".stamps"]
        # Whoever has an earlier state open goes on with it.
        assert values(first) == before
        own(folder, watch=True, image_size=16)
        assert kept(folder) == [".json", ".json", ".lock", ".lock", ".npy", ".npy", ".stamps", ".stamps"]

    def test_two_folders_do_not_disturb_each_other(self, folder: Path, decodings: list[str]) -> None:
        other = folder.parent / "other"
        save(other / "a" / "0.png", 99)
        save(other / "b" / "1.png", 98)
        own(other, watch=True)
        own(folder, watch=True)
        del decodings[:]
        assert values(own(other, watch=True)) == [98, 99]
        own(folder, watch=True)
        assert decodings == []

    def test_what_a_failing_disk_hid_is_not_hidden_for_ever(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        original = FileSamples.original

        def failing(self: FileSamples, position: int) -> Image.Image:
            if position == 4:
                raise OSError(5, "Input/output error")
            return original(self, position)

        with monkeypatch.context() as patch:
            patch.setattr(FileSamples, "original", failing)
            assert len(values(own(folder))) == 11
        assert len(values(own(folder))) == 12

    def test_a_scenario_does_not_reach_a_site_with_data_of_its_own(
        self, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        # Its names and classes are those of a simulation.
        drift = (event("invert", 1, 1.0), event("vanish", 1, ("099",), classes=("c",)))
        for _ in range(3):
            assert values(own(folder, name="lonely", drift=drift)) == [10 * number for number in range(12)]
        assert [record.message for record in caplog.records if "drift" in record.message] == [
            "site lonely has data of its own: the drift scenario of this run does not apply to it"
        ]
