"""The ClientApp: translates a message into typed values, calls, and translates the result back.

Whatever goes wrong at a site is answered with a refusal, so that the server can name the site and the cause. Errors
that come from a site's own data may quote file names, patients or paths: they go to the site's log, and only their kind
leaves.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from torch import nn

from client.collaboration import Collaborator, MapIsGone, Unacceptable
from client.data import NoUsableData, SiteData, load_site
from client.data.samples import TableSamples
from client.embeddings import embeddings
from client.encoder import EncoderError, load_encoder
from client.fingerprints.mean import mean_feature
from client.fingerprints.path import head_path
from client.fingerprints.signature import signature as class_prototypes
from client.fingerprints.subspace import subspace as directions
from client.identity import Identity, cache_folder, identify, models_folder
from client.keeping import keep_model, site_card
from client.objectives import OBJECTIVES, MakeObjective
from client.personal import Personalisation, set_aside
from client.training import TrainingDiverged, default_device, evaluate, train
from common import wire
from common.config import EncoderSettings, SettingsError, SiteSettings
from common.fingerprint import Fingerprint
from common.kept_model import PRIVATE, ModelCard
from common.metrics import EvaluationStatistics, summarise
from common.models import InvalidState, State, get_state, set_state
from common.networks import build_for, mlp_like
from common.randomness import derive_seed

app = ClientApp()

_log = logging.getLogger("coterie")

# Testing keeps no activations for a backward pass, so it takes larger steps than training.
TEST_BATCH = 128

# Errors that speak of settings and models, never of a site's data.
_PUBLIC = (EncoderError, TrainingDiverged, Unacceptable, wire.WireError)

Answer = Callable[[Message, wire.Task, Identity, SiteData], RecordDict]


def _reply(message: Message, context: Context, answer: Answer) -> Message:
    identity = identify(context.node_config, context.node_id)
    try:
        task = wire.unpack_task(message.content)
        _limit_threads(task.settings, identity)
        site = load_site(identity, task.settings, task.round_number, task.rounds)
        if task.settings.personalise != "none" and answer is not _personalise:
            site, _ = set_aside(site, task.settings.seed)
        content = answer(message, task, identity, site)
    except Exception as error:
        # Not left to Flower, whose error reply would carry the text of any exception.
        _log.exception("this request cannot be served")
        content = wire.pack_refusal(_reason(error, identity))
    return Message(content, reply_to=message)


def _limit_threads(settings: SiteSettings, identity: Identity) -> None:
    """Simulated sites run side by side and get a core each; a site of its own uses the whole machine."""
    threads = settings.train.threads or (1 if identity.partition else torch.get_num_threads())
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)


@lru_cache(maxsize=1)
def _model(settings: SiteSettings) -> nn.Module:
    """The network of a run, built once per process: every message overwrites all of its state."""
    return build_for(settings, seed=None)


def _received_model(message: Message, settings: SiteSettings) -> nn.Module:
    return _loaded(wire.unpack_model(message.content), settings)


def _loaded(state: State, settings: SiteSettings) -> nn.Module:
    model = _model(settings)
    try:
        set_state(model, state)
    except ValueError as error:
        raise wire.WireError(f"the server's model does not fit {settings.train.model}: {error}") from None
    return model


def _objective(name: str) -> MakeObjective:
    if name not in OBJECTIVES:
        raise wire.WireError(f"this site knows no objective {wire.plain_text(name)!r}: update it")
    return OBJECTIVES[name]


def _reason(error: Exception, identity: Identity) -> str:
    if identity.is_simulated or isinstance(error, _PUBLIC):
        return f"{type(error).__name__}: {error}"
    kinds = {
        MapIsGone: "its private map is gone",
        NoUsableData: "no usable data",
        SettingsError: "its data or node config is not as agreed",
    }
    kind = next((text for kind, text in kinds.items() if isinstance(error, kind)), type(error).__name__)
    return f"{kind}; the site's own log says more"


def _encoder_settings(settings: EncoderSettings, identity: Identity) -> EncoderSettings:
    """A weights file is named by the site it lies at, unless the site is simulated."""
    if not settings.weights or identity.is_simulated:
        return settings
    if identity.encoder_weights is None:
        raise EncoderError(
            "this run's encoder needs a local weights file: set encoder-weights in the site's node config"
        )
    return settings.model_copy(update={"weights": str(identity.encoder_weights)})


def _card(site: SiteData, identity: Identity) -> wire.SiteCard:
    named = tuple(f"{fault.name}: {fault.reason}" for fault in site.faults)
    done = "stood in for" if isinstance(site.samples, TableSamples) else "skipped"
    for fault in named:
        _log.warning("%s %s", done, fault)
    return wire.SiteCard(
        name=site.name,
        train_samples=len(site.train),
        test_samples=len(site.test),
        class_counts=tuple(int(count) for count in site.class_counts),
        fault_count=len(site.faults),
        # Simulated sites share one data set on one machine: the first of them reports it, by name.
        faults=named if identity.is_simulated else (),
        keeps=models_folder(identity) is not None,
    )


def _hello(message: Message, task: wire.Task, identity: Identity, site: SiteData) -> RecordDict:
    return wire.pack_introduction(wire.Introduction(_card(site, identity), None, 0.0))


# How a site describes its training samples by their embeddings: (rows, labels, settings) -> fingerprint.
_Describe = Callable[[NDArray[np.float32], NDArray[np.int64], EncoderSettings], Fingerprint]


def _embedded(describe: _Describe) -> Answer:
    """Answer with a fingerprint made of the embeddings of the training samples."""

    def answer(message: Message, task: wire.Task, identity: Identity, site: SiteData) -> RecordDict:
        start = time.perf_counter()
        settings = task.settings
        rows = embeddings(
            load_encoder(_encoder_settings(settings.encoder, identity), settings.seed),
            site.images,
            site.train,
            cache_folder(identity, settings.cache),
            settings.encoder.batch_size,
        )
        described = describe(rows, site.train_labels, settings.encoder)
        return wire.pack_introduction(wire.Introduction(_card(site, identity), described, time.perf_counter() - start))

    return answer


def _path(message: Message, task: wire.Task, identity: Identity, site: SiteData) -> RecordDict:
    start = time.perf_counter()
    described = head_path(
        _received_model(message, task.settings),
        site.train_inputs(),
        site.train_labels,
        task.settings.train,
        seed=task.settings.seed,
        site=site.name,
        device=default_device(),
    )
    return wire.pack_introduction(wire.Introduction(_card(site, identity), described, time.perf_counter() - start))


def _collaborator(task: wire.Task, identity: Identity, site: SiteData) -> Collaborator:
    settings = task.settings
    encoder = None
    if settings.data.input == "embedding":
        encoder = load_encoder(_encoder_settings(settings.encoder, identity), settings.seed)
    return Collaborator(identity, settings, site, encoder)


def _collaboration(message: Message, task: wire.Task, identity: Identity, site: SiteData) -> RecordDict:
    return wire.pack_introduction(collaborate(task, identity, site))


def collaborate(task: wire.Task, identity: Identity, site: SiteData) -> wire.Introduction:
    """What a site sends once (DC-CFL)."""
    start = time.perf_counter()
    offer = _collaborator(task, identity, site).offer()
    return wire.Introduction(_card(site, identity), offer, time.perf_counter() - start)


def _answered(message: Message, task: wire.Task, identity: Identity, site: SiteData) -> RecordDict:
    start = time.perf_counter()
    answer = wire.unpack_answer(message.content)
    statistics = apply_answer(answer, task, identity, site)
    stored = _stored(
        message, task, identity, lambda: own_model(answer, task, identity, site, statistics, _run(message))
    )
    return wire.pack_evaluation(wire.Evaluation(statistics, time.perf_counter() - start, stored=stored))


def apply_answer(answer: wire.Answer, task: wire.Task, identity: Identity, site: SiteData) -> EvaluationStatistics:
    """Test the model of an answer on the site's own test split."""
    try:
        model = mlp_like(answer.model, features=answer.mapping.shape[1], classes=len(site.classes))
    except InvalidState as error:
        raise wire.WireError(f"the answer's model cannot be used: {error}") from None
    return evaluate(
        model,
        _collaborator(task, identity, site).integrated(answer, site.test),
        site.test_labels,
        classes=len(site.classes),
        batch_size=TEST_BATCH,
        device=default_device(),
    )


