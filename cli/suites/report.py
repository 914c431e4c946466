"""Writes what has come out of a suite so far: results.csv, tables and curves."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from pathlib import Path

from cli.suites import curves, tables
from cli.suites.results import Outcome, read_outcome, rows
from cli.suites.suite import Cell, Suite, slug

_NOTES = """\
{cores} cores. Best round: the one whose accuracy is highest in the mean over the seeds; mean ± standard deviation
(n − 1) over the seeds there. Accuracy, macro-F1 and AUC are over all sites' own test samples together, of the model
that a site is tested with: its group's, or one of its own where the method gives it one. Shared model: the one it
shares with others then. After own training: what each site held right after its last one (test.held). Better alone,
better under FedAvg: sites per seed that do better in Local and under FedAvg, each at its own best round. p: two-sided
Wilcoxon signed-rank test over (site, seed) pairs of accuracy; sites of one seed are not independent, so read it as a
description. MB: what a site sends and receives over the whole run, mean over the sites."""


def write_results(suite: Suite, cells: Sequence[Cell], out: Path) -> tuple[str, bool]:
    """Write all files anew from the run directories; return the tables as Markdown, and whether curves were drawn."""
    outcomes = [outcome for cell in cells if (outcome := read_outcome(cell)) is not None]
    (out / "results.csv").write_text(tables.results_csv(outcomes), encoding="utf-8")
    parts: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        parts.setdefault(outcome.cell.table, []).append(outcome)
    texts, latex, pages = [f"# {suite.title}"], [], []
    drawn = True
    for name, part in parts.items():
        wanted = sum(cell.table == name for cell in cells)
        heading = name if len(part) == wanted else f"{name} ({len(part)} of {wanted} runs so far)"
        texts.append(f"## {heading}")
        latex.append(f"% {heading}")
        pages.append(f"<h2>{html.escape(heading)}</h2>")
        for columns, lines in tables.tables(list(rows(part, suite.reference)), suite.reference):
            texts.append(tables.markdown(columns, lines))
            latex.append(tables.latex(columns, lines))
            pages.append(f'<div class="wide">{tables.html_table(columns, lines)}</div>')
        try:
            png, svg = curves.draw(part, name, suite.reference, out / slug(f"curves {name}"))
            texts.append(f"![learning curves]({png.name})")
            pages.append(f'<p><img src="{svg.name}" alt="learning curves of {html.escape(name)}"></p>')
        except ImportError:
            drawn = False
    notes = _NOTES.format(cores=os.cpu_count())
    text = "\n\n".join([*texts, notes])
    (out / "table.md").write_text(text + "\n", encoding="utf-8")
    (out / "table.tex").write_text("\n\n".join(latex) + "\n", encoding="utf-8")
    content = "\n".join([*pages, f"<p>{html.escape(notes)}</p>"])
    page = tables.HTML_PAGE.format(title=html.escape(suite.title), content=content)
    (out / "table.html").write_text(page, encoding="utf-8")
    return text, drawn
