"""Files of others, broken in every way: a reader gives a value or an error that its callers expect, nothing else.

`tests/test_fuzz.py` tries a few thousand, `python -m benchmarks.fuzz` as many as one likes. The same seed breaks the
same bytes.
"""

from __future__ import annotations

import logging
import random
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.support.breaking import broken
from tests.support.readers import Reader, readers


@dataclass
class Outcome:
    """What came of many inputs."""

    inputs: int = 0
    refused: int = 0
    through: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)


def attempt(inputs: int, seed: int, only: str = "") -> Outcome:
    """Break so many inputs, the same ones for the same seed."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="coterie-fuzz-") as name, _silence():
        folder = Path(name)
        found = [reader for reader in readers(folder) if only in reader.name]
        weights = [1 / reader.cost for reader in found]
        rng = random.Random(seed)
        for reader in found:
            reader.read(folder, reader.valid)  # or what is broken would be broken before
        for _ in range(inputs):
            (reader,) = rng.choices(found, weights)
            _try(reader, folder, rng, outcome)
    return outcome


def _try(reader: Reader, folder: Path, rng: random.Random, outcome: Outcome) -> None:
    change = reader.inside if reader.inside is not None and rng.randrange(3) else broken
    try:
        content = change(rng, reader.valid)
    except (ValueError, UnicodeError):
        return  # a fault that cannot be written down
    outcome.inputs += 1
    try:
        reader.read(folder, content)
    except reader.named:
        outcome.refused += 1
    except Exception as error:
        ours = [place for place in traceback.extract_tb(error.__traceback__) if "/lib/python" not in place.filename]
        place = ours[-1]
        what = f"{reader.name}: {type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {str(error)[:90]}"
        outcome.through[what] += 1
        outcome.examples.setdefault(what, repr(content[:300]))


@contextmanager
def _silence() -> Iterator[None]:
    """Libraries tell of every damaged image."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(level)
