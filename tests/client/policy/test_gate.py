"""The gate: rules one by one, limits over days and restarts, and runs that wait for somebody's yes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cli.main import main
from client.identity import identify
from client.policy.gate import DemonstrationGate, OpenGate, PolicyGate, gate_of
from client.policy.ledger import Ledger
from client.policy.policy import OPEN, Policy, allows
from client.policy.question import Question
from client.policy.rules import DAY, Declined, check
from client.policy.words import _SAYS, in_words, what_it_sends
from common import wire
from common.config import SettingsError, parse
from common.fingerprint import KINDS


def question(
    kind: str = "train",
    run: str = "1",
    rounds: int = 2,
    rule: str = "fedavg",
    described: int | None = None,
    **settings: object,
) -> Question:
    chosen = parse(
        {"data.classes": "a,b", "data.source": "folder"} | {k.replace("__", "."): v for k, v in settings.items()}
    )
    return Question(kind, wire.Task(chosen.for_site(), 1, rounds, rule=rule, described=described), run)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def gate(path: Path, clock: Clock | None = None, **lines: object) -> PolicyGate:
    """A gate as a new process makes it."""
    clock = clock or Clock()
    return PolicyGate(Policy.model_validate(lines), Ledger(path / "ledger.jsonl"), clock, clock.sleep)


@pytest.mark.parametrize(
    ("lines", "asked", "line"),
    [
        ({"methods": ["fedprox"]}, question(), "methods"),
        ({"fingerprints": []}, question("query.mean"), "fingerprints"),
        ({}, question("query.collaboration"), "fingerprints"),
        ({}, question("evaluate.collaboration"), "fingerprints"),
        ({"networks": ["resnet9"]}, question(train__model="mlp"), "networks"),
        ({}, question("query.subspace", encoder__name="pixels"), "encoders"),
        ({}, question(train__model="head", encoder__name="pixels"), "encoders"),
        ({}, question("query.method", rule="rehearsal", encoder__name="pixels"), "encoders"),
        ({}, question(described=0, encoder__name="pixels"), "encoders"),
        ({"classes": ["a", "b", "c"]}, question(), "classes"),
        ({"rounds": 1}, question(), "rounds"),
        ({"rehearsal_rounds": 14}, question("query.method", rule="rehearsal"), "rehearsal_rounds"),
        ({}, question("query.method", rule="rehearsal", rehearsal__rounds=51), "rehearsal_rounds"),
        ({"epochs": 1}, question(train__epochs=2), "epochs"),
        ({"epochs": 4}, question("query.path"), "epochs"),
        ({"epochs": 4}, question("query.head", fedclust__warm_up=5), "epochs"),
        ({"epochs": 2}, question("query.method", rule="fl-hc"), "epochs"),
        ({"epochs": 4}, question(rule="fedccfa"), "epochs"),
        ({"runs_a_day": 0}, question(), "runs_a_day"),
        ({"fingerprints_a_day": 0}, question("query.mean"), "fingerprints_a_day"),
    ],
)
def test_a_question_is_declined_by_the_line_it_goes_against(
    lines: dict[str, object], asked: Question, line: str
) -> None:
    policy = Policy.model_validate(lines)
    with pytest.raises(Declined, match=rf"policy\.{line} "):
        check(policy, asked, (), 0.0)
    check(OPEN, asked, (), 0.0)


def test_the_documentation_has_every_line_of_a_policy_with_its_default() -> None:
    text = Path("docs/deployment.md").read_text().partition("| `[policy]` | default |")[2].partition("\n\n")[0]
    told: dict[str, object] = {}
    for row in text.splitlines()[2:]:
        names, values = (re.findall(r"`([^`]+)`", cell) if "`" in cell else [cell] for cell in row.split("|")[1:3])
        values = [part.strip().strip("`") for part in row.split("|")[2].split(", ")] if len(names) > 1 else values
        told |= dict(zip(names, values, strict=False))
    usual = Policy().model_dump(mode="json")
    for name, value in usual.items():
        if name == "privacy":
            continue
        assert name in told, name
        if value not in (None, "", []) and name != "encoders":
            assert json.loads(str(told[name])) == value, name


@pytest.mark.parametrize(
    "kind", ["train", "evaluate", "query.hello", "query.signature", "query.keep", "query.personalise"]
)
def test_a_usual_run_is_answered_by_default(kind: str) -> None:
    check(Policy(), question(kind, rounds=100), (), 0.0)


@pytest.mark.parametrize(
    ("names", "name", "allowed"),
    [
        (("any",), "x", True), (("timm:*",), "timm:resnet18", True), (("timm:*",), "random:resnet18", False),
        ((), "x", False), (("pixels",), "pixels", True), (("pix*",), "pixels", True), (("[p]ixels",), "pixels", False),
    ],
)  # fmt: skip
def test_names_of_a_policy(names: tuple[str, ...], name: str, allowed: bool) -> None:
    assert allows(names, name) is allowed


def test_a_days_limit_holds_over_restarts_and_ends_with_the_day(tmp_path: Path) -> None:
    clock = Clock()
    for run in ("1", "2"):
        gate(tmp_path, clock, runs_a_day=2).admit(question(run=run))
    with pytest.raises(Declined, match="runs_a_day = 2"):
        gate(tmp_path, clock, runs_a_day=2).admit(question(run="3"))
    gate(tmp_path, clock, runs_a_day=2).admit(question(run="2"))
    clock.now += DAY + 1
    gate(tmp_path, clock, runs_a_day=2).admit(question(run="3"))


@pytest.mark.parametrize(
    "asked",
    [
        question("query.hello", described=0, encoder__name="pixels"),
        question("query.method", rule="flexcfl", encoder__name="pixels"),
        question(encoder__name="pixels"),
    ],
)
def test_what_embeds_nothing_is_not_asked_for_its_encoder(asked: Question) -> None:
    check(Policy(), asked, (), 0.0)


def test_a_rehearsal_is_counted_apart_and_no_longer_than_it_was_declared(tmp_path: Path) -> None:
    """Of 15 rounds and a test; with one round to train, four questions of a method are all there are."""
    rehearsal = question("query.method", rounds=1, rule="rehearsal")
    for _ in range(16):
        gate(tmp_path, rounds=1).admit(rehearsal)
    with pytest.raises(Declined, match=r"rehearsal_rounds = 50, .* query\.method rehearsal 16 times"):
        gate(tmp_path, rounds=1).admit(rehearsal)
    other = question("query.method", rounds=1, rule="flexcfl")
    for _ in range(4):
        gate(tmp_path, rounds=1).admit(other)
    with pytest.raises(Declined, match=r"policy\.rounds = 1, .* query\.method 4 times"):
        gate(tmp_path, rounds=1).admit(other)
    assert Ledger(tmp_path / "ledger.jsonl").entries()[0].kind == "query.method rehearsal"


def test_the_split_is_the_sites_own(tmp_path: Path) -> None:
    admitted = gate(tmp_path, test_fraction=0.3).admit(question(data__test_fraction=0.9))
    assert admitted.settings.data.test_fraction == 0.3
    assert OpenGate().admit(question(data__test_fraction=0.9)).settings.data.test_fraction == 0.9


def test_a_refusal_is_noted_with_its_reason(tmp_path: Path) -> None:
    one = gate(tmp_path)
    one.note_refusal(question(), "no")
    (entry,) = Ledger(tmp_path / "ledger.jsonl").entries()
    assert (entry.what, entry.text, entry.run) == ("declined", "no", "1")


def write_site(folder: Path) -> Path:
    (folder / "data").mkdir()
    path = folder / "site.toml"
    path.write_text('site = "a"\nserver = "nowhere:1"\ndata = "data"\n[policy]\napprove = "ask"\n')
    return path


def test_a_new_run_waits_until_somebody_says_yes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_site(tmp_path)
    clock, asked = Clock(), question("query.signature", run="77")

    def approve(seconds: float) -> None:
        clock.now += seconds
        assert main(["site", "approve", str(path)]) == 0
        assert main(["site", "approve", str(path), "77"]) == 0

    waits = PolicyGate(Policy(approve="ask"), Ledger(tmp_path / "ledger.jsonl"), clock, approve)
    waits.admit(asked)
    said = capsys.readouterr().out
    assert "run 77 wants: its name and the counts of a, b; one mean embedding per class" in said
    assert "up to 2 updates of resnet9 by fedavg, 1 epochs each" in said
    assert "approved: run 77" in said
    # Its other questions are answered at once, and those of the same run with other settings wait again.
    gate(tmp_path, clock, approve="ask", approve_wait=0.0).admit(question("train", run="77"))
    with pytest.raises(Declined, match="approve"):
        gate(tmp_path, clock, approve="ask", approve_wait=0.0).admit(question("train", run="77", train__lr=0.5))
    with pytest.raises(Declined, match="nobody at this site has approved"):
        gate(tmp_path, clock, approve="ask", approve_wait=5.0).admit(question("train", run="78"))
    assert main(["site", "approve", str(path), "79"]) == 2
    assert "waiting: 77, 78" in capsys.readouterr().err


@pytest.mark.parametrize(
    "more",
    [
        question("query.subspace", run="7"),
        question("query.method", run="7"),
        question("evaluate.collaboration", run="7"),
        question("train", run="7", rule="scaffold"),
        question("train", run="7", rounds=3),
    ],
)
def test_a_yes_is_to_what_was_shown(tmp_path: Path, more: Question) -> None:
    path, clock = write_site(tmp_path), Clock()
    lines = {"approve": "ask", "fingerprints": ["any"]}

    def approve(seconds: float) -> None:
        assert main(["site", "approve", str(path), "7"]) == 0

    first = question("query.signature", run="7")
    PolicyGate(Policy.model_validate(lines), Ledger(tmp_path / "ledger.jsonl"), clock, approve).admit(first)
    for same in (first, question("train", run="7"), question("evaluate", run="7"), question("query.keep", run="7")):
        gate(tmp_path, clock, **lines, approve_wait=0.0).admit(same)
    with pytest.raises(Declined, match="nobody at this site has approved"):
        gate(tmp_path, clock, **lines, approve_wait=0.0).admit(more)
    assert Ledger(tmp_path / "ledger.jsonl").entries()[-1].what == "waiting"
    PolicyGate(Policy.model_validate(lines), Ledger(tmp_path / "ledger.jsonl"), clock, approve).admit(more)


def test_every_kind_of_fingerprint_has_words_and_is_answered_unless_it_sends_rows_or_a_network() -> None:
    assert set(_SAYS) == set(KINDS)
    assert set(KINDS) - set(Policy().fingerprints) == {"collaboration", "whole_path"}


@pytest.mark.parametrize(
    "setting",
    ["fl_hc.epochs", "fedclust.warm_up", "fedcm.warm_up", "flexcfl.steps", "fedccfa.balanced_epochs",
     "fedccfa.head_epochs", "pfedme.steps"],
)  # fmt: skip
def test_a_method_cannot_keep_a_site_busy_for_ever(setting: str) -> None:
    with pytest.raises(SettingsError, match="≤ 10"):
        parse({setting: 10**9})


def test_what_is_declined_in_any_case_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(Declined, match="encoders"):
        gate(tmp_path, approve="ask", approve_wait=1e9).admit(question("query.mean", encoder__name="pixels"))


def test_a_yes_to_a_run_is_a_yes_to_its_class_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, clock = write_site(tmp_path), Clock()
    gate(tmp_path, clock).admit(question(run="1"))
    other = question(run="2", data__classes="a,c")

    def approve(seconds: float) -> None:
        assert main(["site", "approve", str(path), "2"]) == 0

    PolicyGate(Policy(approve="ask"), Ledger(tmp_path / "ledger.jsonl"), clock, approve).admit(other)
    gate(tmp_path, clock).admit(question(run="3", data__classes="a,c"))
    with pytest.raises(Declined, match="classes"):
        gate(tmp_path, clock).admit(question(run="4"))


def test_who_has_which_gate() -> None:
    assert isinstance(gate_of(identify({"partition-id": 0, "num-partitions": 2}, 1)), OpenGate)
    shown = identify({"partition-id": 0, "num-partitions": 2, "site": "a"}, 1)
    assert isinstance(gate_of(shown), DemonstrationGate)
    assert isinstance(gate_of(identify({"data-path": "/data"}, 1)), PolicyGate)
    # A share beside data of its own does not open the gate.
    assert isinstance(gate_of(identify({"partition-id": 0, "num-partitions": 2, "data-path": "/data"}, 1)), PolicyGate)
    assert identify({"data-path": "/data"}, 1).policy == Policy()
    with pytest.raises(ValueError, match="rounds"):
        identify({"data-path": "/data", "policy": json.dumps({"rounds": -1})}, 1)


def test_what_left_is_known_by_its_digest(tmp_path: Path) -> None:
    one = gate(tmp_path)
    for reason in ("x", "x", "y"):
        one.let_out(question(), wire.pack_refusal(reason))
    first, same, other = (entry.digest for entry in Ledger(tmp_path / "ledger.jsonl").entries())
    assert first == same != other


def test_a_policy_in_words_says_what_it_will_never_do() -> None:
    said = "\n".join(in_words(Policy()))
    for part in ("at least 10", "pixels", "send rows", "20% of its samples", "read a table", "at most 10 a day"):
        assert part in said
    open_words = "\n".join(in_words(Policy(encoders=("any",), fingerprints=("any",), tests=False)))
    assert "pixels" not in open_words
    assert "never" in open_words
    assert "say how a model does" in open_words


def test_a_yes_is_asked_for_with_what_a_rehearsal_and_a_rule_would_get() -> None:
    said = what_it_sends(Policy(), question("query.signature", encoder__name="random:x", rehearsal__rounds=7))
    assert "if the run begins with a rehearsal, in 7 rounds linear heads" in said
    assert "(encoder random:x)" in said
    # Not where the policy declines it.
    for policy in (Policy(methods=("fedavg",)), Policy(rehearsal_rounds=6), Policy(encoders=())):
        declined = what_it_sends(policy, question("query.mean", encoder__name="random:x", rehearsal__rounds=7))
        assert "rehearsal" not in declined
    assert "mean feature" in what_it_sends(Policy(), question(rule="fedccfa"))
    assert "by the rule fedccfa also: the mean feature" in "\n".join(in_words(Policy()))
    assert "fedccfa" not in "\n".join(in_words(Policy(methods=("fedavg",))))


@pytest.mark.parametrize(
    ("lines", "networks", "said"),
    [
        (("any",), (), "unless networks in site.toml names it"),
        (("any",), ("a.b:c",), "but a.b:c"),
        (("python:*",), ("a.b:c",), "but a.b:c"),
        (("resnet9",), ("a.b:c",), "train python:a.b:c, which networks in site.toml names: policy.networks does not"),
    ],
)
def test_words_say_which_networks_of_others_are_trained(
    lines: tuple[str, ...], networks: tuple[str, ...], said: str
) -> None:
    assert said in "\n".join(in_words(Policy(networks=lines), networks))