def own_model(
    answer: wire.Answer,
    task: wire.Task,
    identity: Identity,
    site: SiteData,
    statistics: EvaluationStatistics,
    run: str = "",
) -> tuple[State, ModelCard]:
    """The model of an answer as a network on the site's own rows, and its card with what `apply_answer` found."""
    state = _collaborator(task, identity, site).plain_model(answer)
    return state, _own_card(task, identity, site, statistics, run, note=PRIVATE)


def _fit(message: Message, task: wire.Task, identity: Identity, site: SiteData) -> RecordDict:
    start = time.perf_counter()
    values = _losses(wire.unpack_models(message.content), task.settings, site)
    return wire.pack_losses(wire.Losses(values, time.perf_counter() - start))


def _losses(models: list[State], settings: SiteSettings, site: SiteData) -> NDArray[np.float64]:
    """Mean loss of each model on the site's training samples; infinite where it is not a number."""
    values = np.full(len(models), np.inf)
    for place, state in enumerate(models):
        with suppress(TrainingDiverged):
            statistics = evaluate(
                _loaded(state, settings),
                site.train_inputs(),
                site.train_labels,
                classes=len(site.classes),
                batch_size=TEST_BATCH,
                device=default_device(),
            )
            values[place] = statistics.loss_sum / len(site.train)
    return values


