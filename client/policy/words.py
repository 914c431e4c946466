"""A policy, and what a run would get, in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from client.policy.policy import ANY, Policy, allows
from client.policy.question import Question
from client.policy.rules import LAYERS
from common.collaboration import Collaboration
from common.encoders import PIXELS
from common.methods import AGREEMENTS, Agreement
from common.wire import plain_text

_SAYS = {
    "signature": "one mean embedding per class",
    "mean": "one mean embedding",
    "path": "how a network's last layer moves in a warm-up",
    "whole_path": "how a whole network moves in a warm-up",
    "head": "how a network's last layer changes in a warm-up",
    "subspace": "the main directions of its embeddings",
    Collaboration.kind: "its training rows, each turned by a private map and averaged or blurred as agreed",
}


def in_words(policy: Policy, networks: Sequence[str] = ()) -> Iterator[str]:
    """Say what a site answers and what it never will, a line each; `networks` of others are those it allows."""
    yield from _with_noise(policy)
    hidden = LAYERS if policy.aggregation == "secure" else ()
    said = [
        f"{kind} ({meaning})"
        for kind, meaning in _SAYS.items()
        if allows(policy.fingerprints, kind) and kind not in hidden
    ]
    yield "This site answers:"
    yield f"  who it is: its name, how many samples it has, and of each class that has at least {policy.class_samples}"
    yield f"  fingerprints, at most {policy.fingerprints_a_day} a day: {'; '.join(said) or 'none'}"
    yield (
        f"  updates of a model, from at least {policy.train_samples} samples: networks {_listed(policy.networks)}, "
        f"rules {_listed(policy.methods)}, at most {policy.rounds} rounds of {policy.epochs} epochs, "
        f"{policy.runs_a_day} runs a day"
        f"{_as_sums(policy)}"
    )
    for agreement in AGREEMENTS.values():
        if agreement.tells and allows(policy.methods, agreement.rule) and not _keeps_back(policy, agreement):
            yield f"  by the rule {agreement.rule} also: {agreement.tells}{_as_far(policy, agreement)}"
    if policy.tests:
        yield (
            f"  how a model does on its own test split, from at least {policy.test_samples} samples: confusion matrix, "
            "loss, histograms of scores"
        )
    if policy.approve == "ask":
        yield "  all of this only for runs that somebody here has approved (`coterie site approve`)"
    yield "It will never:"
    yield "  run code that came with a run, unless foreign_code names it; open a path that a run names"
    yield from _of_models(policy, networks)
    if not allows(policy.encoders, PIXELS):
        yield "  describe its images by their pixels (encoders)"
    if not allows(policy.fingerprints, Collaboration.kind):
        yield "  send rows (fingerprints)"
    if not policy.tests:
        yield "  say how a model does on its test split (tests)"
    if policy.test_fraction is not None:
        yield f"  let a run choose what is held out: {policy.test_fraction:.0%} of its samples are, always the same"
        yield f"  {_of_change(policy)}"
    if policy.classes:
        yield f"  read other classes than {_listed(policy.classes)}"
    else:
        yield "  read other classes than those of the run it first answered, or of the last one it approved"
    if policy.agreed_schema:
        yield f"  read other columns of a table than {policy.agreed_schema} names"
    else:
        yield "  read a table, because agreed_schema names no schema"


def _of_change(policy: Policy) -> str:
    """What becomes of runs that take it otherwise whether the data change, which would hold out other samples."""
    if policy.watch is None:
        return "answer runs that differ from its first in whether its data may change (watch)"
    return f"answer runs in which its data may {'not ' if policy.watch else ''}change (watch)"


def _as_sums(policy: Policy) -> str:
    least = policy.least_members
    return f", only hidden in secure sums of at least {least} sites" if policy.aggregation == "secure" else ""


def _keeps_back(policy: Policy, agreement: Agreement) -> bool:
    """Whether the policy declines what sites tell under a rule, because it is of their own models."""
    return policy.aggregation == "secure" and bool(agreement.questions)


def _with_noise(policy: Policy) -> Iterator[str]:
    """What a budget makes of all the rest."""
    privacy = policy.privacy
    if not privacy.is_on:
        return
    yield (
        f"This site has a privacy budget: epsilon = {privacy.epsilon:g} at delta = {privacy.delta:g} for all that it "
        "ever tells."
    )
    yield (
        f"  it lasts for {privacy.descriptions} descriptions of the data (counts, class sums), {privacy.steps} steps "
        f"of training and {privacy.tests} tests; after that the site answers nothing"
    )
    yield (
        "  of what follows only signatures, plain training and tests are answered, all with noise; there is no least "
        "number of samples, and no other fingerprint, rule or question"
    )


def what_it_sends(policy: Policy, question: Question) -> str:
    """Say what a run would get from a site."""
    task, settings = question.task, question.task.settings
    noise = " (all with noise, out of policy.privacy.epsilon)" if policy.privacy.is_on else ""
    parts = [f"its name and the counts of {_listed(question.classes)}{noise}"]
    if question.fingerprint:
        parts.append(f"{_SAYS.get(question.fingerprint, question.fingerprint)} (encoder {settings.encoder.name})")
    elif question.beyond and question.rounds_before is None:
        what = Collaboration.kind if question.beyond == Collaboration.kind else f"{task.rule}'s {task.question!r}"
        parts.append(f"its answers to {what}")
    if question.agreement.tells and question.rounds_before is None:
        parts.append(question.agreement.tells)
    parts += _before_training(policy, question)
    if task.rounds:
        parts.append(
            f"up to {task.rounds} updates of {settings.train.model} by {task.rule}, {settings.train.epochs} epochs each"
            f"{_as_sums(policy)}"
        )
        if policy.tests:
            parts.append("how each model does on its test split")
    if settings.data.table is not None:
        parts.append(f"all of it learnt from the columns {_listed([one.name for one in settings.data.table.columns])}")
    return plain_text("; ".join(parts))


def _before_training(policy: Policy, question: Question) -> Iterator[str]:
    """What rounds before training would get: a yes to the run is a yes to them, whichever question came first."""
    settings = question.task.settings
    for agreement in AGREEMENTS.values():
        if agreement.rounds_before is None or not allows(policy.methods, agreement.rule):
            continue
        rounds = agreement.rounds_before(settings)
        if _keeps_back(policy, agreement):
            continue
        if rounds <= policy.rehearsal_rounds and allows(policy.encoders, settings.encoder.name):
            yield (
                f"if the run begins with a {agreement.rule}, in {rounds} rounds {agreement.tells} "
                f"(encoder {settings.encoder.name})"
            )


def _as_far(policy: Policy, agreement: Agreement) -> str:
    return "" if agreement.rounds_before is None else f", in at most {policy.rehearsal_rounds} rounds before training"


def _of_models(policy: Policy, networks: Sequence[str]) -> Iterator[str]:
    """What becomes of updates where nobody is to see one, and of others' networks."""
    if policy.aggregation == "secure":
        yield "  send an update, or how a layer of it changes, that anybody could read by itself (aggregation)"
    yield from _of_others(policy, networks)


def _of_others(policy: Policy, networks: Sequence[str]) -> Iterator[str]:
    """What becomes of networks whose code is others': both `networks` of site.toml and the policy must have them."""
    trained = [name for name in networks if allows(policy.networks, f"python:{name}")]
    if trained:
        yield f"  train a network of others' code (python:…) but {', '.join(trained)}"
    else:
        yield "  train a network of others' code (python:…), unless networks in site.toml names it"
    for name in networks:
        if name not in trained:
            yield f"  train python:{name}, which networks in site.toml names: policy.networks does not have it"


def _listed(names: Sequence[str]) -> str:
    return "any" if ANY in names else ", ".join(names) or "none"
