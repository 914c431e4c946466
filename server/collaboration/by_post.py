"""The server's side of a single round without a network: bundles in, answers out, and the run directory as ever."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

from flwr.app import ConfigRecord, RecordDict

from common import wire
from common.bundle import InvalidBundle, Verify, read_bundle, write_bundle
from common.classes import agreed_classes
from common.collaboration import Collaboration
from common.config import Config, SettingsError, SiteSettings
from server.collaboration.one_round import answer_message, answers_of, find_groups
from server.history.events import Audience, RoundFinished, RunEnded, RunStarted, SiteEnrolled, SiteLeftOut, StageStarted
from server.methods import Method
from server.roster import common_form
from server.rounds.testing import UNKNOWN

ANSWERS = "answers"


def settings_digest(settings: SiteSettings) -> str:
    """What tells whether two sides were given the same settings; where things lie on a disk does not matter."""
    data = settings.data.model_copy(update={"path": "", "classes": agreed_classes(settings.data)})
    return hashlib.sha256(
        settings.model_copy(update={"cache": "", "data": data}).model_dump_json().encode()
    ).hexdigest()


def solve_bundles(
    config: Config, method: Method, bundles: Sequence[Path], directory: Path, audience: Audience, verify: Verify | None
) -> list[Path]:
    """Learn from the bundles of all sites and write an answer for each; return the answers' paths."""
    audience.tell(RunStarted(config))
    try:
        offers = _offers(config, bundles, audience, verify)
        found = find_groups(offers, config, method, audience)
        groups = {offer.card.name: label for offer, label in zip(offers, found.labels.tolist(), strict=True)}
        folder = directory / ANSWERS
        folder.mkdir(exist_ok=True)
        written = []
        for name, answer in answers_of(found, offers).items():
            written.append(folder / f"{name}.answer")
            task = wire.Task(config.for_site(), 1, 1, method=config.method, group=groups[name])
            write_bundle(written[-1], "answer", name, answer_message(task, answer))
    except Exception as error:
        audience.tell(RunEnded("failed", f"{type(error).__name__}: {error}"))
        raise
    # How well it does is known at the sites alone.
    audience.tell(
        RoundFinished(
            round_number=1,
            overall=UNKNOWN,
            groups={},
            sites={},
            labels=groups,
            mean_site_accuracy=math.nan,
            worst_tenth_accuracy=math.nan,
            train_loss=math.nan,
            models=found.models,
        )
    )
    audience.tell(RunEnded("finished", ""))
    return written


def _offers(
    config: Config, bundles: Sequence[Path], audience: Audience, verify: Verify | None
) -> list[wire.Introduction]:
    """Read and screen the bundles; who sent a bad one is named and left out."""
    audience.tell(StageStarted("enrol", 0, len(bundles)))
    found: dict[str, wire.Introduction] = {}
    reasons = []

    def leave_out(who: str, reason: str) -> None:
        reasons.append(f"{who}: {reason}")
        audience.tell(SiteLeftOut("enrol", 0, who, reason))

    for path in sorted(bundles):
        try:
            introduction = _introduction(config, path, verify)
        except (InvalidBundle, wire.WireError) as error:
            leave_out(path.name, str(error))
            continue
        name = introduction.card.name
        if name in found:
            leave_out(path.name, f"there is another bundle of site {name!r}: give one of each")
            continue
        found[name] = introduction
    offers = {
        name: one.fingerprint for name, one in sorted(found.items()) if isinstance(one.fingerprint, Collaboration)
    }
    usual = common_form(dict(offers)) if offers else ""
    for name, offer in list(offers.items()):
        if offer.form == usual:
            audience.tell(SiteEnrolled(found[name].card, late=False))
        else:
            del offers[name]
            leave_out(name, f"{offer.form} where the others have {usual}; all sites need {offer.agreement}")
    if not offers:
        raise SettingsError(f"no bundle can be used: {'; '.join(reasons[:3]) or 'none was given'}")
    return [found[name] for name in offers]


def _introduction(config: Config, path: Path, verify: Verify | None) -> wire.Introduction:
    site, content = read_bundle(path, Collaboration.kind, limit_mb=config.round.max_message_mb, verify=verify)
    introduction = wire.unpack_introduction(
        content,
        classes=len(agreed_classes(config.data)),
        fingerprint=Collaboration.kind,
        limit_mb=config.round.max_message_mb,
    )
    if introduction.card.name != site:
        raise InvalidBundle(f"it is labelled {site!r} and speaks for {introduction.card.name!r}")
    if _stated_digest(content) != settings_digest(config.for_site()):
        raise InvalidBundle("it was made with other settings than these: all sides need the same configuration")
    return introduction


def _stated_digest(content: RecordDict) -> object:
    record = content.get("export")
    return record.get("settings") if isinstance(record, ConfigRecord) else None
