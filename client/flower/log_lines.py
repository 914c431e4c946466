"""Lines that Flower's SuperNode writes, and what they mean. Imports nothing of Flower."""

from __future__ import annotations

ADMITTED = "SuperNode ID:"
ACTIVATION_FAILED = "[code: 2004]"  # Flower's FLEET_NODE_ACTIVATION_FAILED
CLOCK_TOO_FAR = "Nobody is let in whose clock is off by"  # not Flower's own: `client.flower.clock` says it


def is_admission(line: str) -> bool:
    """Whether the SuperNode says that the server let it in."""
    return ADMITTED in line


def is_refusal(line: str) -> bool:
    """Whether the SuperNode says that the server does not let it in: its key is unknown, or counts as online."""
    return ACTIVATION_FAILED in line


def is_clock_refusal(line: str) -> bool:
    """Whether the SuperNode says that this machine's clock is too far from the server's to be let in."""
    return CLOCK_TOO_FAR in line
