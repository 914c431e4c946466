"""A site's messages of a secure sum, and its update as one: hidden under masks that only the sum of all is without."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flwr.app import RecordDict

from client.identity import Identity
from client.methods import Visit
from client.request import Request
from client.secure.credentials import credentials_of, source_of
from client.secure.participant import Letters, Participant, begin
from client.secure.session_file import HeldSession, session_file
from common import wire
from common.fixed_point import OutOfBounds, as_vector, limits_of
from common.methods import agreement_on
from common.secure.terms import FEWEST, MASKED, Terms, digest_of
from common.state import State

_log = logging.getLogger("coterie")

SecureAnswer = Callable[[RecordDict, wire.Task, Identity], RecordDict]
Hide = Callable[[State, int], State]


def advertise(content: RecordDict, task: wire.Task, identity: Identity) -> RecordDict:
    """Begin a sum: send public keys for it, signed. What the site had of an earlier one is forgotten."""
    start, terms = time.perf_counter(), _terms(task, identity)
    credentials, draw = credentials_of(identity, task), source_of(identity, task, "keys")
    with session_file(identity, task).held() as held:
        session, advert = begin(terms, _context(content, terms), identity.name, credentials, draw)
        held.keep(session)
    return _answer({session.member: advert}, start)


def share(content: RecordDict, task: wire.Task, identity: Identity) -> RecordDict:
    """Given the keys of all, send each of them shares of this site's secrets, which nobody else can read."""
    start = time.perf_counter()
    with _taking_part(content, task, identity) as (site, held, letters):
        sealed = site.share(letters, source_of(identity, task, "shares"))
        held.keep(site.session)
    for name, reason in site.disbelieved.items():
        _log.warning("the keys of %s are not believed: %s", name, reason)
    return _answer(sealed, start)


def sign(content: RecordDict, task: wire.Task, identity: Identity) -> RecordDict:
    """Given whose updates arrived, sign that it is the sum of these that this site will help to open."""
    start = time.perf_counter()
    with _taking_part(content, task, identity) as (site, held, letters):
        signature = site.sign(sorted(letters))
        assert task.terms is not None
        held.note_opened(task.round_number, [task.terms.members[member] for member in letters])
        held.keep(site.session)
    return _answer({site.session.member: signature}, start)


def give_away(content: RecordDict, task: wire.Task, identity: Identity) -> RecordDict:
    """Given the signatures of the others, send the shares that open the sum, and forget the secrets."""
    start = time.perf_counter()
    with _taking_part(content, task, identity) as (site, held, letters):
        given = site.open(letters)
        held.keep(None)
    return _answer(given, start)


# Each by the kind of its message, in the order of a sum.
SECURE_ANSWERS: dict[str, SecureAnswer] = {"keys": advertise, "shares": share, "sign": sign, "open": give_away}


def hiding(request: Request, visit: Visit) -> Hide:
    """Return what becomes of a trained state, made from so many samples, before it leaves.

    Outside of a secure sum it leaves as it is. In one, whatever would keep the site from hiding it is found before
    anything is trained.
    """
    task, identity = request.task, request.identity
    if task.terms is None:
        return lambda state, samples: state
    terms = task.terms
    if digest_of(visit.received, visit.extras) != terms.model:
        raise wire.WireError("the model is not the one that this site agreed to train with the others")
    with _taking_part(request.content, task, identity) as (site, _, letters):
        site.receive(letters)

    def hide(state: State, samples: int) -> State:
        try:
            limits = limits_of(visit.received)
            vector = as_vector(state, limits, terms.weight(samples), terms.capacity)
        except OutOfBounds as error:
            raise wire.WireError(str(error)) from None
        # Read anew: another message may have come while the site was training.
        with _taking_part(request.content, task, identity) as (site, held, letters):
            site.receive(letters)
            site.mask(vector)
            held.keep(site.session)
        return {MASKED: vector}

    return hide


def _terms(task: wire.Task, identity: Identity) -> Terms:
    if task.terms is None:
        raise wire.WireError("this is no part of a secure sum")
    members = task.terms.members
    if identity.name not in members:
        raise wire.WireError("this site is not among the members of the sum")
    if agreement_on(task.rule).up:
        raise wire.WireError(f"{wire.plain_text(task.rule)} sends more than an update, which nothing would hide")
    if len(members) < FEWEST:
        raise wire.WireError(f"a secure sum of {len(members)} sites would say too much of each: it takes {FEWEST}")
    return task.terms


def _context(content: RecordDict, terms: Terms) -> bytes:
    # As it was written, not as this site's policy may have changed it.
    return terms.context(wire.told_alike(content))


@contextmanager
def _taking_part(
    content: RecordDict, task: wire.Task, identity: Identity
) -> Iterator[tuple[Participant, HeldSession, Letters]]:
    """The site as it is in a sum that it has begun, its session file, and what it was sent."""
    terms = _terms(task, identity)
    letters = wire.unpack_letters(content, len(terms.members))
    with session_file(identity, task).held() as held:
        session = held.recall(_context(content, terms))
        yield Participant(terms, session, credentials_of(identity, task)), held, letters


def _answer(letters: Letters, start: float) -> RecordDict:
    return wire.pack_lettered(wire.Lettered(letters, time.perf_counter() - start))
