"""Does joining pay? Every site beside itself on its own (Local), and how sure the difference is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.intervals import Verdict, judged, newcombe
from common.metrics import Metrics
from common.readable import percent
from server.report.figure import Figure, label, site_axis
from server.report.record import RunRecord
from server.report.wording import count, names

_MARKS: dict[Verdict, tuple[str, str]] = {
    "better together": ("@good", "triangle-up"),
    "cannot tell": ("@line", "circle"),
    "better alone": ("@bad", "triangle-down"),
}
CONSERVATIVE = (
    "Intervals are 95 % and Newcombe's for two independent shares: on the safe side, because both models were tested "
    "on the same samples and how often they err together is not known."
)


@dataclass(frozen=True)
class Joining:
    """One site, or all of them: accuracy together and alone, and the interval of the difference."""

    site: str
    samples: int
    together: float
    alone: float
    low: float
    high: float

    @property
    def difference(self) -> float:
        """What joining brings."""
        return self.together - self.alone

    @property
    def verdict(self) -> Verdict:
        """Whether that is more than noise."""
        return judged(self.low, self.high)


def local_run(record: RunRecord, others: Sequence[RunRecord]) -> RunRecord | None:
    """The run in which every site learnt by itself, if it is there and has a result."""
    if record.method == "local":
        return None
    return next((other for other in others if other.method == "local" and other.last is not None), None)


def served(record: RunRecord) -> Mapping[str, Metrics]:
    """How each site does with what it gets from the run: its own model, where the run made some, else its group's."""
    if record.personalised is not None:
        return record.personalised.sites
    return record.last.sites if record.last is not None else {}


def joining(record: RunRecord, local: RunRecord) -> list[Joining]:
    """Every site that both runs tested, in the order of their names."""
    here, alone = served(record), served(local)
    return [
        _joining(site, [here[site]], [alone[site]])
        for site in sorted(here.keys() & alone.keys())
        if here[site].count and alone[site].count
    ]


def joining_overall(record: RunRecord, local: RunRecord) -> Joining | None:
    """All sites that both runs tested, their samples put together."""
    here, alone = served(record), served(local)
    shared = [site for site in sorted(here.keys() & alone.keys()) if here[site].count and alone[site].count]
    return _joining("", [here[site] for site in shared], [alone[site] for site in shared]) if shared else None


def _joining(site: str, here: Sequence[Metrics], alone: Sequence[Metrics]) -> Joining:
    hits, samples = _counts(here)
    other_hits, other_samples = _counts(alone)
    low, high = newcombe(hits, samples, other_hits, other_samples)
    return Joining(site, samples, hits / samples, other_hits / other_samples, low, high)


def _counts(metrics: Sequence[Metrics]) -> tuple[int, int]:
    # An accuracy is a quotient of whole numbers.
    known = [one for one in metrics if math.isfinite(one.accuracy)]
    return sum(round(one.accuracy * one.count) for one in known), max(sum(one.count for one in known), 1)


def joining_words(record: RunRecord, local: RunRecord) -> str:
    """Whether joining pays, in a sentence with its number."""
    total, sites = joining_overall(record, local), joining(record, local)
    if total is None:
        return "A Local run is beside it, but no site was tested in both."
    by_verdict = Counter(one.verdict for one in sites)
    alone = [one.site for one in sorted(sites, key=lambda one: one.difference) if one.verdict == "better alone"]
    points = f"{abs(100 * total.difference):.1f} points"
    interval = f"{_points(total.low)} to {_points(total.high)}"
    verb = {
        "better together": f"joining brings {points}",
        "better alone": f"joining costs {points}",
        "cannot tell": "whether joining pays cannot be told",
    }[total.verdict]
    named = f" ({names(alone)})" if alone else ""
    return (
        f"Sites on their own (Local) classify {percent(total.alone)} correctly, together {percent(total.together)}: "
        f"{verb} ({interval} points with 95 % confidence). Of {count(len(sites), 'site')}, "
        f"{by_verdict['better together'] or 'none'} {'is' if by_verdict['better together'] == 1 else 'are'} better "
        "together by more than noise, "
        f"{by_verdict['better alone'] or 'none'} better alone{named}, and {by_verdict['cannot tell'] or 'none'} cannot "
        "tell with the test samples they have."
    )


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f}".replace("-", "−")


def joining_rows(record: RunRecord, sites: Sequence[Joining]) -> list[tuple[str | int | float | None, ...]]:
    """One row per site: who is better alone first, then by what joining brings."""
    rank = {"better alone": 0, "better together": 1, "cannot tell": 2}
    labels = record.labels
    return [
        (one.site, labels.get(one.site), one.samples, one.together, one.alone,
         f"{_points(one.difference)} ({_points(one.low)} to {_points(one.high)})", one.verdict)
        for one in sorted(sites, key=lambda one: (rank[one.verdict], one.difference, one.site))
    ]  # fmt: skip


JOINING_COLUMNS = ("site", "group", "test samples", "together", "alone", "difference in points (95 %)", "verdict")


def joining_figure(sites: Sequence[Joining]) -> Figure:
    """What joining brings each site, with its interval."""
    ordered = sorted(sites, key=lambda one: (one.difference, one.site))
    place = {one.site: index for index, one in enumerate(ordered)}
    traces: list[dict[str, Any]] = []
    for verdict, (colour, symbol) in _MARKS.items():
        chosen = [one for one in ordered if one.verdict == verdict]
        if not chosen:
            continue
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": f"{verdict} ({len(chosen)})",
                "x": [place[one.site] for one in chosen], "y": [one.difference for one in chosen],
                "error_y": {
                    "type": "data", "symmetric": False, "thickness": 1.2, "width": 3, "color": colour,
                    "array": [one.high - one.difference for one in chosen],
                    "arrayminus": [one.difference - one.low for one in chosen],
                },
                "text": [label(one.site) for one in chosen],
                "customdata": [[one.together, one.alone, one.samples] for one in chosen],
                "marker": {"color": colour, "symbol": symbol, "size": 9},
                "hovertemplate": "<b>%{text}</b>: together %{customdata[0]:.1%}, alone %{customdata[1]:.1%}, "
                "%{customdata[2]} test samples<extra></extra>",
            }
        )  # fmt: skip
    tally = Counter(one.verdict for one in sites)
    return Figure(
        "joining",
        "What joining brings each site",
        "One mark per site: its accuracy here minus that of the model it trains alone, with the 95 % interval. Where "
        "the whole bar is above zero the site is better together, where it is below, better alone; a bar across zero "
        "cannot tell. Few test samples make long bars.",
        f"Of {len(sites)} sites {tally['better together']} are better together, {tally['better alone']} better alone.",
        traces,
        {
            "xaxis": site_axis([one.site for one in ordered]),
            "yaxis": {"tickformat": "+.0%", "automargin": True, "zeroline": True, "zerolinecolor": "@ink",
                      "title": {"text": "together − alone"}},
            "height": 420,
            "showlegend": True,
        },
        ("site", "samples", "together", "alone", "low", "high", "verdict"),
        [(one.site, one.samples, one.together, one.alone, one.low, one.high, one.verdict) for one in ordered],
    )  # fmt: skip
