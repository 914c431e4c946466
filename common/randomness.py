"""All randomness is a function of (seed, purpose, site, round): no generator is shared or advanced."""

from __future__ import annotations

import hashlib

import numpy as np


def derive_seed(seed: int, purpose: str, site: str = "", round_number: int = 0) -> int:
    """Return a 63-bit seed that depends on all four arguments and on nothing else."""
    text = "\x1f".join((str(seed), purpose, site, str(round_number)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, purpose: str, site: str = "", round_number: int = 0) -> np.random.Generator:
    """Return a fresh NumPy generator for one purpose of one site in one round."""
    return np.random.default_rng(derive_seed(seed, purpose, site, round_number))


def secret_generator(secret: int, purpose: str) -> np.random.Generator:
    """Return a fresh NumPy generator from a secret, using all of its bits: 63 of them could be tried out."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(f"{secret}\x1f{purpose}".encode()).digest(), "big"))
