"""Why sites are one group all the same, in words: for the display and for the page."""

from __future__ import annotations

from common.readable import p_value
from server.clustering import Chance


def shares_in_the_softmax(chance: Chance) -> str:
    """Of sites that differ in their class shares alone, which every site's model knows."""
    return (
        f"the sites' class shares differ ({p_value(chance.shares)}), but every site's own shares are in its softmax; "
        f"their images do not differ by more than chance ({p_value(chance.means)})"
    )
