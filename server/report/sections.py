"""The sections of the page, each a heading with what belongs under it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from html import escape

import numpy as np

from common.config import flatten
from common.naming import beside_naming
from common.readable import megabytes, percent
from server.history.events import RoundFinished, SitesPersonalised
from server.report.calibration_section import calibration_section
from server.report.class_section import class_section
from server.report.comparison_section import comparison_section
from server.report.course_figures import STAGES, cost_figures, evidence_words, moves_figure
from server.report.difference_words import DIFFERENCE_COLUMNS, difference_rows, difference_words
from server.report.grouping_figures import grouping_figures
from server.report.grouping_words import choice_of_k, doubtful, verdict
from server.report.leaving_section import leaving_section
from server.report.markup import group_chip, paragraph, table, tiles
from server.report.palette import group_colour, group_symbol
from server.report.privacy_section import privacy_section
from server.report.record import Incident, RunRecord, accuracies, figures_of
from server.report.section import MOST_ROWS, Section
from server.report.study import Study, study
from server.report.training_figures import training_figures
from server.report.wording import count, names
from server.report.words import sentences

_KEPT = {
    "group": "their group's model",
    "finetuned": "their group's model trained further",
    "local": "one trained on their own data alone",
    "blend": "their group's model blended with one of their own",
}


def sections(records: Sequence[RunRecord]) -> list[Section]:
    """All sections of a page about the first run, beside which the others stand for comparison."""
    record, others = records[0], records[1:]
    looked = study(record)
    chosen = [_summary(record, looked, others)]
    if others:
        chosen.append(comparison_section(record, others))
    chosen.append(_groups(record, looked, others))
    if record.planned_rounds:
        chosen.append(_training(record, looked, others))
        if record.confusions:
            chosen.append(class_section(record))
        if record.scores:
            chosen.append(calibration_section(record))
        chosen.append(_moves(record))
    if record.spending:
        chosen.append(privacy_section(record))
    if record.traffic:
        chosen.append(leaving_section(record))
    chosen += [_costs(record), _incidents(record), _settings(record)]
    return chosen


def _summary(record: RunRecord, looked: Study | None, others: Sequence[RunRecord]) -> Section:
    section = Section("summary", "What came out")
    told = "".join(paragraph(text) for text in sentences(record, looked, others))
    section.body = f'<div class="lead">{told}</div>'
    values = [(str(len(record.labels) or len(record.cards)), "sites"), (str(len(record.groups)), "groups")]
    if record.last is not None:
        values += [
            (percent(record.last.overall.accuracy), "accuracy, all test images"),
            (percent(record.last.mean_site_accuracy), "mean of sites"),
            (percent(record.last.worst_tenth_accuracy), "worst tenth of sites"),
        ]
    if record.kept:
        values.append((str(len(record.kept)), "sites keep their model"))
    values.append((str(len(record.incidents)), "incidents"))
    section.body += tiles(values)
    section.body += "".join(paragraph(note, "note") for note in record.notes)
    if record.reason:
        section.body += paragraph(f"Why the run ended: {record.reason}", "note")
    return section


def _groups(record: RunRecord, looked: Study | None, others: Sequence[RunRecord]) -> Section:
    section = Section("groups-section", "Groups")
    if record.grouping is None:
        section.body = paragraph("The sites have not been grouped.")
        return section
    judged = verdict(record, looked, others)
    if judged is not None and looked is not None:
        section.body += (
            f'<div class="verdict {judged.answer}"><p><b>Are groups worth it?</b> {escape(judged.words)}</p>'
            f"<p><b>How many?</b> {escape(choice_of_k(record, looked))}</p>"
            f"<p><b>Doubtful sites?</b> {escape(doubtful(record, looked))}</p>{_kind_of_difference(record)}</div>"
        )
    elif record.distance is None:
        section.body += paragraph(
            f"{record.title} does not compare the sites' data, so there is no map of them; "
            f"{'all sites share one model' if len(record.groups) == 1 else 'groups are given by the method itself'}."
        )
    if record.solved is not None:
        layers = " and ".join(map(str, record.solved.hidden))
        section.body += paragraph(
            f"Validation chose the threshold {record.solved.threshold:g} and layers of {layers} units."
        )
    if record.agreement is not None:
        section.body += paragraph(
            f"This world has a truth: the groups agree with the kinds of sites to {record.agreement:.2f} (adjusted "
            "Rand index; 1: the same, 0: chance)."
        )
    section.body += _members(record)
    if record.differences:
        section.body += _differences(record)
    section.show(*grouping_figures(record, looked))
    section.body += _sites_table(record, looked)
    return section


def _kind_of_difference(record: RunRecord) -> str:
    if not record.differences:
        return ""
    return f"<p><b>What differs between the groups?</b> {escape(difference_words(record.differences))}</p>"


def _differences(record: RunRecord) -> str:
    """Every two groups: how far their class shares differ, and samples of a class, each beside chance."""
    return (
        "<h3>What differs between the groups</h3>"
        + paragraph(
            "Shares: the part of the samples that would have to be of another class. Same class: how far the means of "
            "a class lie apart in two groups, in parts of the distance between different classes. Beside each what "
            "groups of this size would show by chance if they did not differ."
        )
        + table(
            DIFFERENCE_COLUMNS,
            difference_rows(record.differences)[:MOST_ROWS],
            caption="What differs between the groups",
            percent=DIFFERENCE_COLUMNS[1:5],
        )
    )


def _members(record: RunRecord) -> str:
    rows = []
    for group, members in record.groups.items():
        chip = group_chip(group, group_symbol(group), group_colour(group))
        rows.append(
            f"<li>{chip}: {escape(names(members))} ({count(len(members), 'site')}){_beside(record, members)}</li>"
        )
    if len(rows) > 24:
        return f"<details id=members><summary>Members of {len(rows)} groups</summary><ul>{''.join(rows)}</ul></details>"
    return f"<ul>{''.join(rows)}</ul>"


def _beside(record: RunRecord, members: Sequence[str]) -> str:
    """A warning where a group's model has learnt no more than which class is frequent."""
    tested = record.last.sites if record.last is not None else {}
    beside = beside_naming(tested[site] for site in members if site in tested)
    if beside is None or beside.verdict == "better":
        return ""
    return f'<br><span class="note">{escape(beside.words)}</span>'


