"""What left each site: as it arrived here, and, where a site's ledger is at hand, as the site itself noted it."""

from __future__ import annotations

from common.collaboration import Collaboration
from common.head_change import HeadChange
from common.head_path import HeadPath
from common.mean_feature import MeanFeature
from common.readable import megabytes
from common.signature import Signature
from common.subspace import Subspace
from common.whole_path import WholePath
from server.report.course_figures import STAGES
from server.report.markup import Cell, paragraph, table
from server.report.record import Noted, RunRecord
from server.report.section import MOST_ROWS, Section

FINGERPRINTS = {
    Signature.kind: "one mean embedding per class, with class shares and scatter",
    MeanFeature.kind: "one mean embedding of all samples",
    HeadPath.kind: "how a network's last layer moves in a warm-up",
    WholePath.kind: "how a whole network moves in a warm-up",
    HeadChange.kind: "how a network's last layer changes in a warm-up",
    Subspace.kind: "the main directions of each class",
    Collaboration.kind: "every row through a map that only the site knows, with its label",
}
_INTRODUCTION = "the site's name, sample counts of its classes, number of unusable files"
_TESTED = "of its own test part a confusion matrix, histograms of scores and the loss"
_HIDDEN = f"a masked update of the model with its sample count: only sums are ever seen; {_TESTED}"
_TOLD = {
    "start": "what the method needs to start",
    "rehearse": "linear heads trained on the encoder, and the loss of each on samples that were left out",
    "agree": "public keys and shares of secrets, from which masks are made",
    "train": f"an update of the model with its sample count and training loss; {_TESTED}",
    "open": "shares of the masks of sites that were lost",
    "group": "an update from a short training, by which the method groups sites",
    "confirm": "a fresh fingerprint, because the site was suspected to have drifted",
    "solve": "nothing: the coordinator computes",
    "evaluate": _TESTED,
    "personalise": "how the site's own model does on its test part",
    "keep": "that the final model is on the site's disk, or why not",
}


def leaving_section(record: RunRecord) -> Section:
    """What each site sent, by stage, and beside it what its ledger says."""
    section = Section("leaving-section", "What left each site")
    stages = [stage for stage in STAGES if any(stage in one for one in record.traffic.values())]
    section.body = paragraph(
        "Bytes of the arrays that arrived here, and how many answers they came in. Images, file names and predictions "
        "of single samples are in none of them."
    )
    section.body += table(
        ("stage", "what a site sends"),
        [(STAGES[stage], _told(stage, record)) for stage in stages],
        caption="What a site sends in each stage",
        wide=("what a site sends",),
    )
    columns = ["site", *(STAGES[stage] for stage in stages), "in all", "answers"]
    rows: list[list[Cell]] = []
    for name, spoken in sorted(record.traffic.items()):
        of_stage: list[Cell] = [megabytes(spoken[stage].received) if stage in spoken else "–" for stage in stages]
        total, answers = sum(one.received for one in spoken.values()), sum(one.replies for one in spoken.values())
        rows.append([name, *of_stage, megabytes(total), answers])
    if record.noted:
        columns += ["answers in its ledger", "bytes in its ledger", "declined", "last line of its ledger"]
        for row in rows:
            noted = record.noted.get(str(row[0]))
            row.extend([None, "–", None, "–"] if noted is None else _own(noted))
        section.body += paragraph(
            "The last columns are from the ledgers that sites keep of themselves. A ledger also has the answers that "
            "never arrived; an answer that arrived and is not in the site's ledger would be a fault of that site."
        )
    section.body += table(columns, rows[:MOST_ROWS], caption="What left each site")
    return section


def _own(noted: Noted) -> list[Cell]:
    return [noted.answers, megabytes(noted.bytes), noted.declined, f"{noted.head[:16]}…"]


def _told(stage: str, record: RunRecord) -> str:
    if stage != "enrol":
        return (
            _HIDDEN if record.config.get("aggregate", {}).get("rule") == "secure" and stage == "train" else _TOLD[stage]
        )
    kind = record.recipe.fingerprint if record.recipe is not None else None
    return f"{_INTRODUCTION}; {FINGERPRINTS[kind]}" if kind else _INTRODUCTION
