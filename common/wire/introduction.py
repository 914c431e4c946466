"""Site → server, before training: who it is and, where the method asks for one, its fingerprint."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from flwr.app import ConfigRecord, RecordDict

from common.fingerprint import KINDS, Fingerprint
from common.site_card import SiteCard, Spending
from common.site_name import RULE, is_site_name
from common.wire.records import (
    VERSION,
    WireError,
    arrays_of,
    check_size,
    count,
    number,
    pack_arrays,
    plain_text,
    refuse_others,
    scalars_of,
    text,
    truth,
)
from common.wire.spending import pack_spending, unpack_spending

_MAX_FAULTS_NAMED = 20
_DIGEST = re.compile(r"([0-9a-f]{64})?")


@dataclass(frozen=True)
class Introduction:
    """A site's card and, where the method asks for one, its fingerprint."""

    card: SiteCard
    fingerprint: Fingerprint | None
    seconds: float

    @property
    def spending(self) -> Spending | None:
        """Of the site's privacy budget."""
        return self.card.spending


def pack_introduction(introduction: Introduction) -> RecordDict:
    """Write the answer to the query before training."""
    card = introduction.card
    content = RecordDict(
        {
            "site": ConfigRecord(
                {
                    "version": VERSION,
                    "name": card.name,
                    "train_samples": card.train_samples,
                    "test_samples": card.test_samples,
                    "class_counts": list(card.class_counts),
                    "fault_count": card.fault_count,
                    "faults": list(card.faults[:_MAX_FAULTS_NAMED]),
                    "keeps": card.keeps,
                    "weights": card.weights,
                    "withheld": card.withheld,
                    **pack_spending(card.spending),
                    "seconds": introduction.seconds,
                }
            )
        }
    )
    if introduction.fingerprint is not None:
        content[introduction.fingerprint.kind] = pack_arrays(vars(introduction.fingerprint))
    return content


def unpack_introduction(content: RecordDict, *, classes: int, fingerprint: str | None, limit_mb: int) -> Introduction:
    """Read a site's answer to the query before training.

    `classes` is the length of the agreed list, `fingerprint` the kind that was asked for; None: none was.
    """
    check_size(content, limit_mb)
    config = scalars_of(content, "site", ConfigRecord)
    # By post a bundle also says with which settings it was made.
    refuse_others(content, {"site", "export", *KINDS})
    name = text(config, "name")
    if not is_site_name(name):
        raise WireError(f"site name {name[:80]!r} must be {RULE}")
    counts = config.get("class_counts")
    if not isinstance(counts, list) or len(counts) != classes:
        raise WireError(f"class counts must be a list of {classes} numbers")
    if not all(type(one) is int and one >= 0 for one in counts):
        raise WireError("class counts must be whole numbers ≥ 0")
    faults = config.get("faults", [])
    if not isinstance(faults, list):
        raise WireError("the list of faulty files is not a list")
    weights = text(config, "weights")
    if not _DIGEST.fullmatch(weights):
        raise WireError("the digest of the pretrained weights must be 64 hexadecimal digits")
    card = SiteCard(
        name=name,
        train_samples=count(config, "train_samples", at_least=1),
        test_samples=count(config, "test_samples"),
        class_counts=tuple(int(one) for one in counts),
        fault_count=count(config, "fault_count"),
        faults=tuple(plain_text(fault) for fault in faults[:_MAX_FAULTS_NAMED]),
        keeps=truth(config, "keeps"),
        weights=weights,
        withheld=count(config, "withheld") if "withheld" in config else 0,
        spending=unpack_spending(config),
    )
    if (total := sum(card.class_counts) + card.withheld) != card.train_samples:
        raise WireError(f"class counts sum to {total}, not to {card.train_samples} training samples")
    described = None if fingerprint is None else _unpack_fingerprint(content, fingerprint, card)
    return Introduction(card, described, number(config, "seconds"))


def _unpack_fingerprint(content: RecordDict, kind: str, card: SiteCard) -> Fingerprint:
    """Read a fingerprint; its own type knows what can be wrong with it, by itself or beside the card."""
    if kind not in content:
        other = next((other for other in KINDS if other in content), None)
        raise WireError(f"the message carries no {kind}" + (f" but a {other}" if other else ""))
    arrays = arrays_of(content, kind)
    names = [field.name for field in fields(KINDS[kind])]  # type: ignore[arg-type]
    if set(arrays) != set(names):
        raise WireError(plain_text(f"a {kind} has {', '.join(names)}, not {', '.join(sorted(arrays)) or 'nothing'}"))
    try:
        fingerprint = KINDS[kind](**arrays)
        fingerprint.check(card)
    except ValueError as error:
        raise WireError(f"{kind}: {error}") from None
    return fingerprint
