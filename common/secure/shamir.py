"""Shamir's secret sharing: any `threshold` shares give the secret, and fewer say nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

# The smallest prime above 2**256: every secret of 32 bytes is a number below it.
PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33

Draw = Callable[[int], bytes]


class InvalidShares(ValueError):
    """Shares that give no secret; the message says why."""


def split(secret: bytes, threshold: int, points: Sequence[int], draw: Draw) -> dict[int, bytes]:
    """Return the share of each point, f(point) with f of degree threshold − 1 and f(0) the secret.

    `draw` gives so many random bytes.
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    if not 1 <= threshold <= len(points) or len(set(points)) < len(points) or min(points) < 1:
        raise ValueError(f"{threshold} of {list(points)} can share nothing")
    # 16 bytes more than the prime has: the rest is as good as uniform.
    drawn = (int.from_bytes(draw(SHARE_BYTES + 16), "big") % PRIME for _ in range(threshold - 1))
    coefficients = [int.from_bytes(secret, "big"), *drawn]
    return {point: _value(coefficients, point).to_bytes(SHARE_BYTES, "big") for point in points}


def join(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret that these shares give together; with too few, or a wrong one among them, it is another."""
    secret = at(0, shares)
    if secret >= 256**SECRET_BYTES:
        raise InvalidShares("they give no secret")
    return secret.to_bytes(SECRET_BYTES, "big")


def at(place: int, shares: Mapping[int, bytes]) -> int:
    """The value at a place of the polynomial through these shares."""
    values = {point: _read(share) for point, share in shares.items()}
    total = 0
    for point, value in values.items():
        above, below = 1, 1
        for other in values:
            if other != point:
                above = above * (place - other) % PRIME
                below = below * (point - other) % PRIME
        total += value * above * pow(below, -1, PRIME)
    return total % PRIME


def _value(coefficients: Sequence[int], point: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * point + coefficient) % PRIME
    return value


def _read(share: bytes) -> int:
    value = int.from_bytes(share, "big")
    if len(share) != SHARE_BYTES or value >= PRIME:
        raise InvalidShares("one of them is no share")
    return value
