"""Whether groups are worth it and how many, in plain words: for the page and for `coterie preview`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from common.naming import beside_naming
from common.readable import p_value
from server.clustering import Chance
from server.clustering.guarded import NO_STRUCTURE
from server.history.chance_words import shares_in_the_softmax
from server.history.events import RehearsalDone
from server.report.beside_local import joining_overall, local_run
from server.report.record import RunRecord
from server.report.study import LEFT_OUT, UNSURE, Study, reading
from server.report.wording import count, names


@dataclass(frozen=True)
class Verdict:
    """Whether groups are worth it, judged by the signatures alone."""

    answer: Literal["yes", "unsure", "no"]
    words: str


def verdict(record: RunRecord, study: Study | None, others: Sequence[RunRecord] = ()) -> Verdict | None:
    """Say whether groups are worth it at all; None where the run did not compare the sites.

    Groups that look well are worth nothing as long as their models do not beat what costs nothing.
    """
    judged = _by_distances(record, study)
    if judged is None or judged.answer != "yes" or not (why := _unbeaten(record, others)):
        return judged
    return Verdict("unsure", f"Not as the models are now: {why}. {judged.words}")


def _unbeaten(record: RunRecord, others: Sequence[RunRecord]) -> str:
    """Which baseline the run's models do not beat; empty: they do, or it is not known."""
    if record.last is None:
        return ""
    beside = beside_naming(record.last.sites.values())
    if beside is not None and beside.verdict != "better":
        return f"they are {beside.verdict} than always naming each site's most frequent class"
    local = local_run(record, others)
    total = None if local is None else joining_overall(record, local)
    if total is not None and total.verdict == "better alone":
        return "sites on their own (Local) do better"
    return ""


def _by_distances(record: RunRecord, study: Study | None) -> Verdict | None:
    """What the distances between the sites say of it."""
    if study is None or record.grouping is None or record.compared is None:
        return None
    sites, k = len(record.grouping.sites), len(np.unique(record.grouping.labels))
    if sites == 1:
        return Verdict("no", "There is one site only, so there is nothing to group.")
    chance = record.grouping.chance
    if chance is not None and not chance.ruled_out:
        return _no_more_than_chance(record, chance, k)
    if chance is not None and not chance.speaks_for_groups:
        return _of_shares_in_the_softmax(record, chance, k)
    if k == 1:
        chosen = (
            "in the rehearsal more groups were not clearly better"
            if record.rehearsal is not None
            else "a single group was chosen all the same"
        )
        why = (
            "the sites' data are alike, and the rule itself chose a single group"
            if chance is None
            else f"the sites differ by more than chance, {_how(chance)}, but {chosen}"
        )
        return Verdict("no", f"One group is as good: {why}. FedAvg (method = 'fedavg') does the same for less.")
    structure = reading(study.silhouette)
    measured = f"the mean silhouette of the {k} groups is {study.silhouette:.2f}, {structure} structure"
    if chance is not None:
        return _more_than_chance(record, study, chance, measured)
    if study.silhouette <= NO_STRUCTURE:
        return Verdict(
            "no",
            f"Hardly: {measured}. One group is likely to be as good; run FedAvg (method = 'fedavg') beside it before "
            "you rely on groups.",
        )
    if study.stability is None:
        return Verdict("unsure", f"Perhaps: {measured}, but with {sites} sites nobody can say how sure that is.")
    labels = record.compared.labels
    weakest = np.nanmin([study.stability.kept_together(labels), study.stability.kept_apart(labels)])
    if weakest < UNSURE:
        return Verdict(
            "unsure",
            f"Perhaps: {measured}, but the grouping is shaky when sites are left out. A fixed number of groups "
            "(cluster.k) or more data at the doubtful sites may help.",
        )
    return Verdict("yes", f"Yes, by the signatures: {measured}, and it holds when sites are left out.")


def _no_more_than_chance(record: RunRecord, chance: Chance, k: int) -> Verdict:
    tested = f"{p_value(chance.shares)} for the class shares, {p_value(chance.means)} for how the classes look"
    if k == 1:
        return Verdict(
            "no",
            f"No: the sites differ no more than chance gives sites of these sizes ({tested}), so one model learns from "
            "all of them. FedAvg (method = 'fedavg') does the same for less.",
        )
    if record.rehearsal is not None:
        return Verdict(
            "unsure",
            f"Perhaps: in the rehearsal {k} groups were clearly better than one, but the sites differ no more than "
            f"chance gives sites of these sizes ({tested}). Run FedAvg (method = 'fedavg') beside it before you rely "
            "on groups.",
        )
    return Verdict(
        "no",
        f"Hardly: the sites differ no more than chance gives sites of these sizes ({tested}), and the {k} groups part "
        "what belongs together. cluster.rule = 'guarded' with cluster.k = 0 would leave one group.",
    )


def _of_shares_in_the_softmax(record: RunRecord, chance: Chance, k: int) -> Verdict:
    """Sites differ in what every site's model knows already."""
    found = shares_in_the_softmax(chance)
    if k == 1:
        return Verdict("no", f"No: {found}: one group. FedAvg (method = 'fedavg') does the same for less.")
    if record.rehearsal is not None:
        return Verdict(
            "unsure",
            f"Perhaps: in the rehearsal {k} groups were clearly better than one, but {found}. Run FedAvg (method = "
            "'fedavg') beside it before you rely on groups.",
        )
    return Verdict(
        "unsure",
        f"Hardly: {found}, and one model for all learns from more. cluster.rule = 'guarded' with cluster.k = 0 would "
        "leave one group.",
    )


