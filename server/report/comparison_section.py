"""The section beside other runs: the runs in a table, who is better alone, who is worse than under FedAvg."""

from __future__ import annotations

import json
from collections.abc import Sequence

from server.report.beside_local import (
    CONSERVATIVE,
    JOINING_COLUMNS,
    joining,
    joining_figure,
    joining_rows,
    local_run,
)
from server.report.markup import paragraph, table
from server.report.record import RunRecord, accuracies, figures_of
from server.report.section import MOST_ROWS, Section
from server.report.training_figures import baseline
from server.report.wording import names
from server.report.words import worse_sites


def comparison_section(record: RunRecord, others: Sequence[RunRecord]) -> Section:
    section = Section("comparison", "Beside other runs")
    different = [other for other in others if _task(other) != _task(record)]
    if different:
        section.body += paragraph(
            f"Read with care: {names([other.name for other in different])} ran with other data settings or another "
            "seed, so the same site name need not mean the same images.",
            "note",
        )
    rows = [(run.name, run.title, len(run.groups), *_row(run)) for run in (record, *others)]
    section.body += paragraph(
        "Each run after its last round, on the same test images; this page is about the bold one."
    )
    columns = (
        "run", "method", "groups", "round", "accuracy", "macro-F1", "AUC", "mean of sites", "worst tenth",
    )  # fmt: skip
    shares = ("accuracy", "macro-F1", "mean of sites", "worst tenth")
    section.body += table(columns, rows, caption="Runs side by side", percent=shares, highlight=0)
    local = local_run(record, others)
    if local is not None and (sites := joining(record, local)):
        section.body += "<h3>Together or alone</h3>" + paragraph(CONSERVATIVE)
        section.show(joining_figure(sites))
        section.body += table(
            JOINING_COLUMNS,
            joining_rows(record, sites)[:MOST_ROWS],
            caption="Every site together and alone",
            percent=("together", "alone"),
        )
    fedavg = baseline(others)
    if fedavg is not None and record.last is not None and record.method != "fedavg":
        assert fedavg.last is not None
        worse = worse_sites(record, fedavg)
        section.body += "<h3>Sites that do worse than under FedAvg</h3>"
        if not worse:
            section.body += paragraph("None: every site that both runs tested does at least as well in its group.")
        else:
            mine, beside = accuracies(record.last.sites), accuracies(fedavg.last.sites)
            labels, tested = record.labels, record.last.sites
            section.body += table(
                ("site", "group", "here", "under FedAvg", "difference", "test samples"),
                [(s, labels.get(s), mine[s], beside[s], mine[s] - beside[s], tested[s].count) for s in worse],
                caption="Sites that do worse than under FedAvg",
                percent=("here", "under FedAvg", "difference"),
            )
    return section


def _task(record: RunRecord) -> str:
    """What two runs must have in common for their sites to be the same."""
    return json.dumps([record.seed, *(record.config.get(key) for key in ("data", "partition", "sites", "drift"))])


def _row(run: RunRecord) -> tuple[int | float | None, ...]:
    return (None,) * 6 if run.last is None else (run.last.round_number, *figures_of(run.last))
