"""Figures about the course of a run: who moved, and what it cost."""

from __future__ import annotations

import math
from typing import Any

from common.readable import duration, megabytes
from server.migration import Evidence
from server.report.figure import Figure, label, round_axis, site_axis
from server.report.palette import group_colour, group_symbol
from server.report.record import RunRecord

STAGES = {
    "start": "starting",
    "enrol": "getting to know the sites",
    "rehearse": "rehearsing",
    "agree": "agreeing on masks",
    "train": "training",
    "open": "opening the sums",
    "group": "grouping the sites",
    "confirm": "examining suspects",
    "solve": "training at the server",
    "evaluate": "testing",
    "personalise": "making models of their own",
    "keep": "handing out the models",
}
_STAGE_COLOURS = {
    "start": "@g8", "enrol": "@g0", "rehearse": "@g7", "agree": "@g2", "train": "@g1", "open": "@g4",
    "group": "@g6", "confirm": "@g3",
    "solve": "@g1", "evaluate": "@g2", "personalise": "@g5", "keep": "@g4",
}  # fmt: skip
_PATTERNS = {
    "start": "-", "enrol": "/", "rehearse": "|", "agree": "/", "train": "", "open": "x", "group": "|",
    "confirm": "x", "solve": "",
    "evaluate": ".", "personalise": "+", "keep": "\\",
}  # fmt: skip
_MOST_SHOWN = 60
_SHORTEST = 0.05  # seconds; below there is nothing to see


def moves_figure(record: RunRecord) -> Figure | None:
    """When sites changed groups; None if nobody did or was examined."""
    if not record.rulings or not record.rounds:
        return None
    first = (
        {}
        if record.grouping is None
        else dict(zip(record.grouping.sites, record.grouping.labels.tolist(), strict=True))
    )
    first |= {site: group for site, (_, group, _) in record.placed.items()}
    # Who moved comes first; the screen has no room for everybody.
    names = sorted({ruling.site for ruling in record.moves})
    names += sorted({ruling.site for ruling in record.rulings} - set(names))
    shown = names[:_MOST_SHOWN]
    end = record.rounds[-1].round_number
    row = {site: index for index, site in enumerate(shown)}
    traces: list[dict[str, Any]] = []
    segments: dict[int, tuple[list[float | None], list[float | None]]] = {}
    for site in shown:
        group, since = first.get(site, 0), 0.0
        for move in (one for one in record.moves if one.site == site):
            _segment(segments, group, row[site], since, move.round_number)
            group, since = move.target, move.round_number
        _segment(segments, group, row[site], since, end)
    for group, (xs, ys) in sorted(segments.items()):
        traces.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": f"in group {group}", "x": xs, "y": ys,
                "line": {"color": group_colour(group), "width": 4}, "hoverinfo": "skip",
                "marker": {"symbol": group_symbol(group), "size": 9},
            }
        )  # fmt: skip
    cleared = [one for one in record.rulings if one.stays and one.site in row]
    for name, rulings, symbol, size in (
        ("moved", [one for one in record.moves if one.site in row], "arrow-right", 15),
        ("examined, stays", cleared, "circle-open", 13),
    ):
        if rulings:
            traces.append(
                {
                    "type": "scatter", "mode": "markers+text" if name == "moved" else "markers", "name": name,
                    "x": [one.round_number for one in rulings], "y": [row[one.site] for one in rulings],
                    "text": [f"G{one.origin}→G{one.target}" for one in rulings], "textposition": "top center",
                    "textfont": {"size": 11, "color": "@ink"},
                    "customdata": [
                        [label(one.site), one.origin, one.target, label(evidence_words(one.evidence))]
                        for one in rulings
                    ],
                    "marker": {"symbol": symbol, "size": size, "color": "@ink", "line": {"width": 2}},
                    "hovertemplate": "<b>%{customdata[0]}</b>, round %{x}: group %{customdata[1]} → %{customdata[2]}"
                    "<br>%{customdata[3]}<extra></extra>",
                }
            )  # fmt: skip
    hidden = len(names) - len(shown)
    return Figure(
        "moves",
        "Who moved, and when",
        "One line per site that moved or was examined, from the first round to the last; its colour and shape are the "
        "group. An arrow is a move, a ring a site that was examined and stays."
        + (f" {hidden} more sites are in the table." if hidden else ""),
        f"{len(record.moves)} moves and {len(record.rulings) - len(record.moves)} acquittals in {end} rounds.",
        traces,
        {
            "xaxis": round_axis(0, end) | {"range": [-0.5, end + 0.7]},
            "yaxis": site_axis(shown, autorange=False) | {"range": [len(shown) - 0.3, -0.9]},
            "height": 190 + 34 * len(shown),
            "showlegend": True,
            "hovermode": "closest",
        },
        (
            "round", "site", "from", "to", "founded", "cosine_own", "cosine_other", "norm", "peer_norm", "usual_norm",
            "changed", "reason",
        ),
        [
            (
                one.round_number, one.site, one.origin, one.target, int(one.founded), one.evidence.cosine,
                max(one.evidence.cosines.values(), default=None),
                one.evidence.norm, one.evidence.peer_norm, one.evidence.usual_norm, one.evidence.changed,
                one.evidence.reason or None,
            )
            for one in record.rulings
        ],
    )  # fmt: skip


def _segment(
    segments: dict[int, tuple[list[float | None], list[float | None]]], group: int, row: int, start: float, end: float
) -> None:
    xs, ys = segments.setdefault(group, ([], []))
    xs += [start, end, None]
    ys += [row, row, None]


