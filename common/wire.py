"""Flower records ↔ typed values, checked on arrival. The only file that knows record keys.

Whatever arrives is foreign: its version, types, shapes, ranges, finiteness and size are checked before anything is
computed with it, and `WireError` says in words what was wrong, so that the sender can be named and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args

import numpy as np
import safetensors.numpy
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors import SafetensorError

from common.collaboration import DIGEST_BYTES, Collaboration
from common.config import SiteSettings
from common.fingerprint import Fingerprint
from common.head_path import HeadPath
from common.kept_model import Kept
from common.mean_feature import MeanFeature
from common.metrics import EvaluationStatistics, InvalidStatistics, check
from common.models import State
from common.signature import InvalidSignature, Signature
from common.site_name import RULE, is_site_name
from common.subspace import Subspace
from common.tensors import contiguous

VERSION = 3

_DTYPES = ("float32", "float64", "int64", "uint8")
_PACKED = "safetensors"
_LONGEST_HEADER = 1_000_000  # bytes; about a hundred for a tensor, which take thirty times that when they are read
_LONGEST_NAME = 200
_MAX_DIMENSION = 65_536
_MAX_FAULTS_NAMED = 20
_MAX_REASON = 500
_MAX_LOSS = 1e9
_MEGABYTE = 1_000_000


KEPT: tuple[str, ...] = get_args(Kept)


class WireError(ValueError):
    """A message that does not say what it should; the text names the fault."""


@dataclass(frozen=True)
class Task:
    """Server → site: what to do, and everything needed to do it.

    `objective` is what training minimises; `group` goes with a model that a site may keep.
    """

    settings: SiteSettings
    round_number: int
    rounds: int
    objective: str = "plain"
    group: int | None = None


@dataclass(frozen=True)
class SiteCard:
    """Site → server, with its first answer: who it is, how much data it has, whether it wants to keep a model."""

    name: str
    train_samples: int
    test_samples: int
    class_counts: tuple[int, ...]
    fault_count: int
    faults: tuple[str, ...]
    keeps: bool = False


@dataclass(frozen=True)
class Introduction:
    """Site → server, before training: its card and, where the method asks for one, its fingerprint."""

    card: SiteCard
    fingerprint: Fingerprint | None
    seconds: float


@dataclass(frozen=True)
class Update:
    """Site → server, after local training; `choice` is the place of the trained model among those that were offered."""

    state: State
    samples: int
    loss: float
    seconds: float
    choice: int = 0


@dataclass(frozen=True)
class Losses:
    """Site → server: mean loss on the site's training samples under each of the models that were sent, float64[K]."""

    values: NDArray[np.float64]
    seconds: float


@dataclass(frozen=True)
class Evaluation:
    """Site → server: sufficient statistics of the site's own test split; no prediction leaves the site.

    `kept` is the model that was tested, one of `KEPT`; `stored`: the site has it on its own disk now, for good.
    """

    statistics: EvaluationStatistics
    seconds: float
    kept: str = "group"
    stored: bool = False


@dataclass(frozen=True)
class Answer:
    """Server → site, once: how its representation becomes comparable, and the model of its group (DC-CFL).

    Attributes
    ----------
    mapping : float64[m̃ + 1, k]
        G_i; its last row is an offset.
    ticket : uint8[32]
        Of the private map that the site sent its rows through.
    model
        h, a network on k columns.
    """

    mapping: NDArray[np.float64]
    ticket: NDArray[np.uint8]
    model: State


