"""What came out, in plain words made from the numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from common.readable import duration, megabytes, percent
from server.clustering import Chance
from server.clustering.guarded import NO_STRUCTURE
from server.groups import dominant
from server.history.events import RehearsalDone
from server.report.beside_local import joining_words, local_run
from server.report.record import RunRecord, accuracies
from server.report.study import LEFT_OUT, Study, reading
from server.report.training_figures import baseline, naming_accuracy
from server.report.wording import count, names

_SURE, _UNSURE = 0.9, 0.75
# Accuracies that differ by fewer standard errors than this cannot be told apart.
_STANDARD_ERRORS = 2.0


@dataclass(frozen=True)
class Verdict:
    """Whether groups are worth it, judged by the signatures alone."""

    answer: Literal["yes", "unsure", "no"]
    words: str


def sentences(record: RunRecord, study: Study | None, others: Sequence[RunRecord]) -> list[str]:
    """What was run, what came out, whether joining pays if a Local run can tell, and how sure the grouping is."""
    local = local_run(record, others)
    pays = [joining_words(record, local)] if local is not None and record.last is not None else []
    decide = [dominance] if (dominance := who_decides(record)) else []
    return [_what_was_run(record), _what_came_out(record, others), *pays, *decide, _how_sure(record, study)]


def who_decides(record: RunRecord) -> str:
    """Name the sites that have more than half of their group's samples; empty: there are none."""
    if record.grouping is None:
        return ""
    sizes: dict[int, dict[str, int]] = {}
    for site, group in zip(record.grouping.sites, record.grouping.labels.tolist(), strict=True):
        if site in record.cards:
            sizes.setdefault(group, {})[site] = record.cards[site].train_samples
    found = [(group, *one) for group, of in sorted(sizes.items()) if (one := dominant(of)) is not None]
    if not found:
        return ""
    named = "; ".join(f"{site} has {percent(share)} of the samples of group {group}" for group, site, share in found)
    return f"{named}: as long as updates count by samples, that site decides what its group learns (aggregate.cap)."


def _what_was_run(record: RunRecord) -> str:
    samples = sum(card.train_samples for card in record.cards.values())
    sites = (
        f"{count(len(record.cards), 'site')} with {samples:,} training samples of {count(len(record.classes), 'class')}"
    )
    took = f" in {duration(sum(record.seconds.values()))}" if record.seconds else ""
    if record.grouping is None:
        enrolled = count(len(record.cards), "site")
        return f"{record.title} {_fate(record)} before the sites were grouped; {enrolled} enrolled."
    groups = record.groups
    sizes = sorted(len(members) for members in groups.values())
    spread = f"of {sizes[0]}" if sizes[0] == sizes[-1] else f"of {sizes[0]} to {sizes[-1]}"
    into = (
        "all train one model"
        if len(groups) == 1
        else "each train a model of their own"
        if len(groups) == len(record.labels)
        else f"form {len(groups)} groups {spread} sites, one model each"
    )
    done = record.trained
    if not record.planned_rounds:
        return f"{record.title} looked at {sites} and trained nothing yet: they would {into}."
    return (
        f"{record.title} ran on {sites}: they {into}; the run {_fate(record)} after {done} of "
        f"{count(record.planned_rounds, 'round')}{took}."
    )


def _fate(record: RunRecord) -> str:
    return {
        "finished": "finished",
        "interrupted": "was interrupted",
        "failed": "failed",
        "running": "is still going on, or was cut off,",
    }.get(record.outcome, record.outcome)


def _what_came_out(record: RunRecord, others: Sequence[RunRecord]) -> str:
    last = record.last
    if last is None or not math.isfinite(last.overall.accuracy):
        if record.planned_rounds:
            return "No round has been tested yet, so nothing can be said about the models."
        return "What the models would achieve is not known: nothing was trained."
    text = (
        f"The models classify {percent(last.overall.accuracy)} of all test images correctly, "
        f"{percent(last.mean_site_accuracy)} at the average site and "
        f"{percent(last.worst_tenth_accuracy)} at the worst tenth of the sites{_beside_naming(record)}"
    )
    fedavg = baseline(others) if record.method != "fedavg" else None
    if fedavg is None or fedavg.last is None:
        return text + "."
    worse = worse_sites(record, fedavg)
    common = len(last.sites.keys() & fedavg.last.sites.keys())
    named = f": {names(worse)}" if worse else ""
    verb, where = ("does", "its group") if len(worse) == 1 else ("do", "groups")
    return (
        f"{text}; one model for all (FedAvg) gets {percent(fedavg.last.overall.accuracy)}, and "
        f"{len(worse) or 'none'} of {count(common, 'site')} {verb} worse in {where} than under FedAvg{named}."
    )


def _beside_naming(record: RunRecord) -> str:
    """A warning when the models have learnt no more than which class is frequent."""
    assert record.last is not None
    naming, tested = naming_accuracy(record), sum(one.count for one in record.last.sites.values())
    if naming is None or not tested:
        return ""
    error = math.sqrt(max(naming * (1 - naming), 0.0) / tested)
    if record.last.overall.accuracy > naming + _STANDARD_ERRORS * error:
        return ""
    whose = "each group's" if len(record.groups) > 1 else "the"
    about = percent(naming)
    return f", which is not clearly more than always naming {whose} most frequent class would get (about {about})"