def _more_than_chance(record: RunRecord, study: Study, chance: Chance, measured: str) -> Verdict:
    """Chance is ruled out, so what is left to say is how clear the groups are, and what they are about."""
    assert record.compared is not None
    labels = record.compared.labels
    differ = f"the sites differ by more than chance, {_how(chance)}, and {measured}"
    hint = "" if chance.means_differ else _of_shares_alone(record)
    if study.silhouette <= NO_STRUCTURE:
        return Verdict("unsure", f"Perhaps: {differ}: the groups run into each other.{hint}")
    if study.stability is None:
        return Verdict(
            "unsure",
            f"Perhaps: {differ}. With {len(labels)} sites nobody can say whether the same would belong together if "
            f"others were there.{hint}",
        )
    weakest = np.nanmin([study.stability.kept_together(labels), study.stability.kept_apart(labels)])
    if weakest < UNSURE:
        return Verdict(
            "unsure",
            f"Perhaps: {differ}, but who belongs together changes when sites are left out. A fixed number of groups "
            f"(cluster.k) or more data at the doubtful sites may help.{hint}",
        )
    if record.rehearsal is not None:
        return Verdict("yes", f"Yes, by rehearsal: {differ}; it holds when sites are left out.{hint}")
    if hint:
        return Verdict("unsure", f"Perhaps: {differ}, which holds when sites are left out.{hint}")
    return Verdict("yes", f"Yes, by the signatures: {differ}; it holds when sites are left out.")


def _of_shares_alone(record: RunRecord) -> str:
    """What else helps where sites differ in their class shares only, and whether groups help beyond that."""
    assert record.grouping is not None
    if record.grouping.chance is not None and not record.grouping.chance.shares_count:
        return (
            " Between some of them no class is shared, so nobody knows whether they look alike; cluster.choice = "
            "'rehearsal' measures whether one model does better."
        )
    if record.rehearsal is not None:
        return (
            " It is class shares alone, which the heads of the rehearsal took into account: groups were clearly better "
            "beyond that."
        )
    return (
        " It is class shares alone: train.prior = 'site' takes them into account without parting anybody, and "
        "cluster.choice = 'rehearsal' measures whether groups help beyond that."
    )


def _how(chance: Chance) -> str:
    """In what sites differ."""
    shares, means = f"class shares ({p_value(chance.shares)})", f"how the classes look ({p_value(chance.means)})"
    if chance.shares_differ and chance.means_differ:
        return f"in their {shares} and in {means}"
    return f"in their {shares}" if chance.shares_differ else f"in {means}"


def choice_of_k(record: RunRecord, study: Study) -> str:
    """What K was chosen, and how often the same comes out when sites are left out."""
    assert record.grouping is not None
    k = len(np.unique(record.grouping.labels))
    if record.rehearsal is not None:
        return _by_rehearsal(record.rehearsal)
    if study.stability is None:
        return f"{count(k, 'group')}. {_too_few(record)}"
    same = study.stability.group_counts.get(k, 0)
    others = [f"{other} ({times}×)" for other, times in study.stability.group_counts.items() if other != k]
    rest = f"; otherwise {', '.join(others)}" if others else ""
    if 2 * same < study.stability.draws:
        rest += ". So their number is less sure than who belongs together; cluster.k fixes it"
    return (
        f"{count(k, 'group')}. With {LEFT_OUT:.0%} of the sites left out, {same} of {study.stability.draws} draws end "
        f"with as many{rest}."
    )


def _by_rehearsal(rehearsal: RehearsalDone) -> str:
    """What the rehearsal found, and whether the silhouette agrees."""
    outcome = rehearsal.outcome
    losses = dict(zip(outcome.ks, outcome.losses, strict=True))
    best = min(losses, key=lambda k: (losses[k], k))
    text = f"{count(outcome.k, 'group')}, by rehearsal: log loss {losses[outcome.k]:.3f}"
    if outcome.k != 1:
        text += f", {losses[1]:.3f} with one group"
    if best != outcome.k:
        text += f"; {best} would have {losses[best]:.3f}, which is not clearly better"
    if rehearsal.by_silhouette == outcome.k:
        return f"{text}. The silhouette chooses the same."
    silhouette = losses.get(rehearsal.by_silhouette)
    beside = "" if silhouette is None else f", with a log loss of {silhouette:.3f}"
    rest = f"The silhouette would choose {rehearsal.by_silhouette}{beside}: trust the rehearsal, which measured it."
    return f"{text}. {rest}"


def _too_few(record: RunRecord) -> str:
    """Why nothing can be said of how sure a grouping is."""
    assert record.grouping is not None
    few = count(len(record.grouping.sites), "site")
    return f"With {few} that cannot be tested: leaving one out would leave too little to group again."


def doubtful(record: RunRecord, study: Study) -> str:
    """Which sites are hard to place."""
    assert record.compared is not None
    if study.stability is None:
        return _too_few(record)
    hard = [record.compared.sites[i] for i in np.flatnonzero(study.hard)]
    return f"Hard to place: {names(hard)}." if hard else "No site is hard to place."
