"""Writes what has come out of a suite so far: results.csv, tables and curves."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from cli.suites import curves, drifted, overview, tables
from cli.suites.results import Outcome, Row, read_outcome, rows
from cli.suites.suite import Cell, Suite, slug
from server.history.run_directory import write_text
from server.report import page, read_run

_NOTES = """\
{cores} cores. Best round: the one whose accuracy is highest in the mean over the seeds; mean ± standard deviation
(n − 1) over the seeds there. Accuracy, macro-F1 and AUC are over all sites' own test samples together, of the model
that a site is tested with: its group's, or one of its own where the method gives it one. Shared model: the one it
shares with others then. After own training: what each site held right after its last one (test.held). Better alone,
better under FedAvg: sites per seed that do better in Local and under FedAvg, each at its own best round. Worse off by
more than noise: those of better alone where zero is outside the 95 % interval of the difference (Newcombe's for two
independent shares, which is on the safe side: both were tested on the same samples). p: two-sided
Wilcoxon signed-rank test over (site, seed) pairs of accuracy; sites of one seed are not independent, so read it as a
description. ARI: agreement of the groups with the kinds of the sites, where sites differ in kind (1: the same, 0:
chance). Stable: the last round of the same run without drift; before, just after: the rounds before and in which data
begin to change; Δ‰ = 1000 (stable − end) / stable. MB: what a site sends and receives over the whole run, mean over the
sites. Virtual seconds: when the last round closed, and the one that reaches as much, on the clock of simulate.clock."""


def write_results(suite: Suite, cells: Sequence[Cell], out: Path) -> tuple[str, bool]:
    """Write all files anew from the run directories; return the tables as Markdown, and whether curves were drawn."""
    outcomes = [outcome for cell in cells if (outcome := read_outcome(cell)) is not None]
    (out / "results.csv").write_text(tables.results_csv(outcomes), encoding="utf-8")
    parts: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        parts.setdefault(outcome.cell.table, []).append(outcome)
    texts, latex, pages = [f"# {suite.title}"], [], []
    drawn = True
    of_table: dict[str, list[Row]] = {}
    for name, part in parts.items():
        wanted = sum(cell.table == name for cell in cells)
        heading = name if len(part) == wanted else f"{name} ({len(part)} of {wanted} runs so far)"
        texts.append(f"## {heading}")
        latex.append(f"% {heading}")
        pages.append(f"<h2>{html.escape(heading)}</h2>")
        of_table[name] = found = list(rows(part, suite.reference))
        for columns, lines in tables.tables(found, suite.reference, suite.measure, suite.reach):
            texts.append(tables.markdown(columns, lines))
            latex.append(tables.latex(columns, lines))
            pages.append(f'<div class="wide">{tables.html_table(columns, lines)}</div>')
        beside = out / f"{slug(f'runs {name}')}.html"
        if (seed := _side_by_side(suite, part, beside)) is not None:
            words = f"the runs of seed {seed} side by side: does joining pay, and for which site"
            texts.append(f"[{words}]({beside.name})")
            pages.append(f'<p><a href="{beside.name}">{words}</a></p>')
        try:
            for by_clock in (False, True) if curves.has_clock(part) else (False,):
                stem, what = ("clock", "accuracy over virtual time") if by_clock else ("curves", "learning curves")
                png, svg = curves.draw(part, name, suite.reference, out / slug(f"{stem} {name}"), by_clock=by_clock)
                texts.append(f"![{what}]({png.name})")
                pages.append(f'<p><img src="{svg.name}" alt="{what} of {html.escape(name)}"></p>')
        except ImportError:
            drawn = False
    if suite.stable:
        for heading, columns, lines in _drift_tables(suite, outcomes):
            texts += [f"## {heading}", tables.markdown(columns, lines)]
            latex += [f"% {heading}", tables.latex(columns, lines)]
            pages.append(f"<h2>{html.escape(heading)}</h2>")
            pages.append(f'<div class="wide">{tables.html_table(columns, lines)}</div>')
    if drawn and (picture := overview.draw(of_table, suite.title, out / "overview.png")) is not None:
        texts.insert(1, f"![all tables at a glance]({picture.name})")
        pages.insert(0, f'<p><img src="{picture.name}" alt="all tables at a glance"></p>')
    notes = _NOTES.format(cores=os.cpu_count())
    text = "\n\n".join([*texts, notes])
    (out / "table.md").write_text(text + "\n", encoding="utf-8")
    (out / "table.tex").write_text("\n\n".join(latex) + "\n", encoding="utf-8")
    content = "\n".join([*pages, f"<p>{html.escape(notes)}</p>"])
    whole = tables.HTML_PAGE.format(title=html.escape(suite.title), content=content)
    (out / "table.html").write_text(whole, encoding="utf-8")
    return text, drawn


def _drift_tables(suite: Suite, outcomes: Sequence[Outcome]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """What drift costs on each data set, as heading, columns and lines."""
    for data in suite.data:
        published = {
            entry.title: entry.paper_loss[data.name] for entry in suite.method if data.name in entry.paper_loss
        }
        part = [outcome for outcome in outcomes if outcome.cell.data == data.name]
        if lines := drifted.lines(part, suite.stable, published):
            yield f"{data.name}: what drift costs, mean of the sites", list(drifted.COLUMNS), lines


def _side_by_side(suite: Suite, part: Sequence[Outcome], path: Path) -> int | None:
    """Write a page about the reference's run beside those of the others; return their seed, None if alone."""
    seed = min(outcome.cell.seed for outcome in part)
    runs = [outcome.cell for outcome in part if outcome.cell.seed == seed]
    if len(runs) < 2:
        return None
    runs.sort(key=lambda cell: cell.label != suite.reference)
    records = [read_run(Path(cell.config.out)) for cell in runs]
    for record, cell in zip(records, runs, strict=True):
        # All their folders have the same name.
        record.name = cell.label
    write_text(path, page(records))
    return seed
