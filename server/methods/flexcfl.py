"""FlexCFL: sites grouped by the directions of their first updates; who has shifted is placed anew."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from common.config import Config
from common.extras import InvalidExtras
from common.methods.flexcfl import COLD_START, LABELS, SHIFT, START
from common.randomness import derive_seed, generator
from common.state import Extras, State, flat_parameters
from server.aggregation import Aggregation, Screen
from server.clustering import cosine_distance, decomposed_cosines, k_means
from server.methods.memory import check_answers
from server.methods.method import Method
from server.methods.partition import OneGroup
from server.methods.training import Contribution, Federation, Move, Opening, Placement, Remembered, TrainingRule
from server.migration import Evidence

Vector = NDArray[np.float32]

# As many sites per group make the groups; the others are placed.
_PER_GROUP = 20
_REASON = "its labels have shifted, and its first update is now nearest to the group's"


class GroupColdStart(TrainingRule):
    """Sites train the common start briefly; their changes are grouped by decomposed cosine similarity (FlexCFL).

    A group starts from the mean of its members' models, each counting once, or from what `aggregate.rule` puts in its
    place, and remembers by how much that differs from the common start. Whoever was not among the sites that made the
    groups, comes later, or says that its labels have shifted, trains the common start, too, and goes to the group whose
    first change is nearest in direction.
    """

    def __init__(self, config: Config, federation: Federation) -> None:
        super().__init__(config, federation)
        self._firsts: dict[int, Vector] = {}
        self._start: State = {}
        # Samples of each class at a site's last cold start.
        self._labels: dict[str, NDArray[np.int64]] = {}
        # Who is to be placed: it has shifted, or did not answer.
        self._waiting: set[str] = set()

    def open(self) -> Opening:
        """Make the groups."""
        k, everybody = self.config.cluster.k, [member.name for member in self.federation.members]
        rng = generator(self.config.seed, "cold start")
        drawn = sorted(rng.choice(everybody, min(_PER_GROUP * k, len(everybody)), replace=False).tolist())
        # A model, and its change.
        start = self.federation.draw(0)
        each = sum(array.nbytes for array in start.values()) + flat_parameters(start).nbytes
        check_answers("flexcfl", len(everybody), each, "a smaller network")
        models = self._asked(drawn, 0)
        if not models:
            self._waiting = set(everybody)
            return Opening({0: start}, {})
        changes = {site: self._change(model) for site, model in models.items()}
        cosines = decomposed_cosines(list(changes.values()), k)
        labels = k_means(cosines, k, derive_seed(self.config.seed, "k-means"))
        groups = {site: int(label) for site, label in zip(changes, labels, strict=True)}
        starts = {}
        for group in sorted(set(groups.values())):
            starts[group] = self._mean([models[site] for site, own in groups.items() if own == group])
            self._firsts[group] = self._change(starts[group])
        others = sorted(set(everybody) - set(drawn))
        late = self._asked(others, 0) if others else {}
        groups |= {site: self._nearest(self._change(model))[0] for site, model in late.items()}
        self._waiting = set(everybody) - groups.keys()
        return Opening(starts, groups)

    def place(self, site: str, round_number: int) -> Placement | None:
        """A newcomer trains the common start, not a trained model."""
        models = self._asked([site], round_number, few=True)
        if site not in models or not self._firsts:
            self._waiting.add(site)
            return None
        return Placement(*self._nearest(self._change(models[site])))

    def for_site(self, site: str, *, trains: bool) -> Extras:
        """The labels that a site had when it was placed: what it compares itself with."""
        if not trains:
            return {}
        counts = self._labels.get(site)
        if counts is None:
            card = next(member.card for member in self.federation.members if member.name == site)
            counts = np.array(card.class_counts, np.int64)
        return {LABELS: {"counts": counts}}

    def observe(self, contribution: Contribution) -> None:
        """Note who has shifted."""
        if int(contribution.extras[SHIFT]["shifted"]):
            self._waiting.add(contribution.site)

    def review(self, round_number: int, groups: Mapping[int, Sequence[str]]) -> Iterator[Move]:
        """Place those who have shifted, perhaps where they were."""
        home = {site: group for group, sites in groups.items() for site in sites}
        if not self._firsts or not (asked := sorted(self._waiting & home.keys())):
            return
        for site, model in self._asked(asked, round_number, few=True).items():
            self._waiting.discard(site)
            group, _ = self._nearest(self._change(model))
            yield Move((site,), home[site], group, Evidence(reason=_REASON))

    def _asked(self, sites: Collection[str], round_number: int, *, few: bool = False) -> dict[str, State]:
        """The models that sites make of the common start; their labels of now are noted."""
        self._start = self._start or self.federation.draw(0)
        start, screen = {START: self._start}, Screen(self._start)

        def check(answer: Extras) -> None:
            self._check_labels(answer)
            # As any update; every model counts once, whatever it was made from.
            screen.check(answer[COLD_START], 1)

        answers = self.federation.ask(COLD_START, start, check, sites=sites, round_number=round_number, few=few)
        self._labels |= {site: answer[LABELS]["counts"] for site, answer in answers.items()}
        return {site: answer[COLD_START] for site, answer in answers.items()}

    def _check_labels(self, answer: Extras) -> None:
        classes = len(self.federation.members[0].card.class_counts)
        if len(answer[LABELS]["counts"]) != classes:
            raise InvalidExtras(f"it counts {len(answer[LABELS]['counts'])} classes of {classes}")

    def _mean(self, models: Sequence[State]) -> State:
        """The mean of models made from the common start, by the run's rule."""
        average = Aggregation(self.config.aggregate).accumulator(0, self._start, len(models))
        for model in models:
            average.add(model, 1)
        return average.result()

    def _change(self, model: State) -> Vector:
        change: Vector = flat_parameters(model) - flat_parameters(self._start)
        return change

    def _nearest(self, change: Vector) -> tuple[int, float]:
        """argmin_j (1 − cos(Δ, Δ̄_j)) / 2, and the margin to the runner-up in [0, 1]."""
        groups = sorted(self._firsts)
        apart = cosine_distance([*(self._firsts[group] for group in groups), change])[-1, :-1] / 2
        order = np.argsort(apart, kind="stable")
        second = apart[order[1]] if len(groups) > 1 else 0.0
        margin = 1.0 - apart[order[0]] / second if second > 0 else float(len(groups) == 1)
        return groups[int(order[0])], float(margin)

    def state(self) -> Remembered:
        """The first change of each group, the sites' labels, and who is to be placed."""
        return {
            "firsts": {str(group): first for group, first in self._firsts.items()},
            "labels": self._labels,
            "waiting": sorted(self._waiting),
        }

    def restore(self, state: Remembered) -> None:
        """Remember what an earlier `state` said."""
        self._firsts = {int(group): first for group, first in state["firsts"].items()}
        self._labels = dict(state["labels"])
        self._waiting = set(state["waiting"])


METHOD = Method(
    name="flexcfl",
    title="FlexCFL",
    about=(
        "When label shares shift and K is known. Before training, and for who shifted, a model down and a change "
        "up; the server keeps the first change of each group and the label counts. Shifted is a site whose label "
        "shares changed by more than `flexcfl.shift` (total variation); the published test compares counts blind "
        "to their classes and never fires where all classes are equally large, and who was grouped anew trains in "
        "two groups. No aggregation between groups (η_G = 0). A group starts from its members' first models, each "
        "counting once, put together by `aggregate.rule`."
    ),
    paper="Duan et al., Flexible Clustered Federated Learning for Client-Level Data Distribution Shift, TPDS 2022",
    summary="group sites by the directions of their first updates; who has new labels is placed anew; needs cluster.k",
    family="clustered before training",
    partition=OneGroup(),
    clustered=False,
    rule="flexcfl",
    training=GroupColdStart,
    settings_used=("flexcfl.steps", "flexcfl.shift"),
    needs_k=True,
)

METHODS = (METHOD,)
