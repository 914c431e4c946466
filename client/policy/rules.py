"""A question held against a site's policy and what the site was asked before: pure, and before any data are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from client.policy.ledger import Entry
from client.policy.policy import Policy, allows
from client.policy.question import EVALUATE, METHOD, TRAIN, Question
from common.collaboration import Collaboration
from common.config import SettingsError
from common.encoders import NO_FILE
from common.fingerprint import KINDS
from common.head_change import HeadChange
from common.head_path import HeadPath
from common.methods import fedccfa, fedclust, fedcm, fl_hc
from common.methods.dc_cfl import Settings as CollaborationSettings
from common.section import Section
from common.table import InvalidTable, read_table, write_table
from common.whole_path import WholePath
from common.wire import plain_text

DAY = 24 * 3600.0
# Fingerprints that tell how layers change when the site trains them.
LAYERS = (HeadPath.kind, WholePath.kind, HeadChange.kind)


class Declined(SettingsError):
    """A question that the site's policy does not answer; the message names the line, and nothing of the data."""


class LedgerUnwritable(Declined):
    """Nothing is answered, because it could not be noted."""


def check(policy: Policy, question: Question, entries: Sequence[Entry], now: float) -> None:
    """Raise `Declined` for the first line of the policy that a question goes against."""
    for rule in RULES:
        for reason in rule(policy, question, entries, now):
            raise Declined(reason)


def check_settings(policy: Policy, question: Question) -> None:
    """The same for what somebody at the site has chosen to send: that is a yes, and no limit counts."""
    task = question.task
    yes = Entry(
        at=0.0,
        what="approved",
        run=question.run,
        settings=question.settings,
        rule=task.rule,
        rounds=task.rounds,
        beyond=question.beyond,
    )
    for rule in (_encoders, _classes, _schema, _collaboration, _privacy):
        for reason in rule(policy, question, [yes], 0.0):
            raise Declined(reason)


Rule = Callable[[Policy, Question, Sequence[Entry], float], Iterator[str]]


def _methods(policy: Policy, question: Question, entries: Sequence[Entry], now: float) -> Iterator[str]:
    if not allows(policy.methods, question.task.rule):
        yield _not_among("methods", policy.methods, question.task.rule)


def _fingerprints(policy: Policy, question: Question, entries: Sequence[Entry], now: float) -> Iterator[str]:
    kind = question.fingerprint
    if question.kind == "evaluate.collaboration":
        kind = Collaboration.kind
    if kind and not allows(policy.fingerprints, kind):
        yield _not_among("fingerprints", policy.fingerprints, kind)


def _networks(policy: Policy, question: Question, entries: Sequence[Entry], now: float) -> Iterator[str]:
    if not allows(policy.networks, question.task.settings.train.model):
        yield _not_among("networks", policy.networks, question.task.settings.train.model)


def _encoders(policy: Policy, question: Question, entries: Sequence[Entry], now: float) -> Iterator[str]:
    encoder = question.task.settings.encoder.name
    if question.embeds and not allows(policy.encoders, encoder):
        yield _not_among("encoders", policy.encoders, encoder)


def _classes(policy: Policy, question: Question, entries: Sequence[Entry], now: float) -> Iterator[str]:
    if policy.classes:
        if question.classes != policy.classes:
            yield f"policy.classes = {_listed(policy.classes)}, and the run has {_listed(question.classes)}"
        return
    pinned = pinned_classes(question, entries)
    if pinned and question.classes != pinned:
        yield (
            f"policy.classes is empty, so that the class list of this site's first run is kept to, "
            f"{_listed(pinned)}; this run has {_listed(question.classes)}"
        )


def pinned_classes(question: Question, entries: Sequence[Entry]) -> tuple[str, ...]:
    """The class list that a site keeps to: that of the run somebody approved last, or else of its first run."""
    approved = {(entry.run, entry.settings) for entry in entries if entry.what == "approved"}
    lists = [entry for entry in entries if entry.what == "asked" and entry.classes]
    if (question.run, question.settings) in approved or not lists:
        return ()
    last = [entry for entry in lists if (entry.run, entry.settings) in approved]
    return (last or lists[:1])[-1].classes


