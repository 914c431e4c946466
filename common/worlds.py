"""Simulated worlds with a truth: which sites are of the same kind, before anybody looks at their data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from common.config import Config, PartitionSettings
from common.randomness import generator


def site_kinds(settings: PartitionSettings, sites: int, seed: int) -> NDArray[np.int64]:
    """Return the kind of each simulated site, int64[sites]; all 0 where sites do not differ in kind.

    Sizes of kinds differ by at most one. Who is of which kind is drawn by the seed, apart from who gets which samples.
    """
    if settings.shift == "none":
        return np.zeros(sites, np.int64)
    kinds: NDArray[np.int64] = generator(seed, "kinds").permutation(np.arange(sites, dtype=np.int64) % settings.kinds)
    return kinds


def truth_of(config: Config) -> dict[str, int] | None:
    """Return the kind of every simulated site by its name; None: the sites of this run do not differ in kind."""
    if config.partition.shift == "none":
        return None
    kinds = site_kinds(config.partition, config.sites, config.seed)
    return {f"{site:03d}": int(kind) for site, kind in enumerate(kinds)}
