"""IFCA: K models are sent to every site, which trains the one that fits it best."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from common.config import Config
from common.extras import InvalidExtras
from common.methods.ifca import CHOICE, LOSSES, OTHERS
from common.state import Extras, State
from server.methods.method import Method
from server.methods.partition import OneGroup
from server.methods.training import Contribution, Federation, Move, Opening, TrainingRule
from server.migration import Evidence

_MOST_DRAWS = 10
_REASON = "its model fits them better"


class LeastLoss(TrainingRule):
    """Every site chooses among K models by its own loss, anew in every round (IFCA, algorithm 1).

    A start that hardly anybody chooses never becomes a group. So the K starts are drawn again, at most ten times, until
    each is chosen by half of an equal share of the sites, N / 2K; if none of the draws is that fair, the fairest stays.
    """

    offers_all = True

    def __init__(self, config: Config, federation: Federation) -> None:
        super().__init__(config, federation)
        self._groups: tuple[int, ...] = ()
        self._chosen: dict[str, int] = {}

    def open(self) -> Opening:
        """Draw K starts between which the sites spread."""
        k = self.config.cluster.k
        fairest: tuple[int, Opening] | None = None
        for attempt in range(_MOST_DRAWS):
            models = [self.federation.draw(attempt * k + number) for number in range(k)]
            starts = {f"{OTHERS}.{number}": model for number, model in enumerate(models)}
            answers = self.federation.ask(LOSSES, starts, self._check_losses)
            choices = {site: int(answer[LOSSES]["values"].argmin()) for site, answer in answers.items()}
            fewest = int(np.bincount(list(choices.values()), minlength=k).min())
            if fairest is None or fewest > fairest[0]:
                fairest = fewest, Opening(dict(enumerate(models)), choices)
            if 2 * k * fewest >= len(choices):
                break
        assert fairest is not None
        return fairest[1]

    def passes(self) -> float:
        """One, and a look at the samples under each of the K models."""
        return 1 + self.config.cluster.k / 3

    def _check_losses(self, answer: Extras) -> None:
        count = len(answer[LOSSES]["values"])
        if count != self.config.cluster.k:
            raise InvalidExtras(f"it sends {count} losses for {self.config.cluster.k} models")

    def beside(self, group: int, models: Mapping[int, State]) -> Extras:
        """Send the models of all other groups, too."""
        self._groups = tuple(sorted(models))
        return {f"{OTHERS}.{other}": models[other] for other in self._groups if other != group}

    def trained(self, group: int, extras: Extras) -> int:
        """The site says which one it chose."""
        choice = int(extras[CHOICE]["group"])
        if choice not in self._groups:
            raise InvalidExtras(f"it trained the model of group {choice}, which it was not offered")
        return choice

    def observe(self, contribution: Contribution) -> None:
        """Note who trained another group's model than its own."""
        self._chosen[contribution.site] = contribution.group

    def review(self, round_number: int, groups: Mapping[int, Sequence[str]]) -> Iterator[Move]:
        """Put sites that trained another group's model than their own into that group."""
        ways: dict[tuple[int, int], list[str]] = {}
        for origin, sites in groups.items():
            for site in sites:
                target = self._chosen.get(site, origin)
                if target != origin:
                    ways.setdefault((origin, target), []).append(site)
        self._chosen = {}
        for (origin, target), sites in sorted(ways.items()):
            yield Move(tuple(sites), origin, target, Evidence(reason=_REASON))


METHOD = Method(
    name="ifca",
    title="IFCA",
    about=(
        "When K is known and traffic is cheap: K models go to every site in every round, and it trains the one "
        "that fits its *training* samples best (a public version chooses by test samples). Before training every "
        "site is asked for its loss under K drawn models; they are drawn again, at most ten times, until each is "
        "preferred by N / 2K sites. A site is then tested with the model it trained; one that has not trained yet "
        "has the first."
    ),
    paper="Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020",
    summary="K models are sent to every site, which trains the one that fits it best; needs cluster.k",
    family="clustered while training",
    partition=OneGroup(),
    clustered=False,
    rule="ifca",
    training=LeastLoss,
    needs_k=True,
)

METHODS = (METHOD,)
