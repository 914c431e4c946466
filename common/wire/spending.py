"""What a site tells of its privacy budget, as numbers in another record."""

from __future__ import annotations

from common.site_card import Spending
from common.wire.records import Scalars, WireError, number

_MOST = 1e6


def pack_spending(spending: Spending | None) -> dict[str, float]:
    """Numbers of a record; none where there is no budget."""
    if spending is None:
        return {}
    return {"epsilon": spending.budget, "delta": spending.delta, "spent": spending.spent}


def unpack_spending(record: Scalars) -> Spending | None:
    """Read them; None: there is no budget."""
    if "epsilon" not in record:
        return None
    found = Spending(number(record, "epsilon", _MOST), number(record, "delta", 1.0), number(record, "spent", _MOST))
    if not found.budget or not found.delta:
        raise WireError("a privacy budget has an epsilon and a delta above 0")
    return found