def _split(policy: Policy, question: Question, entries: Sequence[Entry], now: float) -> Iterator[str]:
    """A site whose data may change holds other samples out: from both splits, what they differ by could be told."""
    if policy.test_fraction is None or policy.privacy.is_on:
        return
    watched = question.watched
    first = next((entry.watch for entry in entries if entry.what == "asked"), watched)
    if watched == (first if policy.watch is None else policy.watch):
        return
    line = "policy.watch is empty, so that this site's first run is kept to"
    if policy.watch is not None:
        line = f"policy.watch = {str(policy.watch).lower()}"
    yield f"{line}, and the run has data.watch = {str(watched).lower()}: other samples would be held out"


def _schema(policy: Policy, question: Question, entries: Sequence[Entry], now: float) -> Iterator[str]:
    if not question.schema:
        return
    if not policy.agreed_schema:
        if not is_approved(question, entries):
            yield "policy.agreed_schema is empty: this site reads no table without a schema that it has agreed to"
        return
    try:
        agreed = write_table(read_table(policy.agreed_schema))
    except InvalidTable as error:
        raise SettingsError(f"agreed_schema in site.toml: {error}") from None
    if agreed != question.schema:
        yield "policy.agreed_schema is another schema than data.table of the run"


def _limits(policy: Policy, question: Question, entries: Sequence[Entry], now: float) -> Iterator[str]:
    task = question.task
    if task.rounds > policy.rounds:
        yield f"policy.rounds = {policy.rounds}, and the run has {task.rounds}"
    if task.settings.train.epochs > policy.epochs:
        yield f"policy.epochs = {policy.epochs}, and the run has train.epochs = {task.settings.train.epochs}"
    asked = [entry for entry in entries if entry.what == "asked"]
    same = sum(entry.run == question.run and entry.kind == question.noted for entry in asked)
    before = question.rounds_before
    if before is not None:
        line = f"policy.rehearsal_rounds = {policy.rehearsal_rounds}"
        if before > policy.rehearsal_rounds:
            yield f"{line}, and the run has {question.agreement.section}.rounds = {before}"
        # Tested once after the last.
        most = before + 1
    else:
        line = f"policy.rounds = {policy.rounds}"
        # Tested once after the last round, and asked who it is before the first; a method may ask twice in a round.
        most = policy.rounds if question.kind == TRAIN else 2 * policy.rounds + 2
    if same >= most:
        yield f"{line}, and this run has asked for {question.noted} {same} times"
    today = [entry for entry in asked if entry.at > now - DAY]
    if question.fingerprint:
        given = sum(entry.kind.removeprefix("query.") in KINDS for entry in today)
        if given >= policy.fingerprints_a_day:
            yield f"policy.fingerprints_a_day = {policy.fingerprints_a_day}, and {given} were asked for in 24 hours"
    runs = {entry.run for entry in today}
    if question.run not in {entry.run for entry in asked} and len(runs) >= policy.runs_a_day:
        yield f"policy.runs_a_day = {policy.runs_a_day}, and {len(runs)} began in 24 hours"


def _epochs(policy: Policy, question: Question, entries: Sequence[Entry], now: float) -> Iterator[str]:
    """Epochs of a method's own, beside train.epochs."""
    section, fields = _EPOCHS.get(question.fingerprint or question.task.rule, (None, ()))
    if section is None:
        return
    chosen = question.task.settings.of(section)
    for field in fields:
        if getattr(chosen, field) > policy.epochs:
            yield f"policy.epochs = {policy.epochs}, and the run has {field} = {getattr(chosen, field)}"


# By the kind of fingerprint, or else the rule.
_EPOCHS: dict[str, tuple[type[Section], tuple[str, ...]]] = {
    HeadPath.kind: (fedcm.Settings, ("warm_up",)),
    WholePath.kind: (fedcm.Settings, ("warm_up",)),
    HeadChange.kind: (fedclust.Settings, ("warm_up",)),
    fl_hc.AGREEMENT.rule: (fl_hc.Settings, ("epochs",)),
    fedccfa.AGREEMENT.rule: (fedccfa.Settings, ("balanced_epochs", "head_epochs")),
}


