"""What two sites have in common, and nobody else: keys from a Diffie-Hellman exchange on Curve25519."""

from __future__ import annotations

import hashlib

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PRIVATE_BYTES = PUBLIC_BYTES = 32
TAG_BYTES = 16
# The key is used for one message alone.
_NONCE = bytes(12)
# A private key to try others with: whether that succeeds is the same for all.
_ANY = bytes(range(32))


class Unreadable(ValueError):
    """Something that was not sealed for this reader, or was changed on the way."""


def public_of(private: bytes) -> bytes:
    """The public key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def is_usable(public: bytes) -> bool:
    """Whether a secret can be had in common with the owner of a public key; not with a point of small order."""
    try:
        _shared(_ANY, public)
    except Unreadable:
        return False
    return True


def commitment_to(seed: bytes) -> bytes:
    """A digest that fixes a random seed and tells nothing of it."""
    return hashlib.sha256(b"coterie secure sum, seed\0" + seed).digest()


def mask_key(private: bytes, public: bytes, transcript: bytes) -> bytes:
    """The key of the mask that two sites have in common: the same from either side."""
    return _derived(_shared(private, public), b"mask\0" + transcript)


def own_mask_key(seed: bytes, transcript: bytes) -> bytes:
    """The key of the mask that a site adds for itself."""
    return _derived(seed, b"own mask\0" + transcript)


def seal(private: bytes, public: bytes, transcript: bytes, way: tuple[int, int], text: bytes) -> bytes:
    """Encrypt the one message of a session that goes this way, from member to member."""
    return ChaCha20Poly1305(_sealing_key(private, public, transcript, way)).encrypt(_NONCE, text, None)


def unseal(private: bytes, public: bytes, transcript: bytes, way: tuple[int, int], sealed: bytes) -> bytes:
    """Read it, or raise `Unreadable`."""
    try:
        return ChaCha20Poly1305(_sealing_key(private, public, transcript, way)).decrypt(_NONCE, sealed, None)
    except InvalidTag:
        raise Unreadable("it was not sealed for this site, or was changed on the way") from None


def _sealing_key(private: bytes, public: bytes, transcript: bytes, way: tuple[int, int]) -> bytes:
    return _derived(_shared(private, public), b"share %d to %d\0" % way + transcript)


def _shared(private: bytes, public: bytes) -> bytes:
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        # A point of small order: the secret would be known to everybody.
        raise Unreadable("a public key is none") from None


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return HKDF(hashes.SHA256(), 32, salt=None, info=b"coterie secure sum\0" + purpose).derive(secret)