def _train(message: Message, task: wire.Task, identity: Identity, site: SiteData) -> RecordDict:
    start = time.perf_counter()
    offered = wire.unpack_models(message.content)
    choice = int(_losses(offered, task.settings, site).argmin()) if len(offered) > 1 else 0
    model = _loaded(offered[choice], task.settings)
    result = train(
        model,
        site.train_inputs(),
        site.train_labels,
        task.settings.train,
        round_number=task.round_number,
        rounds=task.rounds,
        seed=derive_seed(task.settings.seed, "training", site.name, task.round_number),
        device=default_device(),
        objective=_objective(task.objective)(model, task.settings.train),
    )
    seconds = time.perf_counter() - start
    return wire.pack_update(wire.Update(get_state(model), result.samples, result.last_loss, seconds, choice))


def _evaluate(message: Message, task: wire.Task, identity: Identity, site: SiteData) -> RecordDict:
    start = time.perf_counter()
    statistics = _test(_received_model(message, task.settings), site)
    return wire.pack_evaluation(wire.Evaluation(statistics, time.perf_counter() - start))


def _test(model: nn.Module, site: SiteData) -> EvaluationStatistics:
    return evaluate(
        model,
        site.test_inputs(),
        site.test_labels,
        classes=len(site.classes),
        batch_size=TEST_BATCH,
        device=default_device(),
    )


def _keep(message: Message, task: wire.Task, identity: Identity, site: SiteData) -> RecordDict:
    start = time.perf_counter()
    folder = models_folder(identity)
    if folder is None:
        raise wire.WireError("this site keeps no models")
    model = _received_model(message, task.settings)
    card = _own_card(task, identity, site, _test(model, site), _run(message))
    path = keep_model(folder, message.metadata.run_id, get_state(model), card)
    _log.info("the final model of group %d is kept in %s", card.group, path)
    return wire.pack_kept(time.perf_counter() - start)


def _run(message: Message) -> str:
    return str(message.metadata.run_id)


