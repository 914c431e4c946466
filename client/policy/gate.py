"""The one object that a site's app asks: may this be answered, and may this leave?"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from flwr.app import ArrayRecord, RecordDict

from client.identity import Identity, cache_folder
from client.policy.ledger import Entry, Ledger, LedgerBroken, What
from client.policy.policy import Policy
from client.policy.question import Question
from client.policy.rules import (
    Declined,
    LedgerUnwritable,
    check,
    check_demonstration,
    is_approved,
    without_noise,
)
from client.policy.words import what_it_sends
from common.wire import Task, size

_LOOK = 1.0  # seconds between two looks whether somebody has approved a run

_log = logging.getLogger("coterie")


class Gate(Protocol):
    """What stands between a site and whoever asks."""

    def admit(self, question: Question) -> Task:
        """Return the task as this site answers it, or raise `Declined`. No data have been read yet."""

    def let_out(self, question: Question, content: RecordDict) -> None:
        """Note what is about to leave; raises if that cannot be noted."""

    def note_refusal(self, question: Question | None, reason: str) -> None:
        """Note that a question was not answered, and why; None: it could not even be read."""


class OpenGate:
    """Of a site that only a simulation knows: it answers everything and notes nothing."""

    def admit(self, question: Question) -> Task:
        """As it was asked, unless the run has a privacy budget that does not cover it."""
        return _covered(question)

    def let_out(self, question: Question, content: RecordDict) -> None:
        """Nothing is noted."""

    def note_refusal(self, question: Question | None, reason: str) -> None:
        """Nothing is noted."""


class DemonstrationGate(OpenGate):
    """Of a site that somebody set up with a share of a public data set: no run names a path on its disk."""

    def __init__(self, *, has_cache: bool) -> None:
        self._has_cache = has_cache

    def admit(self, question: Question) -> Task:
        """As it was asked, unless it names a path."""
        check_demonstration(question, has_cache=self._has_cache)
        return _covered(question)


class PolicyGate:
    """Of a site with data of its own.

    Parameters
    ----------
    policy, ledger
        Of the site.
    now, sleep
        The clock.
    """

    def __init__(
        self,
        policy: Policy,
        ledger: Ledger,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._policy, self._ledger, self._now, self._sleep = policy, ledger, now, sleep

    def admit(self, question: Question) -> Task:
        """Hold the question against the policy, note it, and put the site's own split in the place of the run's."""
        try:
            if self._policy.approve == "ask":
                self._await_approval(question)
            with self._ledger.held() as held:
                check(self._policy, question, held.entries, self._now())
                held.append(self._entry("asked", question, classes=question.classes))
        except LedgerBroken as error:
            _log.error("%s: somebody changed it; look into it, then move it away", error)
            raise Declined("its ledger is not as it was left: until somebody has looked, it answers nothing") from None
        except OSError as error:
            _log.error("%s cannot be written: %s", self._ledger.path, error)
            raise LedgerUnwritable("its ledger cannot be written, and without it the site answers nothing") from None
        return as_split_here(self._policy, question.task)

    def let_out(self, question: Question, content: RecordDict) -> None:
        """Bring to disk what is about to leave: of which kind, how many bytes, and their digest."""
        kinds = ", ".join(sorted(content))
        entry = self._entry("sent", question, text=kinds, bytes=size(content), digest=digest_of(content))
        self._ledger.note(entry)

    def note_refusal(self, question: Question | None, reason: str) -> None:
        """Bring to disk that a question was not answered."""
        try:
            if question is None:
                self._ledger.note(Entry(at=self._now(), what="declined", text=reason))
            else:
                self._ledger.note(self._entry("declined", question, text=reason))
        except OSError as error:
            _log.error("the ledger cannot be written: %s", error)

    def _await_approval(self, question: Question) -> None:
        """Wait until somebody at the site has said yes to this run with these settings."""
        until = self._now() + self._policy.approve_wait
        with self._ledger.held() as held:
            if is_approved(question, held.entries):
                return
            # What the policy declines in any case is not waited for.
            check(self._policy, question, [*held.entries, self._entry("approved", question)], self._now())
            text = what_it_sends(self._policy, question)
            held.append(self._entry("waiting", question, classes=question.classes, text=text))
        _log.warning("run %s waits for a yes of this site (`coterie site approve`): %s", question.run, text)
        while not is_approved(question, self._ledger.entries()):
            if self._now() >= until:
                raise Declined('policy.approve = "ask", and nobody at this site has approved this run yet')
            self._sleep(_LOOK)

    def _entry(
        self,
        what: What,
        question: Question,
        *,
        classes: tuple[str, ...] = (),
        text: str = "",
        bytes: int = 0,
        digest: str = "",
    ) -> Entry:
        return Entry(
            at=self._now(),
            what=what,
            run=question.run,
            stamp=question.task.run,
            kind=question.noted,
            settings=question.settings,
            round=question.task.round_number,
            rule=question.task.rule,
            rounds=question.task.rounds,
            beyond=question.beyond,
            classes=classes,
            watch=question.watched,
            text=text,
            bytes=bytes,
            digest=digest,
        )


def _covered(question: Question) -> Task:
    """The task of a simulated site, whose privacy budget is the run's."""
    if not question.task.settings.privacy.is_on:
        return question.task
    for reason in without_noise(question):
        raise Declined(reason)
    return plainly(question.task)


def plainly(task: Task) -> Task:
    """The task without what a site with a privacy budget does not tell: what it holds, and whether it has changed."""
    return replace(task, held=False, described=None)


def as_split_here(policy: Policy, task: Task) -> Task:
    """The task with the site's own test split in the place of the run's."""
    if policy.privacy.is_on:
        task = plainly(task)
    if policy.test_fraction is None:
        return task
    data = task.settings.data.model_copy(update={"test_fraction": policy.test_fraction})
    return replace(task, settings=task.settings.model_copy(update={"data": data}))


def digest_of(content: RecordDict) -> str:
    """The SHA-256 of what an answer carries, record by record."""
    digest = hashlib.sha256()
    for key in sorted(content):
        record = content[key]
        digest.update(key.encode())
        if isinstance(record, ArrayRecord):
            for array in record.values():
                digest.update(array.data)
        else:
            digest.update(repr(sorted(record.items())).encode())
    return digest.hexdigest()


def ledger_of(identity: Identity) -> Ledger:
    """The ledger of a site that has data of its own."""
    return Ledger(identity.ledger or cache_folder(identity, "") / "ledgers" / f"{identity.name}.jsonl")


def gate_of(identity: Identity) -> Gate:
    """The gate of a site."""
    if identity.in_engine:
        return OpenGate()
    if identity.is_simulated:
        return DemonstrationGate(has_cache=identity.cache is not None)
    return PolicyGate(identity.policy, ledger_of(identity))
