"""After the last round: what a site makes of the final model, and keeps."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from flwr.app import RecordDict

from client.answers.introduction import digest_of
from client.fingerprints import collaborator
from client.identity import models_folder
from client.keeping import keep_model, site_card
from client.networks import own_weights
from client.personal import Personalisation
from client.request import Request, tested
from client.training import TEST_BATCH, default_device, evaluate
from common import wire
from common.collaboration import Answer
from common.encoders import HEADS
from common.extras import InvalidExtras, Network
from common.kept_model import PRIVATE, Kept, ModelCard
from common.methods import dc_cfl
from common.metrics import EvaluationStatistics, summarise
from common.models import InvalidState, get_state
from common.networks import mlp_like
from common.prior import class_shares
from common.state import State

_log = logging.getLogger("coterie")


def keep(request: Request) -> RecordDict:
    """Keep the final model on the site's own disk."""
    start = time.perf_counter()
    folder = models_folder(request.identity)
    if folder is None:
        raise wire.WireError("this site keeps no models")
    visit = request.visit()
    method = request.method
    kept: Kept = "own" if method.agreement.shared is not None or method.common(visit) is not None else "group"
    network = visit.load(method.served(visit))
    found = tested(network, request.site, forgiving=request.discretion.is_private)
    card = own_card(request, found, kept)
    path = keep_model(folder, request.stamp, get_state(network), card)
    _log.info("the final model of group %d is kept in %s", card.group, path)
    return wire.pack_kept(time.perf_counter() - start)


def personalise(request: Request) -> RecordDict:
    """Make a model of the site's own from its group's, and test it."""
    start = time.perf_counter()
    visit = request.visit()
    group = request.method.served(visit)
    personalisation = Personalisation(
        visit.load(group), request.site, request.settings, request.task.rounds, visit.device
    )
    chosen = personalisation.choose(group, visit.start)
    network = personalisation.network(chosen)
    statistics = tested(network, request.site, forgiving=False)
    blend = chosen.weight if chosen.own is not None else None
    stored = _stored(request, lambda: (get_state(network), own_card(request, statistics, chosen.kept, blend)))
    return wire.pack_evaluation(wire.Evaluation(statistics, time.perf_counter() - start, chosen.kept, stored))


def take_answer(request: Request) -> RecordDict:
    """Test the answer to a collaboration on the site's own test split, and keep its model."""
    start = time.perf_counter()
    answer = read_answer(request)
    statistics = apply_answer(answer, request)
    stored = _stored(request, lambda: own_model(answer, request, statistics))
    return wire.pack_evaluation(wire.Evaluation(statistics, time.perf_counter() - start, stored=stored))


def read_answer(request: Request) -> Answer:
    """Read the answer that a message carries."""
    extras = wire.unpack_extras(request.content, dc_cfl.AGREEMENT.down, Network({}, len(request.site.classes)))
    try:
        return Answer.read(wire.unpack_model(request.content), extras)
    except InvalidExtras as error:
        raise wire.WireError(str(error)) from None


def apply_answer(answer: Answer, request: Request) -> EvaluationStatistics:
    """Test the model of an answer on the site's own test split."""
    site = request.site
    try:
        model = mlp_like(answer.model, features=answer.mapping.shape[1], classes=len(site.classes))
    except InvalidState as error:
        raise wire.WireError(f"the answer's model cannot be used: {error}") from None
    return evaluate(
        model,
        collaborator(request).integrated(answer, site.test),
        site.test_labels,
        classes=len(site.classes),
        batch_size=TEST_BATCH,
        device=default_device(),
    )


def own_model(answer: Answer, request: Request, statistics: EvaluationStatistics) -> tuple[State, ModelCard]:
    """The model of an answer as a network on the site's own rows, and its card with what `apply_answer` found."""
    state = collaborator(request).plain_model(answer)
    return state, own_card(request, statistics, note=PRIVATE)


def own_card(
    request: Request,
    statistics: EvaluationStatistics,
    kept: Kept = "group",
    blend: float | None = None,
    note: str = "",
) -> ModelCard:
    """The card of a model that the site keeps; `blend` is the weight of its group's, if it keeps two."""
    if request.task.group is None:
        raise wire.WireError("the model is of no group")
    settings = request.settings
    if settings.data.input == "embedding" or settings.train.model in HEADS:
        settings = settings.model_copy(update={"encoder": request.encoder_settings()})
    if settings.train.model.startswith("timm:"):
        weights = own_weights(settings.train, request.identity)
        settings = settings.model_copy(update={"train": settings.train.model_copy(update={"weights": weights})})
    with_shares = settings.train.prior == "site" and note != PRIVATE
    return site_card(
        settings,
        request.site.classes,
        request.identity,
        summarise(statistics),
        group=request.task.group,
        round_number=request.task.round_number,
        method=request.task.method,
        trained_on=tuple(request.site.class_counts.tolist()),
        run=request.stamp,
        shares=tuple(class_shares(request.site.class_counts).tolist()) if with_shares else (),
        kept=kept,
        blend=blend,
        note=note,
        weights_digest=digest_of(request),
        spending=request.discretion.spending(),
    )


def _stored(request: Request, make: Callable[[], tuple[State, ModelCard]]) -> bool:
    """Keep a model that the site has just tested, if it keeps any. Its figures are worth sending all the same."""
    folder = models_folder(request.identity)
    if folder is None or request.task.group is None:
        return False
    try:
        path = keep_model(folder, request.stamp, *make())
    except OSError:
        _log.exception("the final model cannot be kept")
        return False
    _log.info("the final model is kept in %s", path)
    return True