def plain_text(value: object) -> str:
    """Foreign text, cut and without control characters: it is shown in terminals and logs."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(value)[:_MAX_REASON])


def size(content: RecordDict) -> int:
    """Bytes of all arrays in a message."""
    return sum(
        len(array.data) for record in content.values() if isinstance(record, ArrayRecord) for array in record.values()
    )


# --- server → site ---------------------------------------------------------------------------------------------


def pack_task(task: Task, *models: ArrayRecord) -> RecordDict:
    """Write a request; a model record may be shared by all members of a group. Of several the site chooses one."""
    config = ConfigRecord(
        {
            "version": VERSION,
            "settings": task.settings.model_dump_json(),
            "round": task.round_number,
            "rounds": task.rounds,
            "objective": task.objective,
        }
    )
    if task.group is not None:
        config["group"] = task.group
    content = RecordDict({"task": config})
    for place, model in enumerate(models):
        content[_model_key(place)] = model
    return content


def _model_key(place: int) -> str:
    return f"model {place}" if place else "model"


def unpack_task(content: RecordDict) -> Task:
    """Read a request at the site."""
    config = _scalars(content, "task", ConfigRecord)
    _check_version(config)
    try:
        settings = SiteSettings.model_validate_json(_text(config, "settings"), strict=False)
    except ValidationError as error:
        raise WireError(f"the server's settings are not valid here: {error}") from None
    group = _count(config, "group") if "group" in config else None
    return Task(settings, _count(config, "round"), _count(config, "rounds"), _text(config, "objective"), group)


def unpack_model(content: RecordDict) -> State:
    """Read the model of a message."""
    return unpack_arrays(_arrays(content, "model"))


def pack_answer(task: Task, answer: Answer) -> RecordDict:
    """Write the answer to a collaboration."""
    content = pack_task(task, pack_arrays(answer.model))
    content["answer"] = pack_arrays({"mapping": answer.mapping, "ticket": answer.ticket})
    return content


def unpack_answer(content: RecordDict) -> Answer:
    """Read the answer at the site; whether it fits the site's private map is found out there."""
    arrays = unpack_arrays(_arrays(content, "answer"))
    if set(arrays) != {"mapping", "ticket"}:
        raise WireError(f"an answer has a mapping and a ticket, not {', '.join(sorted(arrays)) or 'nothing'}")
    mapping, ticket = arrays["mapping"], arrays["ticket"]
    if mapping.dtype != np.float64 or mapping.ndim != 2 or mapping.size == 0 or not np.isfinite(mapping).all():
        raise WireError("the mapping must be a finite matrix of float64")
    if ticket.dtype != np.uint8 or ticket.shape != (DIGEST_BYTES,):
        raise WireError(f"the ticket must have {DIGEST_BYTES} bytes")
    model = unpack_model(content)
    if not all(np.isfinite(array).all() for array in model.values()):
        raise WireError("the model of the answer is not finite: its training diverged, perhaps by train.lr")
    return Answer(mapping, ticket, model)


def unpack_models(content: RecordDict) -> list[State]:
    """Read all models of a message, at least one, in the order in which they were offered."""
    models = [unpack_model(content)]
    while (key := _model_key(len(models))) in content:
        models.append(unpack_arrays(_arrays(content, key)))
    return models


# --- site → server ---------------------------------------------------------------------------------------------


def pack_refusal(reason: str) -> RecordDict:
    """Say why a request cannot be served."""
    return RecordDict({"refusal": ConfigRecord({"version": VERSION, "reason": reason[:_MAX_REASON]})})


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
                    "seconds": introduction.seconds,
                }
            )
        }
    )
    fingerprint = introduction.fingerprint
    if fingerprint is not None:
        pack, _ = _FINGERPRINTS[fingerprint.kind]
        content[fingerprint.kind] = pack_arrays(pack(fingerprint))
    return content


def unpack_introduction(content: RecordDict, *, classes: int, fingerprint: str | None, limit_mb: int) -> Introduction:
    """Read a site's answer to the query before training.

    `classes` is the length of the agreed list, `fingerprint` the kind that was asked for; None: none was.
    """
    _check_size(content, limit_mb)
    config = _scalars(content, "site", ConfigRecord)
    _check_version(config)
    name = _text(config, "name")
    if not is_site_name(name):
        raise WireError(f"site name {name[:80]!r} must be {RULE}")
    counts = config.get("class_counts")
    if not isinstance(counts, list) or len(counts) != classes:
        raise WireError(f"class counts must be a list of {classes} numbers")
    if not all(type(count) is int and count >= 0 for count in counts):
        raise WireError("class counts must be whole numbers ≥ 0")
    faults = config.get("faults", [])
    if not isinstance(faults, list):
        raise WireError("the list of faulty files is not a list")
    card = SiteCard(
        name=name,
        train_samples=_count(config, "train_samples", at_least=1),
        test_samples=_count(config, "test_samples"),
        class_counts=tuple(int(count) for count in counts),
        fault_count=_count(config, "fault_count"),
        faults=tuple(plain_text(fault) for fault in faults[:_MAX_FAULTS_NAMED]),
        keeps=_truth(config, "keeps"),
    )
    if sum(card.class_counts) != card.train_samples:
        raise WireError(f"class counts sum to {sum(card.class_counts)}, not to {card.train_samples} training samples")
    described = None if fingerprint is None else _unpack_fingerprint(content, fingerprint, card)
    return Introduction(card, described, _number(config, "seconds"))


