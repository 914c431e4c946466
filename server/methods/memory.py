"""What a method may hold in memory at once of what all sites answer."""

from __future__ import annotations

from common.config import SettingsError

# Above this a run is refused rather than begun.
_MOST_BYTES = 4 * 2**30


def check_answers(method: str, sites: int, each: int, remedy: str) -> None:
    """Refuse a run whose method would hold `each` bytes of every site's answer at the same time."""
    needed = sites * each
    if needed > _MOST_BYTES:
        raise SettingsError(
            f"method = {method!r} would hold {needed / 2**30:.1f} GiB of answers at once ({sites} sites × "
            f"{each / 2**20:.2g} MiB), more than {_MOST_BYTES / 2**30:.0f} GiB: take {remedy}, or another method"
        )
