"""A site with a budget, as a coordinator meets it: the real ClientApp answers in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cli.deployment.site_ledger import show_ledger
from cli.deployment.start_file import SiteFile, read_start_file
from client.policy.ledger import Entry, Ledger, LedgerBroken
from client.policy.policy import Policy
from client.policy.words import in_words
from client.privacy.accountant import Release, epsilon
from client.privacy.budget import spent_of
from client.privacy.plan import plan_of
from common import wire
from common.config import SiteSettings
from common.methods import AGREEMENTS
from common.privacy import PrivacySettings
from common.signature import Signature
from server.methods import METHODS
from tests.client.policy.test_attacks import SETTINGS, Site, refusal
from tests.support.federation import write_digits
from tests.support.policies import LENIENT

Make = Callable[..., Site]
CLASSES = 2


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A site of 2 × 10 images with a budget; the same folder is the same site."""
    write_digits(tmp_path / "data", (0, 1), count=10)

    def made(folder: str = "site", data: str = "data", **privacy: float) -> Site:
        policy = LENIENT | {"test_fraction": 0.3, "privacy": {"epsilon": 3.0} | privacy}
        place = tmp_path / folder
        node = {"policy": json.dumps(policy), "memory": str(place / "memory"), "models": str(place / "models")}
        return Site(place, tmp_path / data, **node)

    return made


def card(site: Site, kind: str = "query.hello", settings: dict[str, object] = SETTINGS) -> wire.Introduction:
    fingerprint = "signature" if kind == "query.signature" else None
    content = site.ask(kind, settings)
    return wire.unpack_introduction(content, classes=CLASSES, fingerprint=fingerprint, limit_mb=10)


def test_what_is_told_has_noise_and_is_paid_for_before_it_leaves(make: Make) -> None:
    site = make(epsilon=1.0)
    said = card(site, "query.signature")
    spending = said.card.spending
    assert spending is not None
    assert (spending.budget, spending.delta) == (1.0, 1e-5)
    assert 0 < spending.spent < 1.0
    entries = site.ledger.entries()
    assert [entry.what for entry in entries] == ["asked", "spent", "spent", "sent"]
    plan = plan_of(PrivacySettings(epsilon=1.0))
    assert (entries[1].part, entries[1].sigma) == ("train", plan.description)
    assert spending.spent == pytest.approx(spent_of(entries, 1e-5))
    # Nothing in the card is the exact number, but by chance: three numbers with a deviation of ten.
    assert said.card.class_counts != (7, 7) or said.card.test_samples != 6
    assert said.card.train_samples == sum(said.card.class_counts)
    assert said.card.fault_count == 0


def test_a_site_describes_itself_once_in_a_run(make: Make) -> None:
    site = make(descriptions=2)
    first, again = (card(site, "query.signature") for _ in range(2))
    assert isinstance(first.fingerprint, Signature)
    assert isinstance(again.fingerprint, Signature)
    assert first.card == again.card
    np.testing.assert_array_equal(first.fingerprint.prototypes, again.fingerprint.prototypes)


def ask(site: Site, kind: str, round_number: int, run: int = 1) -> object:
    return site.ask(kind, SETTINGS | {"train.model": "lenet5"}, run=run, round_number=round_number, rounds=9)


def test_when_the_budget_is_used_up_nothing_is_answered_after_a_restart_either(make: Make) -> None:
    def update(round_number: int, run: int = 1) -> wire.Update:
        content = ask(make(steps=2, descriptions=1), "train", round_number, run)
        return wire.unpack_update(content, declared={}, network=None, limit_mb=10)  # type: ignore[arg-type]

    # Each call is another process, as far as the site knows.
    spent = [update(number).spending.spent for number in (1, 2)]  # type: ignore[union-attr]
    assert spent[0] < spent[1] <= 3.0
    assert spent[1] == pytest.approx(3.0, rel=0.01)
    for number, run in ((3, 1), (1, 2)):
        text = refusal(ask(make(steps=2, descriptions=1), "train", number, run))  # type: ignore[arg-type]
        assert "policy.privacy.epsilon = 3, of which 3 is spent" in text
    assert make().ledger.entries()[-1].what == "declined"
    # More noise would not help: what is spent is spent.
    ledger = make().ledger.path
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(line for line in lines if b'"spent"' not in line))
    with pytest.raises(LedgerBroken):
        make().ledger.entries()


def test_tests_have_the_budget_of_the_samples_they_are_on(make: Make) -> None:
    site = make(tests=1, steps=5)
    declared = card(site).card

    def tested() -> wire.Evaluation:
        content = site.ask("evaluate", SETTINGS, round_number=1)
        return wire.unpack_evaluation(content, classes=CLASSES, limit_mb=10)

    assert tested().statistics.confusion.sum() == declared.test_samples
    with pytest.raises(wire.WireError, match=r"policy\.privacy\.epsilon"):
        tested()
    # Training goes on: its samples are others.
    assert wire.unpack_model(site.ask("train", SETTINGS, round_number=1))


