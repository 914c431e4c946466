"""The figures of a suite as Markdown, LaTeX, HTML and CSV."""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cli.suites.results import Outcome, Row, Spread, best_round, rounds_to_reach, seconds_to_reach
from cli.suites.suite import METRICS, Measure

_NAMES = {"accuracy": "accuracy", "macro_f1": "macro-F1", "auc": "AUC"}

Cells = list[list[str]]


_OURS = {
    "best": "ours − paper",
    "last": "last round, mean of sites − paper",
    "held": "last round, after own training, mean of sites − paper",
}


def tables(
    rows: Sequence[Row], reference: str, measure: Measure = "best", reach: str = ""
) -> list[tuple[list[str], Cells]]:
    """Two tables of one line per method, as columns and cells: how good it is, and what else is known of it.

    `measure` says what the paper's figures are of; `reach` is the row whose accuracy the others are to reach.
    """
    good = [
        "method", "K", "best round", *(f"{_NAMES[name]}, %" for name in METRICS), "last round: accuracy, %",
        "worst tenth, %", "better alone", "worse off by more than noise", "better under FedAvg",
        f"p against {reference}" if reference else "p",
    ]  # fmt: skip
    more = [
        "method", "seeds", "mean of sites, %", "last round: mean of sites, %",
        "last round: shared model, mean of sites, %",
        "last round: after own training, mean of sites, %", "last round: macro-F1, %", "last round: AUC, %",
        "MB a site sends", "MB a site receives", "seconds", "CPU seconds",
    ]  # fmt: skip
    lines = [_good(row) for row in rows]
    if any(row.paper is not None for row in rows):
        most = max(len(row.paper or ()) for row in rows)
        good += [f"paper: {' / '.join([_NAMES[name] for name in METRICS][:most])}, %", _OURS[measure]]
        for line, row in zip(lines, rows, strict=True):
            line.extend(_beside_paper(row, measure))
    if any(math.isfinite(row.ari.mean) for row in rows):
        good.insert(2, "ARI")
        for line, row in zip(lines, rows, strict=True):
            line.insert(2, f"{row.ari.mean:.2f}" if math.isfinite(row.ari.mean) else "–")
    others = [_more(row) for row in rows]
    timed = any(_last(row.clock) is not None for row in rows)
    if timed:
        more.append("virtual seconds")
        for line, row in zip(others, rows, strict=True):
            line.append("–" if (last := _last(row.clock)) is None else f"{last:.0f}")
    if any(row.chosen for row in rows):
        more.append("chosen by validation")
        for line, row in zip(others, rows, strict=True):
            line.append(row.chosen or "–")
    if (goal := next((row for row in rows if row.label == reach), None)) is not None:
        more.append(f"rounds to reach {reach}")
        for line, row in zip(others, rows, strict=True):
            line.append("–" if row is goal else str(rounds_to_reach(row, goal) or "never"))
        if timed:
            more.append(f"virtual seconds to reach {reach}")
            for line, row in zip(others, rows, strict=True):
                seconds = seconds_to_reach(row, goal)
                line.append("–" if row is goal else f"{seconds:.0f}" if math.isfinite(seconds) else "never")
    return [(good, lines), (more, others)]


def _last(clock: NDArray[np.float64]) -> float | None:
    return float(clock[-1]) if len(clock) and math.isfinite(clock[-1]) else None


def _good(row: Row) -> list[str]:
    return [
        row.label,
        f"{row.k.mean:.3g}",
        "after the last" if row.best_round is None else str(row.best_round),
        *(_spread(row.best[name]) for name in METRICS),
        _spread(row.final["accuracy"]),
        _spread(row.worst_tenth),
        _count(row.better_alone, row.sites),
        _count(row.worse_off, row.sites),
        _count(row.better_common, row.sites),
        "–" if row.p_value is None else f"{row.p_value:.2g}",
    ]


def _beside_paper(row: Row, measure: Measure) -> list[str]:
    if row.paper is None:
        return ["–", "–"]
    return [" / ".join(f"{value:.2f}" for value in row.paper), " / ".join(_differences(row, row.paper, measure))]


