"""A policy, and what a run would get, in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from client.policy.policy import ANY, Policy, allows
from client.policy.question import Question
from common.collaboration import Collaboration
from common.encoders import PIXELS
from common.wire import plain_text

_SAYS = {
    "signature": "one mean embedding per class",
    "mean": "one mean embedding",
    "path": "how a network's last layer moves in a warm-up",
    "head": "how a network's last layer changes in a warm-up",
    "subspace": "the main directions of its embeddings",
    Collaboration.kind: "its training rows, each turned by a private map and averaged or blurred as agreed",
}


def in_words(policy: Policy) -> Iterator[str]:
    """Say what a site answers and what it never will, a line each."""
    said = [f"{kind} ({meaning})" for kind, meaning in _SAYS.items() if allows(policy.fingerprints, kind)]
    yield "This site answers:"
    yield f"  who it is: its name, how many samples it has, and of each class that has at least {policy.class_samples}"
    yield f"  fingerprints, at most {policy.fingerprints_a_day} a day: {'; '.join(said) or 'none'}"
    yield (
        f"  updates of a model, from at least {policy.train_samples} samples: networks {_listed(policy.networks)}, "
        f"rules {_listed(policy.methods)}, at most {policy.rounds} rounds of {policy.epochs} epochs, "
        f"{policy.runs_a_day} runs a day"
    )
    if policy.tests:
        yield (
            f"  how a model does on its own test split, from at least {policy.test_samples} samples: confusion matrix, "
            "loss, histograms of scores"
        )
    if policy.approve == "ask":
        yield "  all of this only for runs that somebody here has approved (`coterie site approve`)"
    yield "It will never:"
    yield "  run code that came with a run, unless foreign_code names it; open a path that a run names"
    if not allows(policy.encoders, PIXELS):
        yield "  describe its images by their pixels (encoders)"
    if not allows(policy.fingerprints, Collaboration.kind):
        yield "  send rows (fingerprints)"
    if not policy.tests:
        yield "  say how a model does on its test split (tests)"
    if policy.test_fraction is not None:
        yield f"  let a run choose what is held out: {policy.test_fraction:.0%} of its samples are, always the same"
    if policy.classes:
        yield f"  read other classes than {_listed(policy.classes)}"
    else:
        yield "  read other classes than those of the run it first answered, or of the last one it approved"
    if policy.agreed_schema:
        yield f"  read other columns of a table than {policy.agreed_schema} names"
    else:
        yield "  read a table, because agreed_schema names no schema"


def what_it_sends(policy: Policy, question: Question) -> str:
    """Say what a run would get from a site."""
    task, settings = question.task, question.task.settings
    parts = [f"its name and the counts of {_listed(question.classes)}"]
    if question.fingerprint:
        parts.append(f"{_SAYS.get(question.fingerprint, question.fingerprint)} (encoder {settings.encoder.name})")
    elif question.beyond:
        what = Collaboration.kind if question.beyond == Collaboration.kind else f"{task.rule}'s {task.question!r}"
        parts.append(f"its answers to {what}")
    if task.rounds:
        parts.append(
            f"up to {task.rounds} updates of {settings.train.model} by {task.rule}, {settings.train.epochs} epochs each"
        )
        if policy.tests:
            parts.append("how each model does on its test split")
    if settings.data.table is not None:
        parts.append(f"all of it learnt from the columns {_listed([one.name for one in settings.data.table.columns])}")
    return plain_text("; ".join(parts))


def _listed(names: Sequence[str]) -> str:
    return "any" if ANY in names else ", ".join(names) or "none"
