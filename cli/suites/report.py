"""Writes what has come out of a suite so far: results.csv, tables and curves."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Sequence
from pathlib import Path

from cli.suites import curves, tables
from cli.suites.results import Outcome, read_outcome, rows
from cli.suites.suite import Cell, Suite

_NOTES = """\
{cores} cores. Best round: the one whose accuracy is highest in the mean over the seeds; mean ± standard deviation
(n − 1) over the seeds there. Accuracy, macro-F1 and AUC are over all sites' own test samples together. Better alone,
better under FedAvg: sites per seed that do better in Local and under FedAvg, each at its own best round. p: two-sided
Wilcoxon signed-rank test over (site, seed) pairs of accuracy; sites of one seed are not independent, so read it as a
description. MB: what a site sends and receives over the whole run, mean over the sites."""


def write_results(suite: Suite, cells: Sequence[Cell], out: Path) -> tuple[str, bool]:
    """Write all files anew from the run directories; return the tables as Markdown, and whether curves were drawn."""
    outcomes = [outcome for cell in cells if (outcome := read_outcome(cell)) is not None]
    (out / "results.csv").write_text(tables.results_csv(outcomes), encoding="utf-8")
    parts: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        parts.setdefault((outcome.cell.data, outcome.cell.setting), []).append(outcome)
    texts, latex, pages = [f"# {suite.title}"], [], []
    drawn = True
    for (data, setting), part in parts.items():
        wanted = sum(cell.data == data and cell.setting == setting for cell in cells)
        name = data if setting == "as given" else f"{data}, {setting}"
        state = "" if len(part) == wanted else f" ({len(part)} of {wanted} runs so far)"
        columns, lines = tables.header(suite.reference), tables.body(list(rows(part, suite.reference)))
        stem = out / re.sub(r"[^\w.\-]+", "-", f"curves {name}".lower())
        try:
            pictures = curves.draw(part, name, stem)
        except ImportError:
            pictures, drawn = [], False
        texts += [f"## {name}{state}", tables.markdown(columns, lines)]
        texts += [f"![learning curves]({picture.name})" for picture in pictures[:1]]
        latex += [f"% {name}{state}", tables.latex(columns, lines)]
        pages += [
            f"<h2>{html.escape(name + state)}</h2>",
            f'<div class="wide">{tables.html_table(columns, lines)}</div>',
        ]
        pages += [f'<p><img src="{picture.name}" alt="learning curves of {name}"></p>' for picture in pictures[1:]]
    notes = _NOTES.format(cores=os.cpu_count())
    text = "\n\n".join([*texts, notes])
    (out / "table.md").write_text(text + "\n", encoding="utf-8")
    (out / "table.tex").write_text("\n\n".join(latex) + "\n", encoding="utf-8")
    content = "\n".join([*pages, f"<p>{html.escape(notes)}</p>"])
    page = tables.HTML_PAGE.format(title=html.escape(suite.title), content=content)
    (out / "table.html").write_text(page, encoding="utf-8")
    return text, drawn
