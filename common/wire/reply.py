"""Site → server: what became of a task."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from flwr.app import ConfigRecord, MetricRecord, RecordDict

from common.config import Precision
from common.extras import Network, Rule
from common.kept_model import Kept
from common.metrics import EvaluationStatistics, InvalidStatistics, check
from common.secure.terms import MASKED
from common.site_card import Spending
from common.state import Extras, State
from common.wire.precision import FULL
from common.wire.records import (
    MAX_REASON,
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
)
from common.wire.spending import pack_spending, unpack_spending
from common.wire.task import add_extras, unpack_extras, unpack_model

KEPT: tuple[str, ...] = get_args(Kept)
_MAX_LOSS = 1e9
_MOST_DEVIATIONS = 1000.0
# Records of a round: of the training, of the test, or why one of them is missing.
_ROUND = {"model", "training", "statistics", "evaluation", "untested", "refusal"}


@dataclass(frozen=True)
class Update:
    """After local training: the tensors that travel, and what the method sends beside them.

    `fresh`: the site should have remembered something of its earlier rounds, and did not. `held`: how many samples of
    its test split, of how many, the model that it holds now names right; None: that was not asked for. `changed`: how
    many standard deviations the site's data are from what it said of them; 0: it does not say that they have changed.
    `loss` is NaN at a site with a privacy budget, where `spending` says what all that it told has cost, and in a secure
    sum.
    """

    state: State
    samples: int
    loss: float
    seconds: float
    extras: Extras = field(default_factory=dict)
    fresh: bool = False
    held: tuple[int, int] | None = None
    changed: float = 0.0
    spending: Spending | None = None


@dataclass(frozen=True)
class Evaluation:
    """Sufficient statistics of the site's own test split; no prediction leaves the site.

    `kept` is the model that was tested, one of `KEPT`; `stored`: the site has it on its own disk now, for good.
    `shared`: how many of the same samples the model that it shares with others names right, where that is another one.
    """

    statistics: EvaluationStatistics
    seconds: float
    kept: str = "group"
    stored: bool = False
    shared: int | None = None


@dataclass(frozen=True)
class Answered:
    """The answer to a question of the method."""

    extras: Extras
    seconds: float


def pack_refusal(reason: str, *, passing: bool = False) -> RecordDict:
    """Say why a request cannot be served; `passing`: perhaps it can in a while."""
    return RecordDict(
        {"refusal": ConfigRecord({"version": VERSION, "reason": reason[:MAX_REASON], "passing": passing})}
    )


def pack_untested(reason: str) -> RecordDict:
    """Say why a model could not be tested, where the rest of the request can be served."""
    return RecordDict({"untested": ConfigRecord({"version": VERSION, "reason": reason[:MAX_REASON]})})


def pack_update(update: Update) -> RecordDict:
    """Write the result of local training."""
    training = MetricRecord(
        {
            "version": VERSION,
            "samples": update.samples,
            **({} if math.isnan(update.loss) else {"loss": update.loss}),
            "seconds": update.seconds,
            "fresh": int(update.fresh),
            "changed": update.changed,
            **pack_spending(update.spending),
        }
    )
    if update.held is not None:
        training["held_right"], training["held_of"] = update.held
    return add_extras(RecordDict({"model": pack_arrays(update.state), "training": training}), update.extras)


def unpack_update(
    content: RecordDict, *, declared: Mapping[str, Rule], network: Network, limit_mb: int, precision: Precision = FULL
) -> Update:
    """Read the result of local training, with arrays of the model as they were sent.

    `lengthen` reads these; whether they fit then is screened by `server.aggregation`.
    """
    check_size(content, limit_mb)
    metrics = scalars_of(content, "training", MetricRecord)
    refuse_others(content, _ROUND, extras=True)
    spending, state = unpack_spending(metrics), unpack_model(content, precision)
    is_silent = "loss" not in metrics and (spending is not None or MASKED in state)
    return Update(
        state=state,
        samples=count(metrics, "samples", at_least=1),
        loss=math.nan if is_silent else number(metrics, "loss", at_most=_MAX_LOSS),
        seconds=number(metrics, "seconds"),
        extras=unpack_extras(content, declared, network),
        fresh=_bit(metrics, "fresh"),
        held=_held(metrics),
        changed=number(metrics, "changed", at_most=_MOST_DEVIATIONS),
        spending=spending,
    )


def _held(metrics: Mapping[str, object]) -> tuple[int, int] | None:
    if "held_of" not in metrics:
        return None
    right, of = count(metrics, "held_right"), count(metrics, "held_of")
    if right > of:
        raise WireError(f"it names {right} of {of} test samples right")
    return right, of


def pack_answered(answer: Answered) -> RecordDict:
    """Write the answer to a question of the method."""
    answered = MetricRecord({"version": VERSION, "seconds": answer.seconds})
    return add_extras(RecordDict({"answer": answered}), answer.extras)


def unpack_answered(content: RecordDict, *, declared: Mapping[str, Rule], network: Network, limit_mb: int) -> Answered:
    """Read the answer to a question of the method."""
    check_size(content, limit_mb)
    metrics = scalars_of(content, "answer", MetricRecord)
    refuse_others(content, {"answer"}, extras=True)
    return Answered(unpack_extras(content, declared, network), number(metrics, "seconds"))


def pack_evaluation(evaluation: Evaluation) -> RecordDict:
    """Write the statistics of a site's test split."""
    statistics = evaluation.statistics
    shared = {} if evaluation.shared is None else {"shared_right": evaluation.shared}
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
                    **shared,
                }
            ),
        }
    )


