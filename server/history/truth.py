"""What is known of a simulated world beforehand, held against what a run found."""

from __future__ import annotations

from collections.abc import Mapping

from common.config import Config
from common.worlds import truth_of
from server.clustering.rand_index import adjusted_rand_index


def agreement_with_truth(config: Config, labels: Mapping[str, int]) -> float | None:
    """Return the adjusted Rand index of the groups (site → group) and the kinds of the sites.

    None: there is no truth, or fewer than two sites of it are there. Under a drift scenario the truth is that of the
    first round.
    """
    truth = truth_of(config)
    if truth is None:
        return None
    sites = sorted(truth.keys() & labels.keys())
    if len(sites) < 2:
        return None
    return adjusted_rand_index([labels[site] for site in sites], [truth[site] for site in sites])
