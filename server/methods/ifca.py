"""IFCA: K models are sent to every site, which trains the one that fits it best."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from common.config import Config
from server.methods.method import Method
from server.methods.partition import OneGroup
from server.methods.training import AskLosses, Draw, Opening, TrainingRule

_MOST_DRAWS = 10


class LeastLoss(TrainingRule):
    """Every site chooses among K models by its own loss, anew in every round (IFCA, algorithm 1).

    A start that hardly anybody chooses never becomes a group. So the K starts are drawn again, at most ten times, until
    each is chosen by half of an equal share of the sites, N / 2K; if none of the draws is that fair, the fairest stays.
    """

    def __init__(self, config: Config) -> None:
        self._k = config.cluster.k

    def open(self, draw: Draw, ask: AskLosses) -> Opening:
        """Draw K starts between which the sites spread."""
        fairest: tuple[int, Opening] | None = None
        for attempt in range(_MOST_DRAWS):
            models = [draw(attempt * self._k + number) for number in range(self._k)]
            choices = {site: int(losses.argmin()) for site, losses in ask(models).items()}
            fewest = int(np.bincount(list(choices.values()), minlength=self._k).min())
            if fairest is None or fewest > fairest[0]:
                fairest = fewest, Opening(dict(enumerate(models)), choices)
            if 2 * self._k * fewest >= len(choices):
                break
        assert fairest is not None
        return fairest[1]

    def offers(self, group: int, groups: Collection[int]) -> tuple[int, ...]:
        """Send all K models."""
        return tuple(sorted(groups))


METHOD = Method(
    name="ifca",
    title="IFCA",
    paper="Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020",
    summary="K models are sent to every site, which trains the one that fits it best; needs cluster.k",
    fingerprint=None,
    distance=None,
    partition=OneGroup(),
    clustered=False,
    training=LeastLoss,
    needs_k=True,
)