def _unpack_fingerprint(content: RecordDict, kind: str, card: SiteCard) -> Fingerprint:
    if kind not in content:
        other = next((other for other in _FINGERPRINTS if other in content), None)
        raise WireError(f"the message carries no {kind}" + (f" but a {other}" if other else ""))
    _, unpack = _FINGERPRINTS[kind]
    return unpack(unpack_arrays(_arrays(content, kind)), card)


def _signature_arrays(signature: Signature) -> State:
    return {"classes": signature.classes, "prototypes": signature.prototypes, "shares": signature.shares}


def _signature(arrays: State, card: SiteCard) -> Signature:
    if set(arrays) != {"classes", "prototypes", "shares"}:
        raise WireError(f"a signature has classes, prototypes and shares, not {', '.join(sorted(arrays)) or 'nothing'}")
    try:
        signature = Signature(**arrays)
    except InvalidSignature as error:
        raise WireError(f"signature: {error}") from None
    if signature.dimension > _MAX_DIMENSION:
        raise WireError(f"signature: {signature.dimension} dimensions, at most {_MAX_DIMENSION} are allowed")
    if signature.classes[-1] >= len(card.class_counts):
        raise WireError(
            f"signature: class {int(signature.classes[-1])} is not among the {len(card.class_counts)} agreed classes"
        )
    shares = np.array(card.class_counts) / card.train_samples
    present = np.flatnonzero(shares)
    if not np.array_equal(signature.classes, present) or not np.allclose(signature.shares, shares[present]):
        raise WireError("signature: its classes and shares are not those of the class counts")
    return signature


def _reader(kind: type[Fingerprint]) -> Callable[[State, SiteCard], Fingerprint]:
    """Read a fingerprint whose own type checks all there is to check."""
    names = [field.name for field in fields(kind)]

    def read(arrays: State, card: SiteCard) -> Fingerprint:
        if set(arrays) != set(names):
            raise WireError(f"a {kind.kind} has {', '.join(names)}, not {', '.join(sorted(arrays)) or 'nothing'}")
        try:
            return kind(**arrays)
        except ValueError as error:
            raise WireError(f"{kind.kind}: {error}") from None

    return read


def _collaboration(arrays: State, card: SiteCard) -> Collaboration:
    collaboration = _reader(Collaboration)(arrays, card)
    assert isinstance(collaboration, Collaboration)
    classes, highest = len(card.class_counts), int(collaboration.labels.max())
    # Before they are counted: there would be a counter for every number up to the highest label.
    if highest >= classes:
        raise WireError(f"collaboration: label {highest} is not among the {classes} classes")
    # Rows may have been averaged, so there may be fewer of a class than the site has, but never more.
    if (np.bincount(collaboration.labels, minlength=classes) > np.array(card.class_counts)).any():
        raise WireError("collaboration: more rows of a class than the class counts say")
    return collaboration


# Kind of fingerprint, which is also the key of its record → how it is written as arrays, how it is read and checked.
_FINGERPRINTS: dict[str, tuple[Callable[[Any], State], Callable[[State, SiteCard], Fingerprint]]] = {
    Signature.kind: (_signature_arrays, _signature),
    HeadPath.kind: (vars, _reader(HeadPath)),
    MeanFeature.kind: (vars, _reader(MeanFeature)),
    Subspace.kind: (vars, _reader(Subspace)),
    Collaboration.kind: (vars, _collaboration),
}


