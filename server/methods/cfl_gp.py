"""CFL-GP: K groups by the leading directions of everybody's gradients, anew every few rounds until they are settled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from common.config import Config
from common.extras import InvalidExtras
from common.methods.cfl_gp import CRITERION, GRADIENT, Settings
from common.methods.ifca import LOSSES, OTHERS
from common.randomness import derive_seed
from common.state import Extras, State, flat_parameters
from server.clustering import k_means, leading_coordinates, matched
from server.methods.memory import check_answers
from server.methods.method import Method
from server.methods.partition import OneGroup
from server.methods.training import Federation, GroupingRule, Move, Opening, Placement, Remembered
from server.migration import Evidence


class GradientPartition(GroupingRule):
    """Features g_i ∈ R^{K·d}: running means of a site's gradients at each of K models (CFL-GP, algorithm 1).

    Every P-th round, T_cl times, all sites tell their gradient at one of the models, which take turns. The features are
    projected on their K leading directions and grouped by k-means; labels are matched to the old ones, so that a group
    keeps its model. All K models start the same. A silent site keeps its feature, and without one its group; after the
    last time groups stay as they are.
    """

    def __init__(self, config: Config, federation: Federation) -> None:
        super().__init__(config, federation)
        self._settings = config.of(Settings)
        self._k = config.cluster.k
        self._times = 0
        self._features: dict[str, NDArray[np.float32]] = {}
        # How often each site was heard at each model.
        self._visits: dict[str, list[int]] = {}

    def open(self) -> Opening:
        """Group the sites for the first time, by their gradients at the common start."""
        models = {group: self.federation.draw(0) for group in range(self._k)}
        sites = [member.name for member in self.federation.members]
        # A gradient, and the feature, which is one for each model.
        each = flat_parameters(models[0]).nbytes * (1 + self._k)
        check_answers("cfl-gp", len(sites), each, "a smaller network or cluster.k")
        return Opening(models, self._grouped(models, dict.fromkeys(sites, 0), 0))

    def review(self, round_number: int, groups: Mapping[int, Sequence[str]]) -> Iterator[Move]:
        """Group the sites again, until that was done often enough."""
        if self._times >= self._settings.times or round_number % self._settings.every:
            return
        home = {site: group for group, sites in groups.items() for site in sites}
        ways: dict[tuple[int, int], list[str]] = {}
        for site, target in self._grouped(self.federation.models, home, round_number).items():
            if target != home[site]:
                ways.setdefault((home[site], target), []).append(site)
        for (origin, target), sites in sorted(ways.items()):
            yield Move(tuple(sites), origin, target, Evidence(reason="their gradients are those of the group"))

    def place(self, site: str, round_number: int) -> Placement | None:
        """A newcomer takes the model with the least loss on its training samples."""
        models = self.federation.models
        offered = {f"{OTHERS}.{group}": model for group, model in models.items()}
        answer = self.federation.ask(
            LOSSES, offered, self._check_losses, sites=[site], round_number=round_number, few=True
        )
        if site not in answer:
            return None
        return Placement(sorted(models)[int(answer[site][LOSSES]["values"].argmin())], 1.0)

    def _check_losses(self, answer: Extras) -> None:
        count = len(answer[LOSSES]["values"])
        if count != self._k:
            raise InvalidExtras(f"it sends {count} losses for {self._k} models")

    def _grouped(self, models: Mapping[int, State], home: Mapping[str, int], round_number: int) -> dict[str, int]:
        """Ask for the gradients at the model whose turn it is, and return the groups of those who have a feature."""
        turn = self._times % self._k
        criterion = {CRITERION: models[turn]}
        answers = self.federation.ask(GRADIENT, criterion, lambda _: None, round_number=round_number)
        self._times += 1
        for site, answer in answers.items():
            self._learn(site, turn, flat_parameters(answer[GRADIENT]))
        features = {site: self._features[site] for site in sorted(self._features) if site in home}
        if self._times >= self._settings.times:
            # This was the last time.
            self._features, self._visits = {}, {}
        if not features:
            return {}
        known = list(features)
        points = leading_coordinates(list(features.values()), self._k)
        labels = k_means(points, self._k, derive_seed(self.config.seed, "k-means", round_number=round_number))
        old = np.array([home[site] for site in known], np.int64)
        return {site: int(label) for site, label in zip(known, matched(labels, old, self._k), strict=True)}

    def _learn(self, site: str, turn: int, gradient: NDArray[np.float32]) -> None:
        """block ← (1 − β) block + β gradient, with β = 1 / visits."""
        feature = self._features.setdefault(site, np.zeros(self._k * len(gradient), np.float32))
        visits = self._visits.setdefault(site, [0] * self._k)
        visits[turn] += 1
        block = feature[turn * len(gradient) : (turn + 1) * len(gradient)]
        block += (gradient - block) / visits[turn]

    def state(self) -> Remembered:
        """The features and how often each site was heard; nothing once the groups are settled."""
        return {"times": self._times, "features": dict(self._features), "visits": dict(self._visits)}

    def restore(self, state: Remembered) -> None:
        """Remember what an earlier `state` said."""
        self._times = state["times"]
        # Copies: what a checkpoint gives may be read-only, and features are added to.
        self._features = {site: np.array(feature) for site, feature in state["features"].items()}
        self._visits = {site: list(visits) for site, visits in state["visits"].items()}


METHOD = Method(
    name="cfl-gp",
    title="CFL-GP",
    about=(
        "When K is known and everybody can be asked a few times. In `cfl_gp.times` rounds every site sends a "
        "gradient beside training. The criterion models take turns; in the published code it is always the first, "
        "the gradient is taken at another model than was asked for, and labels are matched by trying all K! "
        "permutations. The server holds sites × (K + 1) × parameters × 4 bytes, features and gradients; above 4 "
        "GiB it refuses the run, as FL+HC and FlexCFL do with two models per site."
    ),
    paper="Kim et al., Clustered Federated Learning via Gradient-based Partitioning, ICML 2024",
    summary="K groups by the leading directions of all sites' gradients, formed anew a few times; needs cluster.k",
    family="clustered while training",
    partition=OneGroup(),
    clustered=False,
    grouping=GradientPartition,
    settings_used=("cfl_gp.every", "cfl_gp.times"),
    needs_k=True,
)

METHODS = (METHOD,)