def _collaboration(policy: Policy, question: Question, entries: Sequence[Entry], now: float) -> Iterator[str]:
    if question.fingerprint != Collaboration.kind:
        return
    asked = question.task.settings.of(CollaborationSettings)
    if asked.aggregate < policy.least_aggregate:
        least = policy.least_aggregate
        yield f"policy.least_aggregate = {least}, and the run has collaboration.aggregate = {asked.aggregate}"
    if asked.noise < policy.least_noise:
        yield f"policy.least_noise = {policy.least_noise:g}, and the run has collaboration.noise = {asked.noise:g}"


def _aggregation(policy: Policy, question: Question, entries: Sequence[Entry], now: float) -> Iterator[str]:
    """Whatever shows an update of this site alone is declined where it insists on secure sums."""
    terms = question.task.terms
    if terms is not None and len(terms.members) < policy.least_members:
        yield f"policy.least_members = {policy.least_members}, and the sum has {len(terms.members)}"
    if policy.aggregation != "secure":
        return
    line = 'policy.aggregation = "secure"'
    if question.kind == TRAIN and terms is None:
        yield f"{line}, and the run asks for this site's update by itself: it needs aggregate.rule = 'secure'"
    if question.kind == METHOD:
        yield f"{line}, and {question.task.rule} asks for what this site's models are like"
    if question.fingerprint in LAYERS:
        yield f"{line}, and a fingerprint {question.fingerprint!r} is the update of a layer"


def _privacy(policy: Policy, question: Question, entries: Sequence[Entry], now: float) -> Iterator[str]:
    if policy.privacy.is_on:
        yield from without_noise(question)


def without_noise(question: Question) -> Iterator[str]:
    """Why a question has no answer under a privacy budget: whatever is not known to be covered is not."""
    line = "policy.privacy covers"
    if question.kind not in _COVERED:
        what = question.fingerprint or question.beyond or question.kind
        yield f"{line} signatures, training and tests, and nothing that is asked for as {plain_text(what)!r}"
    if not question.agreement.private:
        yield f"{line} no training by the rule {plain_text(question.task.rule)!r}, which tells more than an update"
    if question.task.settings.data.input != "own":
        yield f"{line} no data.input = {question.task.settings.data.input!r}"


# No data are in the answer to a model that is to be kept, nor in the keys and shares of secure sums.
_COVERED = (
    TRAIN, EVALUATE, "query.hello", "query.signature", "query.keep",
    "query.keys", "query.shares", "query.sign", "query.open",
)  # fmt: skip

RULES: tuple[Rule, ...] = (
    _methods, _fingerprints, _networks, _encoders, _classes, _split, _schema, _collaboration, _aggregation, _privacy,
    _limits, _epochs,
)  # fmt: skip


def is_approved(question: Question, entries: Sequence[Entry]) -> bool:
    """Whether somebody at the site has said yes to this run with these settings, and to what is asked here."""
    terms = question.run, question.settings, question.task.rule, question.task.rounds
    return any(
        (entry.run, entry.settings, entry.rule, entry.rounds) == terms and question.beyond in ("", entry.beyond)
        for entry in entries
        if entry.what == "approved"
    )


def check_demonstration(question: Question, *, has_cache: bool) -> None:
    """Raise `Declined` if a run names a path on the disk of a site that has a share of a public data set."""
    settings = question.task.settings
    named = {
        "data.path": settings.data.path,
        "encoder.weights": settings.encoder.weights,
        "train.weights": "" if settings.train.weights in NO_FILE else settings.train.weights,
        "cache": "" if has_cache else settings.cache,
        "collaboration.sample": settings.of(CollaborationSettings).sample,
    }
    for key, value in named.items():
        if value:
            raise Declined(f"the run names a path on this site's disk ({key}), which no site opens")


def _not_among(line: str, allowed: Sequence[str], asked: str) -> str:
    return f"policy.{line} = {_listed(allowed)}, and the run has {plain_text(asked)!r}"


def _listed(names: Sequence[str]) -> str:
    return plain_text("[" + ", ".join(names) + "]")
