"""Whatever is in a file of others: its reader gives a value, or an error that its callers put into words."""

from __future__ import annotations

from tests.support.fuzz import attempt


def test_nothing_gets_through() -> None:
    outcome = attempt(6_000, seed=0)
    assert not outcome.through, outcome.examples
    # Most must be wrong enough to be noticed, or this would try nothing.
    assert outcome.refused > outcome.inputs / 2 > 2_500
