"""One site in one secure sum: four answers and a masked update, each given once.

Whatever the coordinator relays is held against the site's own view, and `Distrust` names what does not fit. A site
gives away the share of another's own mask or that of its key, never both: with both, a single update would lie open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from common.secure.advert import Advert, InvalidAdvert, statement_of_keys, statement_of_sum, transcript_of
from common.secure.keys import (
    PRIVATE_BYTES,
    Unreadable,
    commitment_to,
    is_usable,
    mask_key,
    own_mask_key,
    public_of,
    seal,
    unseal,
)
from common.secure.masks import add_masks
from common.secure.shamir import SHARE_BYTES, split
from common.secure.terms import Terms

Stage = Literal["keys", "shares", "masked", "signed"]
Letters = dict[int, bytes]


class Distrust(ValueError):
    """Something in a secure sum that no honest coordinator would send; the message says what, and of whom."""


class Credentials(Protocol):
    """Who a site is, and whom it believes."""

    @property
    def certificate(self) -> bytes:
        """By which others know the site's key."""

    def sign(self, statement: bytes) -> bytes:
        """Sign with the site's key."""

    def check(self, name: str, certificate: bytes, signature: bytes, statement: bytes) -> None:
        """Raise `Distrust` unless the site of this name has signed the statement."""


@dataclass
class Session:
    """What a site must remember of a sum from one message to the next.

    Attributes
    ----------
    context
        Digest of what it was told of the sum.
    member
        Its place among the members.
    encryption, masking, seed
        Its secrets, for this sum alone: two private keys, and the seed of its own mask.
    stage
        The last thing it has answered.
    adverts
        Of those whose keys it believes, itself among them.
    shares
        Of others' secrets, and its own: the share of the key, then that of the seed.
    summed
        Whose updates are in the sum that it has signed.
    """

    context: bytes
    member: int
    encryption: bytes
    masking: bytes
    seed: bytes
    stage: Stage = "keys"
    adverts: Letters = field(default_factory=dict)
    shares: Letters = field(default_factory=dict)
    summed: tuple[int, ...] = ()

    @property
    def transcript(self) -> bytes:
        """The digest of the terms and of all keys."""
        return transcript_of(self.context, self.adverts)


def begin(
    terms: Terms, context: bytes, name: str, credentials: Credentials, draw: Callable[[int], bytes]
) -> tuple[Session, bytes]:
    """Draw keys for a sum; return the session, and the advert of its public keys."""
    member = terms.members.index(name)
    session = Session(context, member, draw(PRIVATE_BYTES), draw(PRIVATE_BYTES), draw(32))
    advert = Advert(public_of(session.encryption), public_of(session.masking), commitment_to(session.seed))
    signature = credentials.sign(statement_of_keys(context, member, advert))
    advert = Advert(advert.encryption, advert.masking, advert.commitment, signature, credentials.certificate)
    session.adverts = {member: advert.to_bytes()}
    return session, advert.to_bytes()


