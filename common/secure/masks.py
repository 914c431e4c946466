"""Masks: streams of random 64-bit numbers that are added to a vector, or taken off, modulo 2**64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

KEY_BYTES = 32
# Bytes handled at once, so that stream and vector meet in the processor's cache.
_PIECE = 1 << 17


def add_masks(vector: NDArray[np.uint64], plus: Sequence[bytes], minus: Sequence[bytes] = ()) -> None:
    """Add the streams of some keys to a vector in place, and take those of others off.

    A stream is AES-256 in counter mode from zero on: a key must never stand for two streams.
    """
    signed = [(_stream(key), False) for key in plus] + [(_stream(key), True) for key in minus]
    zeros, buffer = bytes(_PIECE), np.empty(_PIECE // 8, np.uint64)
    for start in range(0, vector.size, buffer.size):
        part = vector[start : start + buffer.size]
        mask = buffer[: part.size]
        for stream, is_taken_off in signed:
            stream.update_into(zeros[: part.nbytes] if part.nbytes < _PIECE else zeros, mask.view(np.uint8).data)
            if is_taken_off:
                np.subtract(part, mask, out=part)
            else:
                np.add(part, mask, out=part)


def _stream(key: bytes) -> CipherContext:
    if len(key) != KEY_BYTES:
        raise ValueError(f"a mask's key has {KEY_BYTES} bytes, not {len(key)}")
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