def pack_update(update: Update) -> RecordDict:
    """Write the result of local training."""
    return RecordDict(
        {
            "model": pack_arrays(update.state),
            "training": MetricRecord(
                {
                    "version": VERSION,
                    "samples": update.samples,
                    "loss": update.loss,
                    "seconds": update.seconds,
                    "choice": update.choice,
                }
            ),
        }
    )


def unpack_update(content: RecordDict, *, limit_mb: int, offered: int = 1) -> Update:
    """Read the result of local training on one of the `offered` models.

    Whether the arrays fit the model is screened by `server.aggregation`.
    """
    _check_size(content, limit_mb)
    metrics = _scalars(content, "training", MetricRecord)
    _check_version(metrics)
    choice = _count(metrics, "choice")
    if choice >= offered:
        raise WireError(f"it trained model {choice} of {offered} that were offered, counted from 0")
    return Update(
        state=unpack_model(content),
        samples=_count(metrics, "samples", at_least=1),
        loss=_number(metrics, "loss", at_most=_MAX_LOSS),
        seconds=_number(metrics, "seconds"),
        choice=choice,
    )


def pack_losses(losses: Losses) -> RecordDict:
    """Write how well each of the models that were sent fits the site."""
    return RecordDict(
        {
            "losses": pack_arrays({"values": losses.values}),
            "fit": MetricRecord({"version": VERSION, "seconds": losses.seconds}),
        }
    )


def unpack_losses(content: RecordDict, *, models: int, limit_mb: int) -> Losses:
    """Read a site's losses under `models` models."""
    _check_size(content, limit_mb)
    metrics = _scalars(content, "fit", MetricRecord)
    _check_version(metrics)
    values = unpack_arrays(_arrays(content, "losses")).get("values")
    if values is None or values.dtype != np.float64 or values.shape != (models,):
        raise WireError(f"losses must be float64 of shape ({models},)")
    # A loss that is not a number fits nobody; infinity says the same and can be compared.
    return Losses(np.where(values >= 0, values, np.inf), _number(metrics, "seconds"))


def pack_evaluation(evaluation: Evaluation) -> RecordDict:
    """Write the statistics of a site's test split."""
    statistics = evaluation.statistics
    return RecordDict(
        {
            "statistics": pack_arrays({"confusion": statistics.confusion, "histograms": statistics.histograms}),
            "evaluation": MetricRecord(
                {
                    "version": VERSION,
                    "loss_sum": statistics.loss_sum,
                    "seconds": evaluation.seconds,
                    "kept": KEPT.index(evaluation.kept),
                    "stored": int(evaluation.stored),
                }
            ),
        }
    )


def unpack_evaluation(content: RecordDict, *, classes: int, limit_mb: int) -> Evaluation:
    """Read the statistics of a site's test split."""
    _check_size(content, limit_mb)
    metrics = _scalars(content, "evaluation", MetricRecord)
    _check_version(metrics)
    arrays = unpack_arrays(_arrays(content, "statistics"))
    if set(arrays) != {"confusion", "histograms"}:
        raise WireError(f"statistics are confusion and histograms, not {', '.join(sorted(arrays)) or 'nothing'}")
    loss_sum = _number(metrics, "loss_sum", at_most=_MAX_LOSS * 2**31)
    statistics = EvaluationStatistics(**arrays, loss_sum=loss_sum)
    try:
        check(statistics, classes)
    except InvalidStatistics as error:
        raise WireError(f"statistics: {error}") from None
    kept = _count(metrics, "kept")
    if kept >= len(KEPT):
        raise WireError(f"it kept model {kept}, which is none of {', '.join(KEPT)}")
    stored = metrics.get("stored", 0)
    if stored not in (0, 1):
        raise WireError(f"stored must be 0 or 1, not {stored!r}")
    return Evaluation(statistics, _number(metrics, "seconds"), KEPT[kept], stored == 1)


def pack_kept(seconds: float) -> RecordDict:
    """Say that the final model is on the site's disk. Where, is nobody else's business."""
    return RecordDict({"kept": MetricRecord({"version": VERSION, "seconds": seconds})})


