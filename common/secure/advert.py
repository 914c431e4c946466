"""What a site tells the others of a sum: public keys of this sum alone, signed with the key that it was given."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from common.secure.keys import PUBLIC_BYTES

_BODY = 2 * PUBLIC_BYTES + 32
_LONGEST_SIGNATURE = 200


class InvalidAdvert(ValueError):
    """Bytes that are no advert."""


@dataclass(frozen=True)
class Advert:
    """Keys of one site for one sum.

    Attributes
    ----------
    encryption, masking
        Public keys: for the shares that it is sent, and for masks.
    commitment
        To the seed of its own mask.
    signature
        Over these and the context, by the key of `certificate`.
    certificate
        By which the federation's authority says whose key that is.
    """

    encryption: bytes
    masking: bytes
    commitment: bytes
    signature: bytes = b""
    certificate: bytes = b""

    @property
    def body(self) -> bytes:
        """What is signed."""
        return self.encryption + self.masking + self.commitment

    def to_bytes(self) -> bytes:
        """Write it."""
        return self.body + bytes([len(self.signature)]) + self.signature + self.certificate

    @classmethod
    def from_bytes(cls, content: bytes) -> Advert:
        """Read it; what the keys are worth is another matter."""
        if len(content) <= _BODY or content[_BODY] > _LONGEST_SIGNATURE or len(content) < _BODY + 1 + content[_BODY]:
            raise InvalidAdvert("it is cut off")
        keys, rest = content[:_BODY], content[_BODY + 1 :]
        length = content[_BODY]
        return cls(
            keys[:PUBLIC_BYTES],
            keys[PUBLIC_BYTES : 2 * PUBLIC_BYTES],
            keys[2 * PUBLIC_BYTES :],
            rest[:length],
            rest[length:],
        )


def statement_of_keys(context: bytes, member: int, advert: Advert) -> bytes:
    """What a site signs of its keys."""
    return b"coterie secure sum, keys\0" + context + member.to_bytes(4, "big") + advert.body


def statement_of_sum(transcript: bytes, shared: Collection[int], summed: Collection[int]) -> bytes:
    """What a site signs of the sum that it is ready to open: who shared secrets, and whose updates it has."""
    who = json.dumps([sorted(shared), sorted(summed)]).encode()
    return b"coterie secure sum, members\0" + transcript + who


def transcript_of(context: bytes, adverts: Mapping[int, bytes]) -> bytes:
    """The digest of the terms and of all keys: sites that saw other ones have nothing in common."""
    told = {str(member): adverts[member].hex() for member in sorted(adverts)}
    return hashlib.sha256(context + json.dumps(told).encode()).digest()