def _sites_table(record: RunRecord, looked: Study | None) -> str:
    """Every site in one row: what it holds, where it is, how sure that is, how well it does."""
    place = {} if record.compared is None else {site: i for i, site in enumerate(record.compared.sites)}
    accuracy = accuracies(record.last.sites) if record.last is not None else {}
    labels = record.labels
    columns: list[tuple[str, Callable[[str], str | int | float | None]]] = [
        ("site", lambda site: site),
        ("group", labels.get),
        ("train", lambda site: record.cards[site].train_samples),
        ("test", lambda site: record.cards[site].test_samples),
        ("main class", lambda site: _main_class(record, site)),
    ]
    if any(card.fault_count for card in record.cards.values()):
        of_table = isinstance(record.config.get("data"), Mapping) and record.config["data"].get("table")
        columns.append(
            ("columns mended" if of_table else "unusable files", lambda site: record.cards[site].fault_count)
        )
    if accuracy:
        columns.append(("accuracy", accuracy.get))
    shares = ["accuracy", "own model"]
    if record.personalised is not None:
        columns += [("own model", accuracies(record.personalised.sites).get), ("keeps", record.personalised.kept.get)]
    if looked is not None:
        found = looked

        def at(values: np.ndarray) -> Callable[[str], float | None]:
            return lambda site: float(values[place[site]]) if site in place else None

        columns.append(("silhouette", at(found.silhouettes)))
        if found.stability is not None:
            columns += [("own group", at(found.own)), ("next group", at(found.rival))]
            shares += ["own group", "next group"]
            columns.append(("doubtful", lambda site: "yes" if site in place and found.hard[place[site]] else ""))
    sites = [site for site in sorted(record.cards) if site in labels]
    if not sites:
        return ""
    rows = [tuple(value(site) for _, value in columns) for site in sites[:MOST_ROWS]]
    more = paragraph(f"{len(sites) - MOST_ROWS} more sites are in the CSV files.") if len(sites) > MOST_ROWS else ""
    reading = paragraph(
        "Columns can be sorted. Silhouette: 1 fits its group perfectly, below 0 it lies nearer to another. Own and "
        "next group: how often the site ends up with the members of its group, and of the next one, when sites are "
        "left out."
        if looked is not None
        else "Columns can be sorted."
    )
    titles = [title for title, _ in columns]
    return f"<h3>All sites</h3>{reading}{table(titles, rows, caption='All sites', percent=shares)}{more}"


