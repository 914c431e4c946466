"""How well the models of a round do, put together from the statistics of the sites' own test splits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from common.metrics import EvaluationStatistics, Metrics, pool, site_spread, summarise
from common.state import State
from server.history.events import Beside, RoundFinished

UNKNOWN = Metrics(math.nan, math.nan, math.nan, math.nan, 0)


@dataclass
class RoundResult:
    """What a round left behind, and what its tests say so far.

    Attributes
    ----------
    round_number, train_loss
        Of the round.
    labels
        The group of every site after the round. Who came later is not part of it.
    models
        Of the groups, as the sites are tested with them.
    held
        Of each site's last training: how many test samples it then named right, and of how many.
    """

    round_number: int
    train_loss: float
    labels: dict[str, int]
    models: dict[int, State]
    held: dict[str, tuple[int, int]] = field(default_factory=dict)
    _counts: dict[int, EvaluationStatistics] = field(default_factory=dict)
    _losses: dict[int, list[float]] = field(default_factory=dict)
    _sites: dict[str, Metrics] = field(default_factory=dict)
    _shared: dict[str, tuple[int, int]] = field(default_factory=dict)
    _confusions: dict[str, NDArray[np.int64]] = field(default_factory=dict)

    def add(self, site: str, statistics: EvaluationStatistics, shared: int | None = None) -> None:
        """Take in a site's test, and how many the shared model named right. The order of arrival leaves no trace."""
        if not statistics.confusion.sum():
            return
        group = self.labels[site]
        self._sites[site] = summarise(statistics)
        if shared is not None:
            self._shared[site] = shared, int(statistics.confusion.sum())
        # Most cells are empty where there are many classes.
        cells = np.nonzero(statistics.confusion)
        self._confusions[site] = np.column_stack([*cells, statistics.confusion[cells]])
        # Counts add up exactly in any order; the float losses are kept apart for an exact sum.
        self._losses.setdefault(group, []).append(statistics.loss_sum)
        counts = replace(statistics, loss_sum=0.0)
        self._counts[group] = pool([self._counts[group], counts]) if group in self._counts else counts

    def told(self) -> RoundFinished:
        """All of it, per group and overall; a round in which nobody could be tested is told all the same."""
        groups = {g: replace(self._counts[g], loss_sum=math.fsum(self._losses[g])) for g in sorted(self._counts)}
        mean, worst = site_spread([self._sites[name].accuracy for name in sorted(self._sites)])
        return RoundFinished(
            round_number=self.round_number,
            overall=summarise(pool(list(groups.values()))) if groups else UNKNOWN,
            groups={group: summarise(statistics) for group, statistics in groups.items()},
            sites={name: self._sites[name] for name in sorted(self._sites)},
            labels=self.labels,
            mean_site_accuracy=mean,
            worst_tenth_accuracy=worst,
            train_loss=self.train_loss,
            models=self.models,
            shared=_beside(self._shared),
            held=_beside(self.held),
            confusions={name: self._confusions[name] for name in sorted(self._confusions)},
            scores={group: statistics.histograms for group, statistics in groups.items()},
        )

    def state(self) -> dict[str, object]:
        """What a checkpoint keeps of it: the models are kept with the groups, and the tests are made again."""
        loss = self.train_loss if math.isfinite(self.train_loss) else None
        return {
            "round": self.round_number,
            "train_loss": loss,
            "labels": self.labels,
            "groups": sorted(self.models),
            "held": {site: list(figures) for site, figures in self.held.items()},
        }


def _beside(counts: Mapping[str, tuple[int, int]]) -> Beside | None:
    """Pooled and by site; None: nobody was tested so."""
    tested = {site: counts[site] for site in sorted(counts) if counts[site][1]}
    if not tested:
        return None
    right, of = (sum(one[place] for one in tested.values()) for place in (0, 1))
    return Beside(right / of, {site: one[0] / one[1] for site, one in tested.items()})


def restored(state: Mapping[str, object], models: Mapping[int, State]) -> RoundResult:
    """The result of a round as an earlier `state` has it, not tested yet."""
    loss, labels, groups = state["train_loss"], state["labels"], state["groups"]
    assert isinstance(labels, dict)
    assert isinstance(groups, list)
    held = state.get("held", {})
    assert isinstance(held, dict)
    return RoundResult(
        round_number=int(str(state["round"])),
        train_loss=math.nan if loss is None else float(str(loss)),
        labels=dict(labels),
        models={int(group): models[int(group)] for group in groups},
        held={site: (int(right), int(of)) for site, (right, of) in held.items()},
    )