def _own_card(
    task: wire.Task,
    identity: Identity,
    site: SiteData,
    statistics: EvaluationStatistics,
    run: str,
    kept: str = "group",
    note: str = "",
) -> ModelCard:
    if task.group is None:
        raise wire.WireError("the model is of no group")
    settings = task.settings
    if settings.data.input == "embedding":
        settings = settings.model_copy(update={"encoder": _encoder_settings(settings.encoder, identity)})
    return site_card(
        settings,
        site.classes,
        identity,
        summarise(statistics),
        group=task.group,
        round_number=task.round_number,
        run=run,
        kept=kept,
        note=note,
    )


def _stored(message: Message, task: wire.Task, identity: Identity, make: Callable[[], tuple[State, ModelCard]]) -> bool:
    """Keep a model that the site has just tested, if it keeps any. Its figures are worth sending all the same."""
    folder = models_folder(identity)
    if folder is None or task.group is None:
        return False
    try:
        path = keep_model(folder, message.metadata.run_id, *make())
    except OSError:
        _log.exception("the final model cannot be kept")
        return False
    _log.info("the final model is kept in %s", path)
    return True


def _personalise(message: Message, task: wire.Task, identity: Identity, site: SiteData) -> RecordDict:
    start = time.perf_counter()
    settings = task.settings
    group, *starts = wire.unpack_models(message.content)
    personalisation = Personalisation(_loaded(group, settings), site, settings, task.rounds, default_device())
    kept, state = personalisation.choose(group, starts[0] if starts else None)
    statistics = _test(_loaded(state, settings), site)
    stored = _stored(
        message, task, identity, lambda: (state, _own_card(task, identity, site, statistics, _run(message), kept))
    )
    return wire.pack_evaluation(wire.Evaluation(statistics, time.perf_counter() - start, kept, stored))


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Say who the site is and how much data it has."""
    return _reply(message, context, _hello)


@app.query("signature")
def signature(message: Message, context: Context) -> Message:
    """Compute one mean embedding per class with the frozen encoder."""
    return _reply(message, context, _embedded(lambda rows, labels, _: class_prototypes(rows, labels)))


@app.query("mean")
def mean(message: Message, context: Context) -> Message:
    """Compute one mean embedding over all samples."""
    return _reply(message, context, _embedded(lambda rows, labels, _: mean_feature(rows)))


@app.query("subspace")
def subspace(message: Message, context: Context) -> Message:
    """Compute the directions in which each class lies."""
    return _reply(
        message, context, _embedded(lambda rows, labels, settings: directions(rows, labels, settings.vectors))
    )


@app.query("losses")
def losses(message: Message, context: Context) -> Message:
    """Tell how well each of the models that were sent fits the site's training samples."""
    return _reply(message, context, _fit)


@app.query("path")
def path(message: Message, context: Context) -> Message:
    """Warm up on the site's own data and record how the head moves."""
    return _reply(message, context, _path)


@app.query("collaboration")
def collaboration(message: Message, context: Context) -> Message:
    """Send the site's rows, once, through a map that only the site knows."""
    return _reply(message, context, _collaboration)


@app.query("personalise")
def personalise(message: Message, context: Context) -> Message:
    """Make a model of the site's own from its group's, and test it."""
    return _reply(message, context, _personalise)


@app.query("keep")
def keep(message: Message, context: Context) -> Message:
    """Keep the group's final model on the site's own disk."""
    return _reply(message, context, _keep)


@app.train()
def local_training(message: Message, context: Context) -> Message:
    """Train the group's model on the site's own data."""
    return _reply(message, context, _train)


@app.evaluate()
def local_evaluation(message: Message, context: Context) -> Message:
    """Test the group's model on the site's own test split."""
    return _reply(message, context, _evaluate)


@app.evaluate("collaboration")
def answer(message: Message, context: Context) -> Message:
    """Test the answer to a collaboration on the site's own test split."""
    return _reply(message, context, _answered)