def _more(row: Row) -> list[str]:
    return [
        row.label,
        ", ".join(map(str, row.seeds)),
        _spread(row.mean_of_sites),
        _spread(row.last_mean_of_sites),
        _spread(row.shared),
        _spread(row.held),
        _spread(row.final["macro_f1"]),
        _spread(row.final["auc"]),
        f"{row.sent:.1f}",
        f"{row.received:.1f}",
        f"{row.seconds:.0f}",
        f"{row.cpu_seconds:.0f}",
    ]


def _spread(spread: Spread) -> str:
    if not math.isfinite(spread.mean):
        return "–"
    deviation = f" ± {100 * spread.deviation:.1f}" if math.isfinite(spread.deviation) else ""
    return f"{100 * spread.mean:.1f}{deviation}"


def _count(value: float | None, sites: int) -> str:
    return "–" if value is None else f"{value:.3g} of {sites}"


def _differences(row: Row, paper: Sequence[float], measure: Measure) -> list[str]:
    if measure == "best":
        ours = [row.best[name].mean for name in METRICS]
    else:
        # Who has no figure after its own training is tested with what it trained: there the two are one.
        is_held = measure == "held" and math.isfinite(row.held.mean)
        ours = [(row.held if is_held else row.last_mean_of_sites).mean]
    gaps = [100 * value - published for value, published in zip(ours, paper, strict=False)]
    return [f"{gap:+.1f}" if math.isfinite(gap) else "–" for gap in gaps]


def markdown(columns: Sequence[str], lines: Cells) -> str:
    """A pipe table."""
    marks = ["---", *["---:"] * (len(columns) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, marks, *lines))


_LATEX = {"%": r"\%", "&": r"\&", "_": r"\_", "#": r"\#", "−": "$-$", "±": r"$\pm$", "–": "--"}


def latex(columns: Sequence[str], lines: Cells) -> str:
    """A tabular with booktabs rules."""

    def row(cells: Sequence[str]) -> str:
        return " & ".join("".join(_LATEX.get(char, char) for char in cell) for cell in cells) + r" \\"

    return "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
            r"\toprule",
            row(columns),
            r"\midrule",
            *map(row, lines),
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def html_table(columns: Sequence[str], lines: Cells) -> str:
    """A table element."""
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in columns)
    rows = [
        f'<tr><th scope="row">{html.escape(cells[0])}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells[1:])
        + "</tr>"
        for cells in lines
    ]
    return "\n".join(["<table>", f"<thead><tr>{head}</tr></thead>", "<tbody>", *rows, "</tbody>", "</table>"])


HTML_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 100rem; padding: 0 1rem; }}
.wide {{ overflow-x: auto; margin: 1rem 0; }} table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #8886; white-space: nowrap; }}
thead th {{ white-space: normal; vertical-align: bottom; }} th:first-child {{ text-align: left; }}
img {{ max-width: 100%; }}
</style></head><body>
<h1>{title}</h1>
{content}
</body></html>
"""


def results_csv(outcomes: Sequence[Outcome]) -> str:
    """One line per run, at the best round of its method's mean curve and at the last round; shares, not percent."""
    grouped: dict[tuple[str, str, str], list[Outcome]] = {}
    for outcome in outcomes:
        cell = outcome.cell
        grouped.setdefault((cell.data, cell.setting, cell.label), []).append(outcome)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["data", "setting", "label", "method", "seed", "rounds", "k", "ari", "best_round", *METRICS,
         "mean_site_accuracy", "worst_tenth_accuracy", *(f"last_{name}" for name in METRICS), "mb_sent", "mb_received",
         "seconds", "cpu_seconds", "directory"]
    )  # fmt: skip
    for (data, setting, label), group in grouped.items():
        place = best_round(group)
        for outcome in group:
            curves, config = outcome.curves, outcome.cell.config
            best = [curves[name][place] for name in (*METRICS, "mean_site_accuracy", "worst_tenth_accuracy")]
            last = [curves[name][-1] for name in METRICS]
            cost = [round(value, 3) for value in (outcome.sent, outcome.received, outcome.seconds, outcome.cpu_seconds)]
            writer.writerow(
                [data, setting, label, config.method, outcome.cell.seed, len(curves["accuracy"]), outcome.k,
                 outcome.ari if math.isfinite(outcome.ari) else "", place + 1,
                 *best, *last, *cost, outcome.cell.name]
            )  # fmt: skip
    return text.getvalue()
