"""The page as one file: text, style, script, plotting library and data; it asks the network for nothing."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from importlib.resources import files

from server.report.palette import DARK, DARK_SCALE, LIGHT, LIGHT_SCALE
from server.report.record import RunRecord
from server.report.script import SCRIPT
from server.report.sections import sections
from server.report.style import style_sheet

# What the style sheet knows; anything else in a log is not written into the page's markup.
_ENDS = ("finished", "interrupted", "failed")


def page(records: Sequence[RunRecord], *, stamp: str | None = None, pause: float = 2.0) -> str:
    """Return the whole page about the first run, compared with the others.

    A `stamp` makes it follow a growing run: it asks its server every `pause` seconds for what is newer than that.
    """
    packed, digest = _plotly()
    themes = {"light": LIGHT | {"scale": LIGHT_SCALE}, "dark": DARK | {"scale": DARK_SCALE}}
    # Even a text that slipped through unescaped could not run: only these two scripts may, known by their hashes.
    scripts = f"'sha256-{_sha256(SCRIPT)}' 'sha256-{digest}'"
    connect = "'self'" if stamp is not None else "'none'"
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    live = (
        f'<p id="live" role="status" data-stamp="{escape(stamp)}" data-pause="{pause * 1000:.0f}">Live.</p>'
        if stamp is not None
        else ""
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{escape(_title(records[0]))}</title><style>{style_sheet()}</style></head><body>"
        '<a class="skip" href="#summary">Skip to the summary</a>'
        f"{main_part(records)}{live}"
        f"<footer>{_footer(records[0])}</footer>"
        '<div class="tip" id="tip" role="status" hidden></div>'
        "<noscript><p>Without JavaScript there is the text of this page, but no figures.</p></noscript>"
        f'<script type="application/json" id="themes">{_json(themes)}</script>'
        f'<script type="application/octet-stream" id="plotly">{packed}</script>'
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def main_part(records: Sequence[RunRecord]) -> str:
    """Return what changes while a run grows: heading, contents, sections, and the figures' data."""
    record = records[0]
    parts = sections(records)
    links = "".join(f'<li><a href="#{part.name}">{escape(part.title)}</a></li>' for part in parts)
    body = "".join(
        f'<section id="{part.name}" aria-labelledby="{part.name}-head">'
        f'<h2 id="{part.name}-head">{escape(part.title)}</h2>{part.body}</section>'
        for part in parts
    )
    drawings = [one.drawing() for part in parts for one in part.figures]
    started = str(record.about.get("started", ""))[:16].replace("T", " ")
    outcome = record.outcome if record.outcome in _ENDS else "running"
    facts = [f'<span class="outcome {outcome}">{outcome}</span>', escape(record.name), f"seed {record.seed}"]
    facts += [escape(started)] if started else []
    return (
        f'<header><div><h1>{escape(_title(record))}</h1><p class="facts">{" · ".join(facts)}</p></div></header>'
        f'<nav aria-label="Sections"><ul>{links}</ul></nav><main>{body}</main>'
        f'<script type="application/json" id="figures">{_json(drawings)}</script>'
    )


def _title(record: RunRecord) -> str:
    kind = "" if record.planned_rounds else " (preview)"
    sites = len(record.labels) or len(record.cards)
    return f"{record.title} on {sites} site{'s' if sites != 1 else ''}{kind}"


def _footer(record: RunRecord) -> str:
    version = record.about.get("versions", {})
    named = escape(str(version.get("coterie", ""))) if isinstance(version, dict) else ""
    return (
        f"Made by Coterie {named} from the run directory “{escape(record.name)}” alone. It shows no image, no "
        "file name and no prediction: only what the sites sent. Figures drawn with plotly.js (MIT licence)."
    )


def _json(value: object) -> str:
    # "<" could end the script element, whatever the text around it.
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


@lru_cache(maxsize=1)
def _plotly() -> tuple[str, str]:
    """The plotting library, compressed and in base64, and its hash: a third of its size."""
    # Read as a file of the package: importing plotly itself would take longer than making the page.
    source = files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")
    packed = gzip.compress(source.encode("utf-8"), compresslevel=9, mtime=0)
    return base64.b64encode(packed).decode("ascii"), _sha256(source)
