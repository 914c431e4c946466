"""Numbers are written one way, wherever people read them."""

from __future__ import annotations

import math

import pytest

from common.readable import duration, megabytes, percent
from common.site_name import is_site_name


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0.0 s"),
        (4.23, "4.2 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (200, "3 min 20 s"),
        (3599.6, "1 h 0 min"),
        (7530, "2 h 5 min"),
    ],
)
def test_a_length_of_time_is_as_exact_as_it_is_short(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_share_that_is_not_defined_is_not_a_number() -> None:
    assert percent(0.1234) == "12.3%"
    assert percent(math.nan) == "–"
    assert percent(math.nan, unknown="not known") == "not known"


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 bytes"), (999, "999 bytes"), (4120, "4.12 kB"), (7.43e7, "74.3 MB"), (2e9, "2 GB")]
)
def test_bytes_are_counted_in_a_unit_that_suits_them(count: float, words: str) -> None:
    assert megabytes(count) == words


@pytest.mark.parametrize("name", ["a", "0", "_", "Klinik-Süd_2.b", "a" * 64])
def test_a_site_may_be_called(name: str) -> None:
    assert is_site_name(name)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "..", ".hidden", "-x", "a" * 65, "a\n"])
def test_a_site_may_not_be_called(name: str) -> None:
    assert not is_site_name(name)