@pytest.mark.parametrize("kind", ["evaluate", "train", "query.keep"])
def test_a_model_that_has_no_score_for_some_samples_is_answered_like_any_other(
    make: Make, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Who is told that there was none learns of those samples, exactly and for nothing."""
    honest = Site.model

    def loud(settings: SiteSettings) -> dict[str, np.ndarray]:
        return {name: np.full_like(array, 3e38) for name, array in honest(settings).items()}

    monkeypatch.setattr(Site, "model", staticmethod(loud))
    if kind == "query.keep":
        monkeypatch.setattr(Site, "with_model", ("query.keep",))
    content = make().ask(kind, SETTINGS, round_number=1)
    assert "refusal" not in content
    if kind == "evaluate":
        assert wire.unpack_evaluation(content, classes=CLASSES, limit_mb=10).statistics.confusion.sum() > 0
    if kind == "train":
        assert all(np.isfinite(array).all() for array in wire.unpack_model(content).values())


@pytest.mark.parametrize("kind", ["query.mean", "query.path", "query.head", "query.subspace", "query.collaboration"])
def test_other_fingerprints_are_declined(make: Make, kind: str) -> None:
    assert "policy.privacy covers" in refusal(make().ask(kind, SETTINGS))


def test_whatever_is_not_known_to_be_covered_is_declined(make: Make) -> None:
    covered = {rule for rule, agreement in AGREEMENTS.items() if agreement.private}
    assert covered == {"fedper", "lg-fedavg", "fedopt"}
    site = make()
    for rule in sorted({method.rule for method in METHODS.values()} - covered - {"fedavg", "local"}):
        if rule in AGREEMENTS and AGREEMENTS[rule].down:
            continue  # what comes with it is looked at first
        assert "policy.privacy covers no training" in refusal(site.ask("train", SETTINGS, rule=rule, round_number=1))
    assert "policy.privacy covers" in refusal(site.ask("query.method", SETTINGS, rule="rehearsal", question="train"))
    assert "policy.privacy covers" in refusal(site.ask("query.personalise", SETTINGS))
    assert all(not AGREEMENTS[rule].up and not AGREEMENTS[rule].questions for rule in covered)


def test_people_are_told_what_the_budget_is_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = Policy.model_validate({"privacy": {"epsilon": 3.0, "steps": 7}})
    said = list(in_words(policy))
    assert said[0].startswith("This site has a privacy budget: epsilon = 3 at delta = 1e-05")
    assert "7 steps of training" in said[1]
    assert not any("privacy budget" in line for line in in_words(Policy()))
    # In the start file, and from the command line; the ledger says what is left.
    start = tmp_path / "site.toml"
    start.write_text('site = "clinic"\nserver = "localhost:1"\ndata = "data"\n[policy.privacy]\nepsilon = 3.0\n')
    settings = read_start_file(start, SiteFile, {"policy.privacy.steps": 7})
    assert settings.policy == policy
    with Ledger(tmp_path / settings.ledger).held() as held:
        held.append(Entry(at=0.0, what="spent", part="train", sigma=4.0, times=2, text="training in round 1"))
    assert show_ledger(start, settings) == 0
    told = capsys.readouterr().out
    assert "on train samples, 2 × noise 4 at rate 1: training in round 1" in told
    assert f"epsilon = {epsilon([Release(4.0, times=2)], 1e-5):.3g} of 3 is spent" in told


PIXELS = SETTINGS | {"encoder.name": "pixels", "encoder.image_size": 8, "data.watch": True}


def difference(site: Site, other: Site) -> np.ndarray:
    """What a coordinator takes for the embedding of the one sample that the second site has less."""
    sums = []
    for one in (site, other):
        said = card(one, "query.signature", PIXELS)
        assert isinstance(said.fingerprint, Signature)
        total = np.zeros((CLASSES, said.fingerprint.dimension))
        counts = np.array(said.card.class_counts)[said.fingerprint.classes]
        total[said.fingerprint.classes] = said.fingerprint.prototypes * counts[:, None]
        sums.append(total)
    found: np.ndarray = (sums[0] - sums[1])[0]
    return found


def test_the_difference_of_two_signatures_is_a_row_without_noise_and_nothing_with_it(
    make: Make, tmp_path: Path
) -> None:
    """A class of ten, asked before and after one of its samples is taken away."""

    def bare(folder: str, data: str) -> Site:
        return Site(tmp_path / folder, tmp_path / data, policy=json.dumps(LENIENT))

    write_digits(tmp_path / "fewer", (0, 1), count=10)
    before = card(bare("bare", "data"), settings=PIXELS).card.class_counts
    for place, image in enumerate(sorted((tmp_path / "fewer" / "0").glob("*.png"))):
        content = image.read_bytes()
        image.unlink()
        if card(bare(f"bare {place}", "fewer"), settings=PIXELS).card.class_counts != before:
            break
        # One that is tested on. The next.
        image.write_bytes(content)
    truth = np.asarray(Image.open(BytesIO(content)).convert("RGB").resize((8, 8))).transpose(2, 0, 1).ravel() / 255
    assert np.abs(difference(bare("bare", "data"), bare(f"bare {place}", "fewer")) - truth).max() < 1e-3
    guesses = [
        difference(make(f"one {number}", "data", epsilon=8.0), make(f"two {number}", "fewer", epsilon=8.0))
        for number in range(5)
    ]
    # A constant grey is nearer.
    assert min(np.abs(guess - truth).mean() for guess in guesses) > np.abs(truth - 0.5).mean()
