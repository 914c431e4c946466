"""The ClientApp: translates a message into typed values, calls, and translates the result back.

Whatever goes wrong at a site is answered with a refusal, so that the server can name the site and the cause. Errors
that come from a site's own data may quote file names, patients or paths: they go to the site's log, and only their kind
leaves.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import lru_cache

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from client.data import NoUsableData, SiteData, load_site
from client.embeddings import embeddings
from client.encoder import EncoderError, load_encoder
from client.fingerprints.path import head_path
from client.fingerprints.signature import signature as class_prototypes
from client.identity import Identity, cache_folder, identify, models_folder
from client.keeping import keep_model
from client.objectives import OBJECTIVES
from client.training import TrainingDiverged, default_device, evaluate, train
from common import wire
from common.classes import agreed_classes
from common.config import EncoderSettings, SettingsError, SiteSettings
from common.metrics import EvaluationStatistics, summarise
from common.models import build, get_state, set_state
from common.randomness import derive_seed

app = ClientApp()

_log = logging.getLogger("coterie")

# Testing keeps no activations for a backward pass, so it takes larger steps than training.
TEST_BATCH = 128

# Errors that speak of settings and models, never of a site's data.
_PUBLIC = (EncoderError, TrainingDiverged, wire.WireError)

Answer = Callable[[Message, wire.Task, Identity, SiteData], RecordDict]


def _reply(message: Message, context: Context, answer: Answer) -> Message:
    identity = identify(context.node_config, context.node_id)
    try:
        task = wire.unpack_task(message.content)
        _limit_threads(task.settings, identity)
        site = load_site(identity, task.settings, task.round_number, task.rounds)
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
    data = settings.data
    return build(
        settings.train.model,
        classes=len(agreed_classes(data)),
        channels=data.channels,
        image_size=data.image_size,
        seed=None,
    )


def _received_model(message: Message, settings: SiteSettings) -> nn.Module:
    model = _model(settings)
    try:
        set_state(model, wire.unpack_model(message.content))
    except ValueError as error:
        raise wire.WireError(f"the server's model does not fit {settings.train.model}: {error}") from None
    return model


def _reason(error: Exception, identity: Identity) -> str:
    if identity.is_simulated or isinstance(error, _PUBLIC):
        return f"{type(error).__name__}: {error}"
    kinds = {NoUsableData: "no usable data", SettingsError: "its data or node config is not as agreed"}
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
    for fault in named:
        _log.warning("skipped %s", fault)
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


def _signature(message: Message, task: wire.Task, identity: Identity, site: SiteData) -> RecordDict:
    start = time.perf_counter()
    settings = task.settings
    rows = embeddings(
        load_encoder(_encoder_settings(settings.encoder, identity), settings.seed),
        site.samples,
        site.train,
        cache_folder(identity, settings.cache),
        settings.encoder.batch_size,
    )
    described = class_prototypes(rows, site.train_labels)
    return wire.pack_introduction(wire.Introduction(_card(site, identity), described, time.perf_counter() - start))


def _path(message: Message, task: wire.Task, identity: Identity, site: SiteData) -> RecordDict:
    start = time.perf_counter()
    described = head_path(
        _received_model(message, task.settings),
        site.train_images(),
        site.train_labels,
        task.settings.train,
        seed=task.settings.seed,
        site=site.name,
        device=default_device(),
    )
    return wire.pack_introduction(wire.Introduction(_card(site, identity), described, time.perf_counter() - start))


def _train(message: Message, task: wire.Task, identity: Identity, site: SiteData) -> RecordDict:
    start = time.perf_counter()
    model = _received_model(message, task.settings)
    result = train(
        model,
        site.train_images(),
        site.train_labels,
        task.settings.train,
        round_number=task.round_number,
        rounds=task.rounds,
        seed=derive_seed(task.settings.seed, "training", site.name, task.round_number),
        device=default_device(),
        objective=OBJECTIVES["plain"](model),
    )
    seconds = time.perf_counter() - start
    return wire.pack_update(wire.Update(get_state(model), result.samples, result.last_loss, seconds))


def _evaluate(message: Message, task: wire.Task, identity: Identity, site: SiteData) -> RecordDict:
    start = time.perf_counter()
    statistics = _test(_received_model(message, task.settings), site)
    return wire.pack_evaluation(wire.Evaluation(statistics, time.perf_counter() - start))


def _test(model: nn.Module, site: SiteData) -> EvaluationStatistics:
    return evaluate(
        model,
        site.test_images(),
        site.test_labels,
        classes=len(site.classes),
        batch_size=TEST_BATCH,
        device=default_device(),
    )


def _keep(message: Message, task: wire.Task, identity: Identity, site: SiteData) -> RecordDict:
    start = time.perf_counter()
    folder = models_folder(identity)
    if folder is None or task.group is None:
        raise wire.WireError("this site keeps no models" if folder is None else "the model is of no group")
    model = _received_model(message, task.settings)
    path = keep_model(
        folder,
        get_state(model),
        summarise(_test(model, site)),
        settings=task.settings,
        classes=site.classes,
        identity=identity,
        group=task.group,
        round_number=task.round_number,
        run=message.metadata.run_id,
    )
    _log.info("the final model of group %d is kept in %s", task.group, path)
    return wire.pack_kept(time.perf_counter() - start)


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Say who the site is and how much data it has."""
    return _reply(message, context, _hello)


@app.query("signature")
def signature(message: Message, context: Context) -> Message:
    """Compute one mean embedding per class with the frozen encoder."""
    return _reply(message, context, _signature)


@app.query("path")
def path(message: Message, context: Context) -> Message:
    """Warm up on the site's own data and record how the head moves."""
    return _reply(message, context, _path)


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
