"""What sites have spent of their privacy budgets."""

from __future__ import annotations

from server.report.markup import paragraph, table
from server.report.record import RunRecord
from server.report.section import MOST_ROWS, Section
from server.report.wording import count


def privacy_section(record: RunRecord) -> Section:
    """A line for each site that has a budget."""
    section = Section("privacy", "Privacy budgets")
    told = sorted(record.spending.items())
    section.body = paragraph(
        f"{count(len(told), 'site')} of {len(record.cards)} had a privacy budget: what they told has noise, class "
        "counts and test results on this page included, and a site whose budget is used up answers no more. Their "
        "losses, areas under the curve and calibration follow from noisy counts of right and wrong alone. Spent is "
        "what a site said last, of all runs it ever took part in."
    )
    rows = [(name, one.spent, one.budget, f"{one.delta:g}") for name, one in told[:MOST_ROWS]]
    section.body += table(("site", "ε spent", "ε budget", "δ"), rows, caption="Privacy budgets")
    return section
