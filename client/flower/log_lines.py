"""Lines that Flower's SuperNode writes, and what they mean. Imports nothing of Flower."""

from __future__ import annotations

ADMITTED = "SuperNode ID:"
ACTIVATION_FAILED = "[code: 2004]"  # Flower's FLEET_NODE_ACTIVATION_FAILED
LAST_WORDS = "Exit Code:"
# Said at every start of what `coterie` itself starts in this way.
KNOWN_TO_US = "SuperExec authentication is experimental"


def is_admission(line: str) -> bool:
    """Whether the SuperNode says that the server let it in."""
    return ADMITTED in line


def is_refusal(line: str) -> bool:
    """Whether the SuperNode says that the server does not let it in: its key is unknown, or counts as online."""
    return ACTIVATION_FAILED in line


def is_last_word(line: str) -> bool:
    """Whether the SuperNode begins to say why it ends; what follows, up to its end, belongs to it."""
    return LAST_WORDS in line


def is_known_to_us(line: str) -> bool:
    """Whether a line warns of something that was done on purpose."""
    return KNOWN_TO_US in line