class Participant:
    """A site that has begun a sum.

    Parameters
    ----------
    terms
        Of the sum, as the site was told them with this message.
    session
        What it remembers; changed by every answer, and to be on disk before that leaves.
    credentials
        Its own.
    """

    def __init__(self, terms: Terms, session: Session, credentials: Credentials) -> None:
        self._terms, self.session, self._credentials = terms, session, credentials
        # Why the keys of some were not believed, by name.
        self.disbelieved: dict[str, str] = {}

    def share(self, adverts: Letters, draw: Callable[[int], bytes]) -> Letters:
        """Given the adverts of all: a sealed pair of shares for each whose keys are believed."""
        self._expect("keys")
        session, terms = self.session, self._terms
        own = session.member
        if adverts.get(own) != session.adverts[own]:
            raise Distrust("its own keys were changed on the way")
        read = {member: self._believed(member, content) for member, content in sorted(adverts.items())}
        believed = {member: advert for member, advert in read.items() if advert is not None}
        self._refuse_equal(believed)
        self._require(believed, "keys to believe")
        session.adverts = {member: adverts[member] for member in believed}
        transcript, points = session.transcript, [member + 1 for member in believed]
        of_key = split(session.masking, terms.threshold, points, draw)
        of_seed = split(session.seed, terms.threshold, points, draw)
        pairs = {member: of_key[member + 1] + of_seed[member + 1] for member in believed}
        session.shares = {own: pairs.pop(own)}
        session.stage = "shares"
        return {
            member: seal(session.encryption, believed[member].encryption, transcript, (own, member), pair)
            for member, pair in pairs.items()
        }

    def receive(self, sealed: Letters) -> None:
        """Take in the shares that the others have sealed for this site: they and it are those who mask."""
        self._expect("shares")
        session, own = self.session, self.session.member
        shares = {own: session.shares[own]}
        for member, content in sorted(sealed.items()):
            if member == own or member not in session.adverts:
                raise Distrust(f"a share is said to come from {self._name(member)}, which has no part in this sum")
            advert = Advert.from_bytes(session.adverts[member])
            try:
                pair = unseal(session.encryption, advert.encryption, session.transcript, (member, own), content)
            except Unreadable as error:
                raise Distrust(f"the share of {self._name(member)} cannot be opened: {error}") from None
            if len(pair) != 2 * SHARE_BYTES:
                raise Distrust(f"the share of {self._name(member)} is none")
            shares[member] = pair
        self._require(shares, "shares")
        session.shares = shares

    def mask(self, vector: NDArray[np.int64]) -> None:
        """Hide an update in place; only once, as two updates under the same masks would show their difference."""
        self._expect("shares")
        session, own = self.session, self.session.member
        self._require(session.shares, "shares")
        plus, minus = [own_mask_key(session.seed, session.transcript)], list[bytes]()
        for member in session.shares:
            if member != own:
                public = Advert.from_bytes(session.adverts[member]).masking
                (plus if own < member else minus).append(mask_key(session.masking, public, session.transcript))
        session.stage = "masked"
        add_masks(vector.view(np.uint64), plus, minus)

    def sign(self, summed: Sequence[int]) -> bytes:
        """Given whose updates arrived: the site's word that it takes these, and no others, for the sum."""
        self._expect("masked")
        session = self.session
        if not set(summed) <= set(session.shares):
            raise Distrust("the sum is said to have updates of sites that have no part in it")
        if session.member not in summed:
            raise Distrust("the sum is said to be without the update of this site, which needs not help to open it")
        self._require(summed, "updates in the sum")
        session.summed, session.stage = tuple(sorted(summed)), "signed"
        return self._credentials.sign(self._statement)

    def open(self, signatures: Letters) -> Letters:
        """Given the words of the others: of who is in the sum, the share of its own mask; of who is not, of its key."""
        self._expect("signed")
        session = self.session
        self._require(signatures, "signatures of the sum")
        for member, signature in sorted(signatures.items()):
            if member not in session.summed:
                raise Distrust(f"{self._name(member)} is said to have signed a sum that it is not in")
            certificate = Advert.from_bytes(session.adverts[member]).certificate
            self._credentials.check(self._terms.members[member], certificate, signature, self._statement)
        return {
            member: pair[SHARE_BYTES:] if member in session.summed else pair[:SHARE_BYTES]
            for member, pair in session.shares.items()
        }

    @property
    def _statement(self) -> bytes:
        return statement_of_sum(self.session.transcript, self.session.shares, self.session.summed)

    def _believed(self, member: int, content: bytes) -> Advert | None:
        try:
            advert = Advert.from_bytes(content)
            statement = statement_of_keys(self.session.context, member, advert)
            self._credentials.check(self._terms.members[member], advert.certificate, advert.signature, statement)
            if not (is_usable(advert.encryption) and is_usable(advert.masking)):
                raise Distrust("a public key is none")
        except (InvalidAdvert, Distrust) as error:
            # Left out, not a reason to stop: one member cannot keep the others from their sum by bad keys.
            self.disbelieved[self._name(member)] = str(error)
            return None
        return advert

    def _refuse_equal(self, adverts: Mapping[int, Advert]) -> None:
        for one, other in combinations(adverts, 2):
            left, right = adverts[one], adverts[other]
            if {left.encryption, left.masking} & {right.encryption, right.masking} or (
                left.commitment == right.commitment
            ):
                raise Distrust(f"{self._name(one)} and {self._name(other)} come with the same key")

    def _require(self, there: Mapping[int, object] | Sequence[int], what: str) -> None:
        if len(there) < self._terms.threshold:
            doubts = "; ".join(f"{name}: {reason}" for name, reason in self.disbelieved.items())
            raise Distrust(
                f"{len(there)} {what} where {len(self._terms.members)} members need {self._terms.threshold}"
                + (f" ({doubts})" if doubts else "")
            )

    def _expect(self, stage: Stage) -> None:
        if self.session.stage != stage:
            raise Distrust(
                f"this was asked out of turn: the last that this site answered of the sum was {self.session.stage!r}"
            )

    def _name(self, member: int) -> str:
        return repr(self._terms.members[member]) if 0 <= member < len(self._terms.members) else f"member {member}"
