"""A secure sum without messages: sites and coordinator call each other, and a test may stand between them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from client.secure.participant import Credentials, Distrust, Letters, Participant, Session, begin
from common.secure.terms import Terms
from server.secure.opening import common_ground, unmask

CONTEXT_TASK: Mapping[str, str | int] = {"run": "ab", "round": 3, "settings": "{}"}


def draws(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


class QuickCredentials:
    """Signatures that cost nothing, by a secret that a coordinator does not have: in the place of an authority's."""

    certificate = b"certificate"

    def __init__(self, secret: int, name: str) -> None:
        self._secret, self._name = secret, name

    def sign(self, statement: bytes) -> bytes:
        return self._word_of(self._name, statement)

    def check(self, name: str, certificate: bytes, signature: bytes, statement: bytes) -> None:
        if certificate != self.certificate or signature != self._word_of(name, statement):
            raise Distrust(f"the signature of {name} is wrong")

    def _word_of(self, name: str, statement: bytes) -> bytes:
        return hashlib.sha256(f"{self._secret} {name}".encode() + statement).digest()


@dataclass
class Group:
    """The sites of one sum, by member; `vectors` are their updates."""

    names: tuple[str, ...]
    vectors: dict[int, NDArray[np.int64]]
    credentials: dict[int, Credentials] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        self.terms = Terms(self.names, 1000, 0, bytes(32))
        self.context = self.terms.context(CONTEXT_TASK)
        self.rng = draws(self.seed)
        if not self.credentials:
            self.credentials = {one: QuickCredentials(7, name) for one, name in enumerate(self.names)}
        self.sessions: dict[int, Session] = {}
        self.adverts: Letters = {}
        self.sealed: dict[int, Letters] = {}
        self.shared: set[int] = set()
        self.masked: dict[int, NDArray[np.int64]] = {}
        self.signatures: Letters = {}
        self.given: dict[int, Letters] = {}

    def site(self, member: int) -> Participant:
        """As the site is when the next message comes: all it knows is its session."""
        return Participant(self.terms, self.sessions[member], self.credentials[member])

    def advertise(self, members: Collection[int]) -> None:
        for one in members:
            self.sessions[one], self.adverts[one] = begin(
                self.terms, self.context, self.names[one], self.credentials[one], self.rng.bytes
            )

    def share(self, members: Collection[int]) -> None:
        self.sealed = {one: self.site(one).share(self.adverts, self.rng.bytes) for one in members}
        self.shared, believed = common_ground(self.sealed)
        self.adverts = {one: advert for one, advert in self.adverts.items() if one in believed}

    def letters_to(self, member: int) -> Letters:
        return {one: self.sealed[one][member] for one in self.shared if one != member}

    def mask(self, members: Collection[int]) -> None:
        for one in members:
            site = self.site(one)
            site.receive(self.letters_to(one))
            self.masked[one] = self.vectors[one].copy()
            site.mask(self.masked[one])

    def sign(self, members: Collection[int]) -> None:
        self.signatures = {one: self.site(one).sign(sorted(self.masked)) for one in members}

    def give(self, members: Collection[int]) -> None:
        self.given = {one: self.site(one).open(self.signatures) for one in members}

    def total(self) -> NDArray[np.int64]:
        total = np.zeros_like(next(iter(self.vectors.values())))
        for masked in self.masked.values():
            total += masked
        return total

    def open(self) -> tuple[NDArray[np.int64], dict[int, str]]:
        total = self.total()
        wrong = unmask(
            total.view(np.uint64), self.terms, self.context, self.adverts, self.shared, self.masked.keys(), self.given
        )
        return total, wrong


def group_of(count: int, size: int = 50, seed: int = 0) -> Group:
    rng = np.random.default_rng(seed)
    vectors = {one: rng.integers(-(2**55), 2**55, size) for one in range(count)}
    return Group(tuple(f"site {one:02d}" for one in range(count)), vectors, seed=seed)