def unpack_kept(content: RecordDict, *, limit_mb: int) -> float:
    """Read that a site keeps its model; return the seconds it took."""
    _check_size(content, limit_mb)
    metrics = _scalars(content, "kept", MetricRecord)
    _check_version(metrics)
    return _number(metrics, "seconds")


# --- arrays ----------------------------------------------------------------------------------------------------


def pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Serialise named arrays, all as one for Flower.

    It sends, stores and books every array by itself, twice: a network of 60 tensors would be 120 requests per site and
    stage, each with a transaction of the SuperLink's database, which twenty sites then lock for each other.
    """
    data = safetensors.numpy.save({name: contiguous(array) for name, array in arrays.items()})
    return ArrayRecord({_PACKED: Array("uint8", (len(data),), _PACKED, data)})


def _arrays(content: RecordDict, key: str) -> ArrayRecord:
    # Not `content.array_records`: that view refers back to the content and keeps a whole reply alive until the next
    # garbage collection.
    record = content.get(key)
    if not isinstance(record, ArrayRecord):
        raise WireError(f"the message carries no {key}")
    return record


def unpack_arrays(record: ArrayRecord) -> State:
    """Deserialise named arrays; the library holds what their header says against the bytes that are there."""
    if set(record) != {_PACKED}:
        raise WireError("its arrays are not packed as agreed: update the older side")
    data = record[_PACKED].data
    if int.from_bytes(data[:8], "little") > _LONGEST_HEADER:
        raise WireError("its arrays are too many, or not readable")
    try:
        arrays = safetensors.numpy.load(data)
    except (SafetensorError, ValueError, KeyError) as error:  # KeyError: of a type that NumPy does not have
        raise WireError(f"its arrays are truncated or not readable: {plain_text(error)}") from None
    for name, array in arrays.items():
        if len(name) > _LONGEST_NAME or not name.isprintable():
            raise WireError(f"array {plain_text(name[:_LONGEST_NAME])!r} has no proper name")
        if array.dtype not in _DTYPES:
            raise WireError(f"array {name!r} is {array.dtype}, not one of {', '.join(_DTYPES)}")
    return arrays


# --- scalars ---------------------------------------------------------------------------------------------------

_Scalars = Mapping[str, object]


def _scalars(content: RecordDict, key: str, kind: type[ConfigRecord] | type[MetricRecord]) -> _Scalars:
    _raise_refusal(content)
    record = content.get(key)
    if not isinstance(record, kind):
        raise WireError(f"the message carries no {key!r} record")
    return record


def _raise_refusal(content: RecordDict) -> None:
    refusal = content.get("refusal")
    if isinstance(refusal, ConfigRecord):
        raise WireError(plain_text(refusal.get("reason", "no reason given")))


def _check_size(content: RecordDict, limit_mb: int) -> None:
    total = size(content)
    if total > limit_mb * _MEGABYTE:
        raise WireError(
            f"{total / _MEGABYTE:.1f} MB of arrays, at most {limit_mb} MB are allowed (round.max_message_mb)"
        )


def _check_version(record: _Scalars) -> None:
    version = record.get("version")
    if version != VERSION:
        raise WireError(f"wire format version {version!r}, this side speaks {VERSION}: update the older side")


def _text(record: _Scalars, key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        raise WireError(f"{key} must be text, not {value!r}")
    return value


def _truth(record: _Scalars, key: str) -> bool:
    value = record.get(key, False)
    if not isinstance(value, bool):
        raise WireError(f"{key} must be true or false, not {value!r}")
    return value


def _count(record: _Scalars, key: str, at_least: int = 0) -> int:
    value = record.get(key)
    if type(value) is not int or not at_least <= value < 2**31:
        raise WireError(f"{key} must be a whole number ≥ {at_least}, not {value!r}")
    return value


def _number(record: _Scalars, key: str, at_most: float = 1e15) -> float:
    # Bounded, because sums of foreign numbers must not overflow.
    value = record.get(key)
    if type(value) not in (int, float) or not 0 <= value <= at_most:  # type: ignore[operator]
        raise WireError(f"{key} must be a number from 0 to {at_most:g}, not {value!r}")
    return float(value)  # type: ignore[arg-type]
