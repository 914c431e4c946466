"""Figures about how well the models do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from common.naming import beside_naming
from common.readable import duration, percent
from server.report.figure import MOST_LABELS, Figure, label, percent_axis, round_axis, site_axis
from server.report.palette import DASHES, group_colour, group_dash, group_symbol
from server.report.record import RunRecord, accuracies, figures_of


def training_figures(record: RunRecord, others: Sequence[RunRecord]) -> list[Figure]:
    """All figures that a run's rounds have data for."""
    if not record.rounds:
        return []
    figures = [_overall(record, others)]
    if any(one.round_number in record.clock for one in record.rounds):
        figures.append(_over_time(record, others))
    if len({group for one in record.rounds for group in one.groups}) > 1:
        figures.append(_per_group(record))
    if record.last is not None and record.last.sites:
        figures.append(_per_site(record, baseline(others)))
    return figures


def baseline(others: Sequence[RunRecord]) -> RunRecord | None:
    """The run that a method with groups is measured against: FedAvg, if it is there and has a result."""
    return next((other for other in others if other.method == "fedavg" and other.last is not None), None)


def worst_sites(accuracies: dict[str, float]) -> list[str]:
    """The tenth of the sites that do worst, the worst first."""
    ascending = sorted((value, site) for site, value in accuracies.items() if math.isfinite(value))
    return [site for _, site in ascending[: -(-len(ascending) // 10)]]


def _overall(record: RunRecord, others: Sequence[RunRecord]) -> Figure:
    rounds = [one.round_number for one in record.rounds]
    lines = {
        "all test samples": [one.overall.accuracy for one in record.rounds],
        "mean of sites": [one.mean_site_accuracy for one in record.rounds],
        "worst tenth of sites": [one.worst_tenth_accuracy for one in record.rounds],
    }
    for words, besides in (
        ("shared model", [r.shared for r in record.rounds]),
        ("after own training", [r.held for r in record.rounds]),
    ):
        if any(besides):
            lines[f"{words}, all test samples"] = [math.nan if one is None else one.accuracy for one in besides]
    symbols = ("circle", "square", "diamond", "triangle-up", "cross")
    colours = ("@accent", "@g2", "@g1", "@g3", "@g4")
    mark = "lines+markers" if len(rounds) <= 40 else "lines"
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter", "mode": mark, "name": name, "x": rounds, "y": values,
            "line": {"color": colour, "width": 2.5, "dash": dash}, "marker": {"symbol": symbol, "size": 7},
            "hovertemplate": f"{name}, round %{{x}}: %{{y:.1%}}<extra></extra>",
        }
        for (name, values), symbol, colour, dash in zip(lines.items(), symbols, colours, DASHES, strict=False)
    ]  # fmt: skip
    for number, other in enumerate(run for run in others if run.rounds):
        traces.append(
            {
                "type": "scatter", "mode": mark,
                "name": f"{label(other.title)} ({label(other.name)}), all test samples",
                "x": [one.round_number for one in other.rounds], "y": [one.overall.accuracy for one in other.rounds],
                "line": {"color": "@line", "width": 2, "dash": DASHES[(number + 3) % len(DASHES)]},
                "marker": {"symbol": ("x", "triangle-up", "star", "cross")[number % 4], "size": 7},
                "hovertemplate": f"{label(other.title)}, round %{{x}}: %{{y:.1%}}<extra></extra>",
            }
        )  # fmt: skip
    rows: list[tuple[str | int | float | None, ...]] = [
        (run.name, run.method, one.round_number, *figures_of(one), one.train_loss)
        for run in (record, *others)
        for one in run.rounds
    ]  # fmt: skip
    last = record.rounds[-1]
    beside = beside_naming(last.sites.values())
    if beside is not None:
        traces.append(
            {
                "type": "scatter", "mode": "lines", "name": "naming each site's most frequent class",
                "x": [rounds[0], rounds[-1]], "y": [beside.naming, beside.naming], "hoverinfo": "skip",
                "line": {"color": "@muted", "width": 1.5, "dash": "dot"},
            }
        )  # fmt: skip
    accuracy = percent(last.overall.accuracy, unknown="not known")
    return Figure(
        "training",
        "Accuracy over the rounds",
        "The share of test images that are classified correctly, after each round. A low line of the worst tenth under "
        "a high overall line means that a few sites are served badly. Models that stay at the thin dotted line have "
        "learnt no more than which class is frequent at their site.",
        f"After round {last.round_number} the accuracy over all test samples is {accuracy}.",
        traces,
        {
            "xaxis": round_axis(0, max(run.rounds[-1].round_number for run in (record, *others) if run.rounds)),
            "yaxis": percent_axis(title={"text": "accuracy"}),
            "height": 420,
            "showlegend": True,
            "hovermode": "closest",
        },
        ("run", "method", "round", "accuracy", "macro_f1", "auc", "mean_of_sites", "worst_tenth", "train_loss"),
        rows,
    )


def _over_time(record: RunRecord, others: Sequence[RunRecord]) -> Figure:
    """Of the runs that have a virtual clock."""
    runs = [run for run in (record, *others) if any(one.round_number in run.clock for one in run.rounds)]
    traces: list[dict[str, Any]] = []
    rows: list[tuple[str | int | float | None, ...]] = []
    for number, run in enumerate(runs):
        tested = [one for one in run.rounds if one.round_number in run.clock]
        name = f"{label(run.title)} ({label(run.name)})"
        rows += [(run.name, run.method, one.round_number, run.clock[one.round_number], one.overall.accuracy,
                  one.mean_site_accuracy) for one in tested]  # fmt: skip
        traces.append(
            {
                "type": "scatter", "mode": "lines+markers" if len(tested) <= 40 else "lines", "name": name,
                "x": [run.clock[one.round_number] for one in tested], "y": [one.overall.accuracy for one in tested],
                "line": {"color": "@accent" if run is record else "@line", "width": 2.5 if run is record else 2,
                         "dash": DASHES[number % len(DASHES)]},
                "marker": {"symbol": ("circle", "x", "triangle-up", "star", "cross")[number % 5], "size": 7},
                "hovertemplate": f"{name}, %{{x:.3~g}} s: %{{y:.1%}}<extra></extra>",
            }
        )  # fmt: skip
    last = max(record.clock)
    return Figure(
        "clock",
        "Accuracy over virtual time",
        "The same accuracy, by the time at which each round closed on the simulation's clock (simulate.clock): how "
        "long the sites would have taken. A round that does not wait for its slowest sites is short.",
        f"Round {last} closed after {duration(record.clock[last])} of virtual time.",
        traces,
        {
            "xaxis": {"title": {"text": "virtual seconds"}, "automargin": True, "zeroline": False},
            "yaxis": percent_axis(title={"text": "accuracy"}),
            "height": 420,
            "showlegend": True,
            "hovermode": "closest",
        },
        ("run", "method", "round", "virtual_seconds", "accuracy", "mean_of_sites"),
        rows,
    )


def _per_group(record: RunRecord) -> Figure:
    groups = sorted({group for one in record.rounds for group in one.groups})
    sizes = {group: len(sites) for group, sites in record.groups.items()}
    traces = []
    for group in groups:
        points = [(one.round_number, one.groups[group].accuracy) for one in record.rounds if group in one.groups]
        size = sizes.get(group, 0)
        words = f"{size} site{'s' if size != 1 else ''}" if size else "retired"
        traces.append(
            {
                "type": "scatter", "mode": "lines+markers" if len(record.rounds) <= 40 else "lines",
                "name": f"group {group} ({words})",
                "x": [number for number, _ in points], "y": [value for _, value in points],
                "line": {"color": group_colour(group), "width": 2, "dash": group_dash(group)},
                "marker": {"symbol": group_symbol(group), "size": 7},
                "hovertemplate": f"group {group}, round %{{x}}: %{{y:.1%}}<extra></extra>",
            }
        )  # fmt: skip
    return Figure(
        "groups",
        "Accuracy of each group",
        "One line per group, over the test images of its members alone. Groups have different images to classify, so "
        "compare a line with its own past rather than with the others.",
        f"Accuracy over {len(record.rounds)} rounds of {len(groups)} groups.",
        traces,
        {
            "xaxis": round_axis(0, record.rounds[-1].round_number),
            "yaxis": percent_axis(title={"text": "accuracy"}),
            "height": 420 + 14 * max(0, len(groups) - 8),
            "showlegend": True,
            "hovermode": "closest",
        },
        ("round", "group", "accuracy"),
        [(one.round_number, group, value.accuracy) for one in record.rounds for group, value in one.groups.items()],
    )


def _per_site(record: RunRecord, fedavg: RunRecord | None) -> Figure:
    assert record.last is not None
    last, labels = record.last, record.labels
    mine = accuracies(last.sites)
    beside = accuracies(fedavg.last.sites) if fedavg is not None and fedavg.last is not None else {}
    sites = sorted(last.sites, key=lambda site: (labels.get(site, 0), -_finite(mine[site]), site))
    place = {site: index for index, site in enumerate(sites)}
    worst = set(worst_sites(mine))
    traces: list[dict[str, Any]] = []
    if beside:
        xs: list[float | None] = []
        ys: list[float | None] = []
        for site in sites:
            if site in beside:
                xs += [place[site], place[site], None]
                ys += [beside[site], mine[site], None]
        matched = [site for site in sites if site in beside]
        traces.append({"type": "scatter", "mode": "lines", "x": xs, "y": ys, "hoverinfo": "skip", "showlegend": False,
                       "line": {"color": "@line", "width": 1}})  # fmt: skip
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": "the same site under FedAvg",
                "x": [place[site] for site in matched], "y": [beside[site] for site in matched],
                "text": [label(site) for site in matched],
                "marker": {"symbol": "line-ew-open", "size": 12, "color": "@ink", "line": {"width": 2}},
                "hovertemplate": "<b>%{text}</b> under FedAvg: %{y:.1%}<extra></extra>",
            }
        )  # fmt: skip
    for group in sorted({labels.get(site, 0) for site in sites}):
        members = [site for site in sites if labels.get(site, 0) == group]
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": f"group {group}",
                "x": [place[site] for site in members], "y": [mine[site] for site in members],
                "customdata": [[label(site), last.sites[site].count] for site in members],
                "marker": {"color": group_colour(group), "symbol": group_symbol(group), "size": 10},
                "hovertemplate": f"<b>%{{customdata[0]}}</b>, group {group}: %{{y:.1%}} of %{{customdata[1]}} test "
                "images<extra></extra>",
            }
        )  # fmt: skip
    low = [site for site in sites if site in worst]
    traces.append(
        {
            "type": "scatter", "mode": "markers", "name": "worst tenth", "hoverinfo": "skip",
            "x": [place[site] for site in low], "y": [mine[site] for site in low],
            "marker": {"symbol": "circle-open", "size": 19, "color": "@bad", "line": {"width": 2.5}},
        }
    )  # fmt: skip
    extra = (
        " The dash is the same site under FedAvg: a mark below its dash is a site that is worse off in its group."
        if beside
        else ""
    )
    return Figure(
        "sites",
        "Accuracy of each site",
        "One mark per site, ordered by group, after the last round, on the site's own test images; red rings are the "
        "worst tenth. Sites with few test images jump in large steps." + extra,
        f"Final accuracy of {len(sites)} sites; the worst tenth is {', '.join(low[:10])}.",
        traces,
        {
            "xaxis": site_axis(sites, title={"text": "site" if len(sites) <= MOST_LABELS else "sites, by group"}),
            "yaxis": percent_axis(title={"text": "accuracy"}),
            "height": 440,
            "showlegend": True,
            "hovermode": "closest",
        },
        ("site", "group", "test_samples", "accuracy", "worst_tenth", "accuracy_under_fedavg"),
        [
            (site, labels.get(site), last.sites[site].count, mine[site], int(site in worst), beside.get(site))
            for site in sites
        ],
    )


def _finite(value: float) -> float:
    return value if math.isfinite(value) else -1.0