def unpack_evaluation(content: RecordDict, *, classes: int, limit_mb: int) -> Evaluation:
    """Read the statistics of a site's test split."""
    check_size(content, limit_mb)
    if isinstance(untested := content.get("untested"), ConfigRecord):
        raise WireError(plain_text(untested.get("reason", "no reason given")))
    metrics = scalars_of(content, "evaluation", MetricRecord)
    # What belongs to the training of the same round is refused when that is read.
    refuse_others(content, _ROUND, extras="training" in content)
    arrays = arrays_of(content, "statistics")
    if set(arrays) != {"confusion", "histograms"}:
        raise WireError(f"statistics are confusion and histograms, not {', '.join(sorted(arrays)) or 'nothing'}")
    loss_sum = number(metrics, "loss_sum", at_most=_MAX_LOSS * 2**31)
    statistics = EvaluationStatistics(**arrays, loss_sum=loss_sum)
    try:
        check(statistics, classes)
    except InvalidStatistics as error:
        raise WireError(f"statistics: {error}") from None
    kept = count(metrics, "kept")
    if kept >= len(KEPT):
        raise WireError(f"it kept model {kept}, which is none of {', '.join(KEPT)}")
    shared = count(metrics, "shared_right") if "shared_right" in metrics else None
    if shared is not None and shared > statistics.confusion.sum():
        raise WireError(f"the shared model names {shared} of {int(statistics.confusion.sum())} test samples right")
    return Evaluation(statistics, number(metrics, "seconds"), KEPT[kept], _bit(metrics, "stored"), shared)


def pack_kept(seconds: float) -> RecordDict:
    """Say that the final model is on the site's disk. Where, is nobody else's business."""
    return RecordDict({"kept": MetricRecord({"version": VERSION, "seconds": seconds})})


def unpack_kept(content: RecordDict, *, limit_mb: int) -> float:
    """Read that a site keeps its model; return the seconds it took."""
    check_size(content, limit_mb)
    metrics = scalars_of(content, "kept", MetricRecord)
    refuse_others(content, {"kept"})
    return number(metrics, "seconds")


def _bit(metrics: Mapping[str, object], key: str) -> bool:
    value = metrics.get(key, 0)
    if value not in (0, 1):
        raise WireError(f"{key} must be 0 or 1, not {value!r}")
    return value == 1