def _main_class(record: RunRecord, site: str) -> str:
    card = record.cards[site]
    if not card.class_counts or not card.train_samples:
        return ""
    top = max(range(len(card.class_counts)), key=lambda index: card.class_counts[index])
    return f"{record.classes[top]} ({card.class_counts[top] / card.train_samples:.0%})"


def _training(record: RunRecord, looked: Study | None, others: Sequence[RunRecord]) -> Section:
    section = Section("training-section", "Training")
    figures = training_figures(record, others)
    if not figures:
        section.body = paragraph("No round is complete yet.")
    section.show(*figures)
    if record.last is not None and (record.last.shared, record.last.held) != (None, None):
        section.body += _which_model(record.last)
    if record.personalised is not None:
        section.body += _personalised(record, record.personalised)
    return section


def _which_model(last: RoundFinished) -> str:
    """The accuracy of each model that a site was tested with, where it is more than one."""
    tested = "each site's own model" if last.shared is not None else "the model that a site is sent"
    rows = [(f"{tested}: all figures of this page", last.overall.accuracy, last.mean_site_accuracy)]
    for words, beside in (("the model that sites share", last.shared), ("after a site's own last training", last.held)):
        if beside is not None:
            rows.append((words, beside.accuracy, beside.mean_site_accuracy))
    told = "Sites have models of their own, which they keep. " if last.shared is not None else ""
    columns = ("model", "all test samples", "mean of sites")
    return (
        "<h3>Which model is tested</h3>"
        + paragraph(f"{told}Accuracy after round {last.round_number}, on the same samples.")
        + table(columns, rows, caption="Which model is tested", percent=columns[1:])
    )


def _personalised(record: RunRecord, own: SitesPersonalised) -> str:
    """The sites' own models beside their groups', each in a row of its own."""
    kept = Counter(own.kept.values())
    told = ", ".join(f"{_KEPT.get(what, what)} ({number})" for what, number in sorted(kept.items()))
    columns = ("model", "sites tested", "accuracy", "macro-F1", "AUC", "mean of sites", "worst tenth")
    rows: list[tuple[str | int | float, ...]] = []
    if (last := record.last) is not None:
        rows.append((f"of the group, round {last.round_number}", len(last.sites), *figures_of(last)))
    rows.append((f"personalised ({own.mode})", len(own.sites), *figures_of(own)))
    return (
        "<h3>The sites' own models</h3>"
        + paragraph(
            f"After the last round sites made models of their own (personalise = '{own.mode}'). They keep: {told}. "
            "Their figures are in this table and in the column “own model” of all sites; all others are of the groups' "
            "models."
        )
        + table(columns, rows, caption="The sites' own models", percent=("accuracy", "macro-F1", *columns[5:]))
    )