def worse_sites(record: RunRecord, fedavg: RunRecord) -> list[str]:
    """Sites whose final accuracy is lower than under FedAvg, the largest loss first."""
    if record.last is None or fedavg.last is None:
        return []
    mine, beside = accuracies(record.last.sites), accuracies(fedavg.last.sites)
    losses = {site: beside[site] - mine[site] for site in mine.keys() & beside.keys()}
    return sorted((site for site, loss in losses.items() if loss > 0), key=lambda site: (-losses[site], site))


def _how_sure(record: RunRecord, study: Study | None) -> str:
    troubled = {incident.who for incident in record.incidents}
    trouble = (
        f"{count(len(record.incidents), 'incident')} at {count(len(troubled), 'party', 'parties')}"
        if record.incidents
        else "nothing went wrong"
    )
    moved = f", {count(len(record.moves), 'move')} between groups" if record.rulings else ""
    traffic = sum(one.sent + one.received for stages in record.traffic.values() for one in stages.values())
    cost = f", {megabytes(traffic)} were exchanged" if traffic else ""
    if study is None or study.stability is None or record.grouping is None:
        why = "has too few sites to test it" if study is not None else "does not compare the sites"
        return f"How sure the grouping is cannot be said, because this run {why}; {trouble}{moved}{cost}."
    return f"The grouping is {_steadiness(record, study)}; {trouble}{moved}{cost}."


def _share(value: float) -> str:
    """A share that is not rounded to all or nothing."""
    if 0.995 <= value < 1:
        return "over 99%"
    return "under 1%" if 0 < value < 0.005 else f"{value:.0%}"


def _steadiness(record: RunRecord, study: Study) -> str:
    assert study.stability is not None
    assert record.grouping is not None
    labels = record.grouping.labels
    together, apart = study.stability.kept_together(labels), study.stability.kept_apart(labels)
    weakest = min(value for value in (together, apart) if not math.isnan(value))
    word = "steady" if weakest >= _SURE else "fairly steady" if weakest >= _UNSURE else "shaky"
    parts = []
    if not math.isnan(together):
        parts.append(f"{_share(together)} of the pairs in one group stay together")
    if not math.isnan(apart):
        parts.append(f"{_share(apart)} of the pairs in two groups stay apart")
    return f"{word}: with {LEFT_OUT:.0%} of the sites left out {' and '.join(parts)}"


def verdict(record: RunRecord, study: Study | None) -> Verdict | None:
    """Say whether groups are worth it at all; None where the run did not compare the sites."""
    if study is None or record.grouping is None:
        return None
    sites, k = len(record.grouping.sites), len(np.unique(record.grouping.labels))
    if sites == 1:
        return Verdict("no", "There is one site only, so there is nothing to group.")
    chance = record.grouping.chance
    if chance is not None and not chance.ruled_out:
        return _no_more_than_chance(record, chance, k)
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
    labels = record.grouping.labels
    weakest = np.nanmin([study.stability.kept_together(labels), study.stability.kept_apart(labels)])
    if weakest < _UNSURE:
        return Verdict(
            "unsure",
            f"Perhaps: {measured}, but the grouping is shaky when sites are left out. A fixed number of groups "
            "(cluster.k) or more data at the doubtful sites may help.",
        )
    return Verdict("yes", f"Yes, by the signatures: {measured}, and it holds when sites are left out.")


def _no_more_than_chance(record: RunRecord, chance: Chance, k: int) -> Verdict:
    tested = f"{_p(chance.shares)} for the class shares, {_p(chance.means)} for how the classes look"
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


def _more_than_chance(record: RunRecord, study: Study, chance: Chance, measured: str) -> Verdict:
    """Chance is ruled out, so what is left to say is how clear the groups are, and what they are about."""
    assert record.grouping is not None
    labels = record.grouping.labels
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
    if weakest < _UNSURE:
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
    shares, means = f"class shares ({_p(chance.shares)})", f"how the classes look ({_p(chance.means)})"
    if chance.shares_differ and chance.means_differ:
        return f"in their {shares} and in {means}"
    return f"in their {shares}" if chance.shares_differ else f"in {means}"


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}" if value < 0.1 else f"p = {value:.2f}"


def choice_of_k(record: RunRecord, study: Study) -> str:
    """What K was chosen, and how often the same comes out when sites are left out."""
    assert record.grouping is not None
    k = len(np.unique(record.grouping.labels))
    if record.rehearsal is not None:
        return _by_rehearsal(record.rehearsal)
    if study.stability is None:
        return f"{count(k, 'group')}."
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


def doubtful(record: RunRecord, study: Study) -> str:
    """Which sites are hard to place."""
    assert record.grouping is not None
    hard = [record.grouping.sites[i] for i in np.flatnonzero(study.hard)]
    return f"Hard to place: {names(hard)}." if hard else "No site is hard to place."
