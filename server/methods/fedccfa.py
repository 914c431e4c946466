"""FedCCFA: one body for all sites and a head for each, whose rows are shared class by class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.config import Config, SettingsError
from common.extras import InvalidExtras
from common.methods.fedccfa import ANCHORS, BALANCED, HEAD, OWN_HEAD, PROTOTYPES, Settings
from common.state import Extras, State
from server.clustering.classwise import components, row_distance
from server.methods.method import Method
from server.methods.partition import OneGroup
from server.methods.training import Contribution, Federation, Remembered, TrainingRule

_WEIGHT, _BIAS = "head.weight", "head.bias"


@dataclass(frozen=True)
class Kept:
    """What the server keeps for a site: its head, its anchors float32[C, d], and which of them it has, int64[C]."""

    head: State
    means: NDArray[np.float32]
    held: NDArray[np.int64]


class ClasswiseHeads(TrainingRule):
    """Class by class, the participants that hold it and whose balanced heads agree on it share its row and anchor.

    Adaptation is by finding out anew in every round who agrees with whom. A site whose row agrees with nobody's keeps
    its own, and its own mean feature is its anchor. What is kept for a site goes down with its next message.
    """

    def __init__(self, config: Config, federation: Federation) -> None:
        super().__init__(config, federation)
        self._settings = config.of(Settings)
        self._kept: dict[str, Kept] = {}
        self._round = 0
        # What the sites of each group sent in this round.
        self._sent: dict[int, dict[str, Extras]] = {}

    def passes(self) -> float:
        """One, and a look at the samples before it, for the heads, and one after it, for the prototypes."""
        return 1 + 2 / 3

    def for_site(self, site: str, *, trains: bool) -> Extras:
        """Its head and anchors, with which it is tested, too."""
        kept = self._kept.get(site)
        known = np.array(int(kept is not None), np.int64)
        if kept is None:
            head = self.federation.own_start()
            classes = head[_WEIGHT].shape[0]
            kept = Kept(head, np.zeros_like(head[_WEIGHT]), np.zeros(classes, np.int64))
        return {OWN_HEAD: kept.head, ANCHORS: {"means": kept.means, "held": kept.held, "known": known}}

    def term(self, contribution: Contribution) -> State:
        """The body; a site counts no more than the samples it trained on, of which it may withhold small classes."""
        counted = int(contribution.extras[PROTOTYPES]["counts"].sum())
        if counted > contribution.samples:
            raise InvalidExtras(f"it counts {counted} labels of {contribution.samples} samples")
        return contribution.after

    def observe(self, contribution: Contribution) -> None:
        """Take in heads and prototypes."""
        if contribution.round_number != self._round:
            self._round, self._sent = contribution.round_number, {}
        self._sent.setdefault(contribution.group, {})[contribution.site] = contribution.extras

    def close(self, group: int, before: State, mean: State, samples: int) -> State:
        """Share rows and anchors among those whose bodies were averaged."""
        # By name, so that the order of arrival leaves no trace.
        self._kept |= share(dict(sorted(self._sent.pop(group).items())), self._settings)
        return mean

    def state(self) -> Remembered:
        """Head and anchors of every site."""
        return {site: {"head": kept.head, "means": kept.means, "held": kept.held} for site, kept in self._kept.items()}

    def restore(self, state: Remembered) -> None:
        """Remember what an earlier `state` said."""
        self._kept = {site: Kept(kept["head"], kept["means"], kept["held"]) for site, kept in state.items()}


def share(sent: dict[str, Extras], settings: Settings) -> dict[str, Kept]:
    """What each participant has after the classes were gone through, one by one. What was sent stays as it is."""
    after = {
        site: Kept(
            {name: array.copy() for name, array in extras[HEAD].items()},
            extras[PROTOTYPES]["means"].copy(),
            (extras[PROTOTYPES]["counts"] > 0).astype(np.int64),
        )
        for site, extras in sent.items()
    }
    classes = len(next(iter(sent.values()))[PROTOTYPES]["counts"])
    for label in range(classes):
        holders = [site for site, extras in sent.items() if extras[PROTOTYPES]["counts"][label]]
        if len(holders) < 2:
            continue
        distance = row_distance([_row(sent[site][BALANCED], label) for site in holders])
        agree = components(distance, settings.eps)
        for component in np.unique(agree):
            members = [site for site, own in zip(holders, agree, strict=True) if own == component]
            if len(members) < 2:
                continue
            counts = [int(sent[site][PROTOTYPES]["counts"][label]) for site in members]
            weights = counts if settings.weights == "counts" else None
            row = np.average([_row(sent[site][HEAD], label) for site in members], axis=0, weights=weights)
            anchor = np.average([sent[site][PROTOTYPES]["means"][label] for site in members], axis=0, weights=weights)
            for site in members:
                after[site].head[_WEIGHT][label] = row[:-1]
                after[site].head[_BIAS][label] = row[-1]
                after[site].means[label] = anchor
    return after


def _row(head: State, label: int) -> NDArray[np.float64]:
    """A class's row of a head, with its bias."""
    return np.append(head[_WEIGHT][label], head[_BIAS][label]).astype(np.float64)


def check(config: Config) -> None:
    """Refuse a network whose features nobody knows how to ask for."""
    if config.train.model.startswith("python:"):
        raise SettingsError(
            f"train.model = {config.train.model!r}: fedccfa trains on the features below the head, which a network of "
            "your own does not give by themselves; take another network, or another method, such as fedper"
        )


METHOD = Method(
    name="fedccfa",
    title="FedCCFA",
    about=(
        "When the meaning of single classes differs between sites. Up to three short trainings at a site, and "
        "heads, mean features and label counts travel in every round; the server keeps head and anchors of every "
        "site, so it is told more than with any other method here. Sites need not have every class: the published "
        "code fails without, with NaN or a crash, and tests who was not drawn with an old body."
    ),
    paper="Chen et al., Classifier Clustering and Feature Alignment for Federated Learning under Distributed Concept "
    "Drift, NeurIPS 2024",
    summary="one body for all sites, and a head for each whose rows are shared with those who agree on the class",
    family="personal",
    partition=OneGroup(),
    clustered=False,
    rule="fedccfa",
    training=ClasswiseHeads,
    check=check,
    settings_used=tuple(f"fedccfa.{name}" for name in Settings.model_fields),
)

METHODS = (METHOD,)