def _moves(record: RunRecord) -> Section:
    section = Section("moves-section", "Moves")
    if not record.rulings:
        migration = record.config.get("migration", {}).get("rule", "auto")
        off = migration == "off" or (
            migration == "auto" and record.recipe is not None and record.recipe.migration == "off"
        )
        section.body = paragraph(
            # Two facts, not cause and effect: CFL and IFCA move sites by rules of their own.
            "Nobody moved; migration is off in this run (migration.rule)."
            if off
            else "Nobody was suspected, nobody moved."
        )
    drawn = moves_figure(record)
    if drawn is not None:
        section.show(drawn)
        rows = [
            (one.site, one.round_number, one.origin, "stays" if one.origin == one.target else
             f"{one.target}{' (new)' if one.founded else ''}", evidence_words(one.evidence))
            for one in record.rulings[:MOST_ROWS]
        ]  # fmt: skip
        section.body += "<h3>The evidence</h3>"
        section.body += table(
            ("site", "round", "from", "to", "evidence"), rows, caption="Moves and their evidence", wide=("evidence",)
        )
    if record.retired:
        gone = [f"{group} (since round {number})" for group, number in sorted(record.retired.items())]
        section.body += paragraph(f"Groups that nobody belongs to any more: {names(gone)}.")
    if record.placed:
        section.body += "<h3>Sites that came late</h3>"
        section.body += table(
            ("site", "round", "group", "confidence", "fits"),
            [
                (site, number, group, sure, "nowhere" if site in record.strangers else "yes")
                for site, (number, group, sure) in sorted(record.placed.items())
            ],
            caption="Sites that came late",
            percent=("confidence",),
        )
    return section


def _costs(record: RunRecord) -> Section:
    section = Section("costs-section", "Costs")
    figures = cost_figures(record)
    if not figures:
        section.body = paragraph("No site has answered yet.")
        return section
    if record.traffic:
        totals = {
            stage: [one[stage] for one in record.traffic.values() if stage in one]
            for stage in STAGES
            if any(stage in one for one in record.traffic.values())
        }
        sites = len(record.traffic)
        section.body += table(
            ("stage", "to all sites", "from all sites", "per site, both ways", "replies", "sites' own work"),
            [
                (
                    STAGES[stage],
                    megabytes(sum(one.sent for one in entries)),
                    megabytes(sum(one.received for one in entries)),
                    megabytes(sum(one.sent + one.received for one in entries) / sites),
                    sum(one.replies for one in entries),
                    f"{sum(one.seconds for one in entries):,.1f} s",
                )
                for stage, entries in totals.items()
            ],
            caption="Costs by stage",
        )
    section.show(*figures)
    return section


def _incidents(record: RunRecord) -> Section:
    section = Section("incidents-section", "Incidents")
    if not record.incidents:
        section.body = paragraph("None: every site that was asked answered, and every answer could be used.")
        return section
    grouped: dict[tuple[str, str, str], list[Incident]] = {}
    for incident in record.incidents:
        grouped.setdefault((incident.who, incident.stage, incident.reason), []).append(incident)
    rows = [
        (who, STAGES.get(stage, stage), _rounds([one.round_number for one in entries]), len(entries), reason)
        for (who, stage, reason), entries in grouped.items()
    ]
    told = f"{count(len(record.incidents), 'incident')}; the same one in several rounds is one row."
    if len(rows) > MOST_ROWS:
        told += f" Only the first {MOST_ROWS} rows are shown; events.jsonl has them all."
    section.body = paragraph(told)
    section.body += table(
        ("who", "stage", "rounds", "times", "why"), rows[:MOST_ROWS], caption="Incidents", wide=("why",)
    )
    return section


def _rounds(numbers: list[int]) -> str:
    """Rounds as ranges: 1–5, 8."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    shown = [str(first) if first == last else f"{first}–{last}" for first, last in ranges[:12]]
    return ", ".join(shown) + (" …" if len(ranges) > 12 else "")


def _settings(record: RunRecord) -> Section:
    section = Section("settings-section", "Settings")
    rows = [
        (key, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
        for key, value in flatten(record.config).items()
        # Paths are of the machine the run was made on, and this page is made to be passed on.
        if key not in ("out", "cache", "data.path", "encoder.weights")
    ]
    versions = record.about.get("versions", {})
    if isinstance(versions, dict):
        rows += [(f"version of {name}", str(value)) for name, value in versions.items()]
    listed = table(("setting", "value"), rows, caption="Settings", wide=("value",))
    section.body = f"<details id=all-settings><summary>All settings and versions</summary>{listed}</details>"
    return section
