"""The section on classes: recall, confusion, and which class a site is bad at."""

from __future__ import annotations

from server.report.class_figures import (
    RECALL_COLUMNS,
    WEAK_COLUMNS,
    by_group,
    confusion_figures,
    recall_rows,
    weak_rows,
)
from server.report.markup import paragraph, table
from server.report.record import RunRecord
from server.report.section import MOST_ROWS, Section
from server.report.wording import count


def class_section(record: RunRecord) -> Section:
    """Class by class; of the groups' models, also where sites made models of their own."""
    section = Section("classes-section", "Classes")
    groups = by_group(record)
    section.body = paragraph(
        "How many test samples of each class are recognised, by group, in the last round that was tested. The true "
        "recall lies between “at least” and “at most” with 95 % confidence (Wilson): few samples, wide bounds."
    )
    shares = ("recall", "at least", "at most")
    rows = recall_rows(record, groups)
    section.body += table(RECALL_COLUMNS, rows[:MOST_ROWS], caption="Recall by group and class", percent=shares)
    section.show(*confusion_figures(record, groups))
    weak = weak_rows(record)
    section.body += "<h3>Which class a site is bad at</h3>"
    if not weak:
        section.body += paragraph("None: every test sample of every site is recognised.")
        return section
    perfect = len(record.confusions) - len(weak)
    section.body += paragraph(
        "For each site the class whose recall is surest to be low (the smallest “at most”), the worst site first; "
        f"{count(perfect, 'site')} without any error {'is' if perfect == 1 else 'are'} left out."
    )
    section.body += table(WEAK_COLUMNS, weak[:MOST_ROWS], caption="Which class a site is bad at", percent=shares)
    return section
