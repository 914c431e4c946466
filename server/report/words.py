"""What came out, in plain words made from the numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from common.naming import beside_naming
from common.readable import duration, megabytes, percent
from server.groups import dominant
from server.report.beside_local import joining_words, local_run
from server.report.record import RunRecord, accuracies
from server.report.study import LEFT_OUT, SURE, UNSURE, Study
from server.report.training_figures import baseline
from server.report.wording import count, names


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
    beside = beside_naming(record.last.sites.values())
    if beside is None or beside.verdict == "better":
        return ""
    clearly = "no more" if beside.verdict == "no better" else "not clearly more"
    return (
        f", which is {clearly} than always naming each site's most frequent class would get ({percent(beside.naming)})"
    )


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
    if study is None or study.stability is None or record.compared is None:
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
    assert record.compared is not None
    labels = record.compared.labels
    together, apart = study.stability.kept_together(labels), study.stability.kept_apart(labels)
    weakest = min(value for value in (together, apart) if not math.isnan(value))
    word = "steady" if weakest >= SURE else "fairly steady" if weakest >= UNSURE else "shaky"
    parts = []
    if not math.isnan(together):
        parts.append(f"{_share(together)} of the pairs in one group stay together")
    if not math.isnan(apart):
        parts.append(f"{_share(apart)} of the pairs in two groups stay apart")
    return f"{word}: with {LEFT_OUT:.0%} of the sites left out {' and '.join(parts)}"