def evidence_words(evidence: Evidence) -> str:
    """Why a site moved or was suspected, in words."""
    parts = [evidence.reason] if evidence.reason else []
    if evidence.changed is not None:
        parts.append(f"its data have changed by {evidence.changed:.1f} standard deviations")
    if evidence.cosine is not None:
        others = [value for value in evidence.cosines.values() if math.isfinite(value)]
        best = f", {max(others):.2f} with the best other" if others else ""
        parts.append(f"cosine {evidence.cosine:.2f} with its own group{best}")
    if evidence.norm is not None:
        usual = evidence.peer_norm or evidence.usual_norm
        ratio = f", {evidence.norm / usual:.1f} × what is usual" if usual is not None and usual > 0 else ""
        parts.append(f"update of length {evidence.norm:.2g}{ratio}")
    if evidence.distances:
        near = min(evidence.distances, key=lambda group: evidence.distances[group])
        parts.append(f"fresh signature nearest to group {near}")
    return "; ".join(parts) or "no figures"


def cost_figures(record: RunRecord) -> list[Figure]:
    """Bytes per site and stage, seconds per stage."""
    figures = []
    if record.traffic:
        figures.append(_bytes(record))
    if max(record.seconds.values(), default=0.0) >= _SHORTEST:
        figures.append(_seconds(record))
    return figures


def _bytes(record: RunRecord) -> Figure:
    labels = record.labels
    sites = sorted(record.traffic, key=lambda site: (labels.get(site, 0), site))
    stages = [stage for stage in STAGES if any(stage in record.traffic[site] for site in sites)]
    traces = []
    for attribute, axis, words in (("sent", "y", "to the site"), ("received", "y2", "from the site")):
        for stage in stages:
            values = [
                getattr(record.traffic[site][stage], attribute) / 1e6 if stage in record.traffic[site] else 0.0
                for site in sites
            ]
            traces.append(
                {
                    "type": "bar", "name": STAGES[stage], "legendgroup": stage, "showlegend": attribute == "received",
                    "x": list(range(len(sites))), "y": values, "yaxis": axis,
                    "text": [label(site) for site in sites], "textposition": "none",
                    "marker": {
                        "color": _STAGE_COLOURS[stage], "line": {"width": 0},
                        "pattern": {"shape": _PATTERNS[stage], "size": 6, "solidity": 0.3, "fillmode": "overlay",
                                    "fgcolor": "@paper"},
                    },
                    "hovertemplate": f"<b>%{{text}}</b>, {STAGES[stage]}: %{{y:.3~g}} MB {words}<extra></extra>",
                }
            )  # fmt: skip
    total = sum(one.sent + one.received for stages_of in record.traffic.values() for one in stages_of.values())
    return Figure(
        "bytes",
        "Bytes per site and stage",
        "Above: megabytes sent to each site; below: received from it, over the whole run, stacked by stage. Only "
        "arrays are counted (models, signatures, statistics), without Flower's envelope and encryption.",
        f"{len(sites)} sites exchanged {megabytes(total)} in all.",
        traces,
        {
            "barmode": "stack",
            "bargap": 0.25 if len(sites) <= _MOST_SHOWN else 0,
            "grid": {"rows": 2, "columns": 1, "roworder": "top to bottom"},
            "xaxis": site_axis(sites, anchor="y2"),
            "yaxis": {"title": {"text": "MB to site"}, "domain": [0.56, 1], "automargin": True, "zeroline": False},
            "yaxis2": {"title": {"text": "MB from site"}, "domain": [0, 0.44], "automargin": True, "zeroline": False},
            "height": 460,
            "showlegend": True,
            "hovermode": "closest",
        },
        ("site", "stage", "bytes_to_site", "bytes_from_site", "replies", "seconds_at_site"),
        [
            (site, stage, one.sent, one.received, one.replies, one.seconds)
            for site in sites
            for stage, one in record.traffic[site].items()
        ],
    )


def _seconds(record: RunRecord) -> Figure:
    stages = [stage for stage in STAGES if record.seconds.get(stage, 0.0) >= _SHORTEST]
    at_sites = {stage: sum(one[stage].seconds for one in record.traffic.values() if stage in one) for stage in stages}
    return Figure(
        "seconds",
        "Seconds per stage",
        "How long the run spent in each stage by the clock at the server, waiting for the sites included.",
        ", ".join(f"{STAGES[stage]} {duration(record.seconds[stage])}" for stage in stages) + ".",
        [
            {
                "type": "bar", "orientation": "h",
                "y": [STAGES[stage] for stage in stages], "x": [record.seconds[stage] for stage in stages],
                "text": [duration(record.seconds[stage]) for stage in stages], "textposition": "auto",
                "insidetextfont": {"color": "@paper"}, "outsidetextfont": {"color": "@ink"},
                "customdata": [at_sites[stage] for stage in stages],
                "marker": {"color": [_STAGE_COLOURS[stage] for stage in stages]},
                "hovertemplate": "%{y}: %{x:.1f} s at the server; the sites worked %{customdata:.1f} s in all"
                "<extra></extra>",
            }
        ],
        {
            "xaxis": {"title": {"text": "seconds"}, "automargin": True, "zeroline": False},
            "yaxis": {"autorange": "reversed", "automargin": True, "showgrid": False},
            "height": 130 + 36 * len(stages),
        },
        ("stage", "seconds_at_server", "seconds_at_sites"),
        [(stage, record.seconds[stage], at_sites[stage]) for stage in stages],
    )  # fmt: skip
