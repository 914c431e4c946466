"""The registry of methods as the table of docs/methods.md."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from cli.toml_text import toml_value
from common.collaboration import Collaboration
from common.config import fields
from common.fingerprint import Fingerprint
from common.head_change import HeadChange
from common.head_path import HeadPath
from common.mean_feature import MeanFeature
from common.signature import Signature
from common.subspace import Subspace
from common.whole_path import WholePath
from common.wire import Introduction, SiteCard, pack_introduction, size
from server.methods import METHODS, Method

# What the bytes are given for: ten classes that the site all has, the packaged encoder, ResNet9's head; and for tables
# a hundred rows of 16 columns.
_CLASSES, _FEATURES, _PIXELS, _HEAD, _WARM_UP, _VECTORS = 10, 1280, 3 * 32 * 32, 512 * 10 + 10, 5, 3
_ROWS, _COLUMNS, _ANCHORS = 100, 16, 1000


def as_markdown() -> str:
    """Write the registry as the table of docs/methods.md."""
    lines = [
        "| name | family | what it does | a site sends before training | settings of its own | paper |",
        "|---|---|---|---|---|---|",
    ]
    for method in METHODS.values():
        fixed = [f"`{key} = {toml_value(value)}` (fixed)" for key, value in method.settings.items() if value != ""]
        used = [f"`{key}`" for key in method.settings_used if key not in method.settings]
        needed = ["`cluster.k`"] if method.needs_k and "cluster.k" not in method.settings_used else []
        settings = ", ".join([*fixed, *used, *needed]) or "–"
        cells = (f"`{method.name}`", method.family, method.summary, _sent(method), settings, method.paper or "–")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def as_paragraphs() -> str:
    """Write what the methods say of themselves, one paragraph each, by family."""
    lines = [
        "When to use each, what it costs, and what we found wrong elsewhere: every such defect of a baseline of the "
        "papers is a test here. What each adds to a round in seconds: [benchmarks](benchmarks.md#methods).\n"
    ]
    for family, methods in groupby(METHODS.values(), key=lambda method: method.family):
        lines += [f"### {family[0].upper()}{family[1:]}\n"]
        lines += [f"* **{method.title}** (`{method.name}`). {method.about}" for method in methods]
        lines += [""]
    return "\n".join(lines).rstrip("\n") + "\n"


def as_page(method: Method) -> str:
    """Write the method's own page of the documentation's site."""
    described = {key: field.description for key, field in fields()}
    needed = " --set cluster.k=3" if method.needs_k else ""
    if method.family == "one round":
        needed = " --set data.input=embedding"
    lines = [
        f"# {method.title}\n\n{method.summary[0].upper()}{method.summary[1:]}.\n",
        f"{method.about.replace('](', '](../')}\n",
        f"```\ncoterie simulate configs/digits.toml --set method={method.name}{needed}\n```\n",
        f"- Family: {method.family} ([all methods](../methods.md))",
        f"- A site sends before training: {_sent(method)}",
        f"- Paper: {method.paper or 'none; what the others are compared with'}",
    ]
    fixed = [f"| `{key}` | fixed: `{toml_value(value)}` |" for key, value in method.settings.items() if value != ""]
    used = [f"| `{key}` | {described[key]} |" for key in method.settings_used if key not in method.settings]
    if fixed or used:
        lines += ["\n## Settings of its own\n", "| setting | meaning |", "|---|---|", *fixed, *used]
    return "\n".join(lines) + "\n"


def _sent(method: Method) -> str:
    if method.fingerprint is None:
        return "its name and counts"
    example = _example(method)
    what = _WORDS.get(method.fingerprint, method.fingerprint)
    return what if example is None else f"{what}: {_bytes(example):,} bytes"


_WORDS = {
    Signature.kind: "one mean embedding per class and the class shares",
    HeadPath.kind: "what each warm-up epoch changes in the head",
    WholePath.kind: "what each warm-up epoch changes in the whole network",
    HeadChange.kind: "what the warm-up changes in the head",
    MeanFeature.kind: "one mean embedding",
    Subspace.kind: "directions of each class",
    Collaboration.kind: "its rows and the anchors through a private map, and the labels",
}


def _example(method: Method) -> Fingerprint | None:
    length = _PIXELS if method.settings.get("encoder.name") == "pixels" else _FEATURES
    match method.fingerprint:
        case Signature.kind:
            shares = np.full(_CLASSES, 1 / _CLASSES)
            return Signature(np.arange(_CLASSES), np.zeros((_CLASSES, length), np.float32), shares)
        case HeadPath.kind:
            return HeadPath(np.zeros((_WARM_UP, _HEAD), np.float32))
        case HeadChange.kind:
            return HeadChange(np.zeros(_HEAD, np.float32))
        case MeanFeature.kind:
            return MeanFeature(np.zeros(512 if method.settings else length, np.float32))
        case Subspace.kind:
            return Subspace(np.eye(length, _VECTORS * _CLASSES, dtype=np.float32))
        case Collaboration.kind:
            rows, anchors = np.ones((_ROWS, _COLUMNS - 1), np.float32), np.ones((_ANCHORS, _COLUMNS - 1), np.float32)
            digest, labels, validates = np.zeros(32, np.uint8), np.zeros(_ROWS, np.int64), np.zeros(_ROWS, np.uint8)
            return Collaboration(rows, labels, validates, anchors, digest, digest)
    return None


def _bytes(fingerprint: Fingerprint) -> int:
    card = SiteCard("site", _CLASSES, 1, (1,) * _CLASSES, 0, ())
    return size(pack_introduction(Introduction(card, fingerprint, 0.0)))
