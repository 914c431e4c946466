"""Server → site: what to do, and everything needed to do it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from pydantic import ValidationError

from common.config import SiteSettings
from common.extras import InvalidExtras, Network, Rule, check_record, expected_extras, most_bytes
from common.secure.terms import Terms
from common.state import Extras, State
from common.wire.letters import LETTERS, read_terms, write_terms
from common.wire.records import (
    EXTRA,
    VERSION,
    WireError,
    arrays_of,
    check_record_size,
    count,
    counts,
    pack_arrays,
    plain_text,
    refuse_others,
    scalars_of,
    text,
    truth,
)

_MODEL = "model"
_STAMP = re.compile(r"[0-9a-f]{0,32}")
_MOST_CHECKPOINTS = 8


@dataclass(frozen=True)
class Task:
    """What a site is asked to do.

    Attributes
    ----------
    settings, round_number, rounds
        Of the run.
    run
        The run's own stamp, the same before and after it was resumed; hexadecimal.
    rule
        How the site trains: which of `client/methods`.
    method
        How the run groups its sites, for the card of a model that the site keeps.
    group
        The site's own.
    tests
        The round whose result the model is, if it is to be tested; 0: it is not.
    accepted
        The last round in which an update of this site entered a mean; 0: none.
    checkpoints
        Rounds that the server may go back to.
    folder
        Where a simulated site keeps what it remembers. A site of its own never heeds it.
    question
        What the method asks, outside of training.
    held
        Whether what the site holds after its training is to be tested, too.
    described
        The round in which the site last described itself, as far as the server knows: it is to watch whether that
        still holds. None: it need not.
    weights
        Digest of the pretrained weights that the site enrolled with; empty: it has none, or none are needed.
    terms
        Of the secure sum that the task is a part of; None: the site's update is to be sent as it is.
    """

    settings: SiteSettings
    round_number: int
    rounds: int
    run: str = ""
    rule: str = "fedavg"
    method: str = ""
    group: int | None = None
    tests: int = 0
    accepted: int = 0
    checkpoints: tuple[int, ...] = ()
    folder: str = ""
    question: str = ""
    held: bool = False
    described: int | None = None
    weights: str = ""
    terms: Terms | None = None


def pack_task(
    task: Task,
    model: ArrayRecord | None = None,
    extras: Mapping[str, ArrayRecord] | None = None,
    letters: ArrayRecord | None = None,
) -> RecordDict:
    """Write a request; the records of arrays may be shared by the messages to several sites."""
    config = ConfigRecord(
        {
            "version": VERSION,
            "settings": task.settings.model_dump_json(),
            "round": task.round_number,
            "rounds": task.rounds,
            "run": task.run,
            "rule": task.rule,
            "method": task.method,
            "tests": task.tests,
            "accepted": task.accepted,
            "checkpoints": list(task.checkpoints),
            "folder": task.folder,
            "question": task.question,
            "held": task.held,
            "weights": task.weights,
        }
    )
    if task.group is not None:
        config["group"] = task.group
    if task.described is not None:
        config["described"] = task.described
    if task.terms is not None:
        write_terms(config, task.terms)
    content = RecordDict({"task": config})
    if model is not None:
        content[_MODEL] = model
    if letters is not None:
        content[LETTERS] = letters
    for name, record in (extras or {}).items():
        content[f"{EXTRA}{name}"] = record
    return content


def unpack_task(content: RecordDict) -> Task:
    """Read a request at the site."""
    config = scalars_of(content, "task", ConfigRecord)
    refuse_others(content, {"task", _MODEL, LETTERS}, extras=True)
    settings = _settings(text(config, "settings"))
    run = text(config, "run")
    if not _STAMP.fullmatch(run):
        raise WireError("the run's stamp must be at most 32 hexadecimal digits")
    return Task(
        settings=settings,
        round_number=count(config, "round"),
        rounds=count(config, "rounds"),
        run=run,
        rule=text(config, "rule"),
        method=plain_text(text(config, "method")) if "method" in config else "",
        group=count(config, "group") if "group" in config else None,
        tests=count(config, "tests"),
        accepted=count(config, "accepted"),
        checkpoints=counts(config, "checkpoints", _MOST_CHECKPOINTS),
        folder=text(config, "folder"),
        question=text(config, "question"),
        held=truth(config, "held"),
        described=count(config, "described") if "described" in config else None,
        weights=text(config, "weights"),
        terms=read_terms(config),
    )


# The same in every message of a run.
@lru_cache(maxsize=4)
def _settings(written: str) -> SiteSettings:
    try:
        return SiteSettings.model_validate_json(written, strict=False)
    except ValidationError as error:
        raise WireError(f"the server's settings are not valid here: {error}") from None


def unpack_model(content: RecordDict, *also: str) -> State:
    """Read the model of a message; arrays may `also` be of these types."""
    return arrays_of(content, _MODEL, *also)


def pack_extras(extras: Extras) -> dict[str, ArrayRecord]:
    """Serialise what travels beside the model."""
    return {name: pack_arrays(arrays) for name, arrays in extras.items()}


def unpack_extras(
    content: RecordDict, declared: Mapping[str, Rule], network: Network, *, complete: bool = True
) -> Extras:
    """Read what travels beside the model, in either direction; other records than those declared are refused.

    With `complete` false some may be missing: a model that is only tested needs less than one that is trained.
    """
    names = [key.removeprefix(EXTRA) for key in content if key.startswith(EXTRA)]
    extras: Extras = {}
    try:
        for name, expected in expected_extras(names, declared, network, complete=complete).items():
            # Before they are read: arrays that are too many or too large would take their memory first.
            check_record_size(content, f"{EXTRA}{name}", most_bytes(expected))
            extras[name] = arrays_of(content, f"{EXTRA}{name}")
            check_record(name, extras[name], expected)
    except InvalidExtras as error:
        raise WireError(plain_text(error)) from None
    return extras


def add_extras(content: RecordDict, extras: Extras) -> RecordDict:
    """Put what travels beside the model into a message."""
    for name, record in pack_extras(extras).items():
        content[f"{EXTRA}{name}"] = record
    return content
