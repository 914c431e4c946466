"""`coterie site check`: what a site has and what taking part would cost it, found out without any network."""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

# Before the encoder's libraries are imported: weights are looked for on this machine alone.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from cli.deployment import authority
from cli.deployment.site_start import as_node_config, check_credentials, require_data
from cli.deployment.start_file import SiteFile, located
from client.data import NoUsableData, SiteData, discover_classes, load_site
from client.data.samples import ImageSamples
from client.encoder import Encoder, EncoderError, load_encoder
from client.identity import Identity, cache_folder, identify, models_folder
from client.networks import network_of
from client.policy.gate import as_split_here, ledger_of
from client.policy.ledger import LedgerBroken
from client.policy.question import METHOD, TRAIN, Question
from client.policy.rules import Declined, check
from client.policy.words import in_words
from client.privacy.budget import spent_of
from client.request import describable, large_enough, own_encoder, read_by
from client.secure.credentials import NoCredentials, credentials_of
from client.training import default_device, train
from common.classes import agreed_classes
from common.config import Config, SettingsError, SiteSettings, load
from common.encoders import HEADS
from common.fingerprint import KINDS
from common.methods import rehearsal
from common.models import get_state, set_state
from common.networks import build_for
from common.own_network import NetworkError
from common.readable import duration, megabytes
from common.secure.terms import Terms
from common.wire import Task

_TIMED_BATCHES = 4
_TIMED_EMBEDDINGS = 32
_FAULTS_SHOWN = 20


def check_site(path: Path, settings: SiteFile, config_path: Path | None, *, calls: bool = False) -> int:
    """Print what was found; return 0 if the site can take part, else 1. `calls`: the server is asked afterwards."""
    require_data(path, settings)
    identity = identify(tomllib.loads(as_node_config(path, settings)), 0)
    run = as_split_here(identity.policy, Task(_run_settings(identity, config_path), 0, 1)).settings
    problems = _declined(identity, config_path)
    try:
        site = read_by(run, identity, large_enough(load_site(identity, run), identity.policy))
    except (NoUsableData, Declined) as error:
        print(error)
        return 1
    problems += _undescribed(site, identity, config_path)
    for line in _describe_data(site, identity, assumed=config_path is None):
        print(line)
    if identity.data_path is not None:
        for line in (*in_words(identity.policy, identity.networks), *_spent(identity)):
            print(line)
    device = default_device()
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else f", {torch.cuda.get_device_name()}"
    print(f"device: {device.type}{threads}", flush=True)
    if run.data.table is None:
        try:
            encoder = load_encoder(own_encoder(run.encoder, identity), run.seed)
        except EncoderError as error:
            problems.append(str(error))
        else:
            least = identity.policy.class_samples
            print(_describe_signature(encoder, site, run.encoder.batch_size, least), flush=True)
    if not problems or run.train.model not in HEADS:
        try:
            epoch = measure_epoch(site, run, identity)
        except NetworkError as error:
            problems.append(str(error))
        else:
            print(
                f"training: {run.train.model} {_what_it_reads(run)}, an epoch over {len(site.train)} samples takes "
                f"about {duration(epoch.seconds)} (measured on {epoch.images} samples)"
            )
    print(f"cache: {cache_folder(identity, run.cache)}")
    print(f"models: {models_folder(identity) or 'none are kept'}")
    try:
        check_credentials(path, settings)
        key = authority.read_private_key(located(path, settings.key)).public_key()
        until = authority.read_certificate(located(path, settings.ca)).not_valid_after_utc
        server = "" if calls else f"; {settings.server} not called"
        print(f"key: {authority.fingerprint(key)}; authority valid until {until:%Y-%m-%d}{server}")
    except SettingsError as error:
        problems.append(str(error))
    print(_secure_sums(identity, run))
    for problem in problems:
        print(f"PROBLEM: {problem}")
    return 1 if problems else 0


def _spent(identity: Identity) -> Iterator[str]:
    """How much of a privacy budget is spent, if there is one."""
    privacy = identity.policy.privacy
    if privacy.is_on:
        with suppress(LedgerBroken):
            spent = spent_of(ledger_of(identity).entries(), privacy.delta)
            yield f"privacy budget: epsilon = {spent:.3g} of {privacy.epsilon:g} is spent"


def _declined(identity: Identity, config_path: Path | None) -> list[str]:
    """Why the site's policy would decline a run, if there is one to hold against it."""
    if config_path is None or identity.data_path is None:
        return []
    from server.methods import recipe, settle

    config = settle(load(config_path))
    method = recipe(config)
    # As many as there can be in a sum: how large its group is will be known when it trains.
    members = tuple(f"{number:05d}" for number in range(config.sites))
    terms = Terms(members, 1, 0, bytes(32)) if config.aggregate.rule == "secure" else None
    task = Task(config.for_site(), 0, config.rounds, rule=method.rule, terms=terms)
    questions = [Question(kind, task, "this one") for kind in (TRAIN, f"query.{method.fingerprint or 'hello'}")]
    if config.cluster.choice == rehearsal.RULE:
        questions.append(Question(METHOD, replace(task, rule=rehearsal.RULE), "this one"))
    try:
        entries = ledger_of(identity).entries()
        for question in questions:
            check(identity.policy, question, entries, time.time())
    except (Declined, LedgerBroken) as error:
        return [f"this site would decline the run: {error}"]
    return []


def _undescribed(site: SiteData, identity: Identity, config_path: Path | None) -> list[str]:
    """Why the site could not send the fingerprint of a run, if none of its classes is large enough for it."""
    if config_path is None or identity.data_path is None:
        return []
    from server.methods import recipe, settle

    kind = recipe(settle(load(config_path))).fingerprint
    if not kind or KINDS[kind].by_row:
        return []
    try:
        describable(site, identity.policy)
    except Declined as error:
        return [
            f"this site would decline the run: {error}. More images of a class would do, or a smaller class_samples in "
            "[policy]: a mean over few images tells more about each of them"
        ]
    return []


def _secure_sums(identity: Identity, run: SiteSettings) -> str:
    """Whether the site could take part in secure sums."""
    try:
        credentials_of(identity, Task(run, 0, 0))
    except NoCredentials as error:
        return f"secure sums: not possible, as {error}"
    return "secure sums: possible; other sites know this one by its certificate"


def _what_it_reads(run: SiteSettings) -> str:
    if run.data.table is not None:
        return f"on {run.data.table.width} numbers per row"
    return f"on {run.encoder.name}" if run.train.model in HEADS else f"at {run.data.image_size} px"


def _run_settings(identity: Identity, config_path: Path | None) -> SiteSettings:
    """Return the run's settings; without a configuration the defaults, with the classes that the data show."""
    if config_path is not None:
        config = load(config_path)
        agreed_classes(config.data)
        return config.for_site()
    config = Config()
    if identity.data_path is None:
        return config.for_site()
    kind = {".csv": "manifest", ".npz": "npz"}.get(identity.data_path.suffix.lower(), "folder")
    data = config.data.model_copy(update={"source": kind, "path": str(identity.data_path)})
    data = data.model_copy(update={"classes": discover_classes(data)})
    return config.model_copy(update={"data": data}).for_site()


def _describe_data(site: SiteData, identity: Identity, *, assumed: bool) -> Iterator[str]:
    place = identity.data_path or "a share of the run's common data set"
    yield f"site {site.name}: {len(site.train)} samples to train on and {len(site.test)} to test on, from {place}"
    if assumed:
        yield "classes as the data show them, and default settings; give the run's configuration to check against it"
    width = max(map(len, ("class", *site.classes)))
    yield f"  {'class':{width}}  {'train':>7}  {'test':>7}"
    for label, name in enumerate(site.classes):
        train, test = int((site.train_labels == label).sum()), int((site.test_labels == label).sum())
        yield f"  {name:{width}}  {train:7d}  {test:7d}"
    if not len(site.test):
        yield "no sample is left to test on: the site will train, but cannot say how well the model does"
    if site.faults:
        what = "not usable" if isinstance(site.samples, ImageSamples) else "left out or stood in for"
        yield f"{what}: {len(site.faults)}"
        yield from (f"  {fault.name}: {fault.reason}" for fault in site.faults[:_FAULTS_SHOWN])
        if (more := len(site.faults) - _FAULTS_SHOWN) > 0:
            yield f"  and {more} more"
    else:
        yield "nothing is broken"
    yield from site.samples.notes


def _describe_signature(encoder: Encoder, site: SiteData, batch_size: int, least: int) -> str:
    large = site.told_counts(least)
    present, withheld = int((large > 0).sum()), int(site.class_counts.sum() - large.sum())
    counts = ", ".join(f"{name} {count}" for name, count in zip(site.classes, large.tolist(), strict=True) if count)
    counts += f"; {withheld} in classes of fewer than {least}, which are not named" if withheld else ""
    return (
        f"encoder: {encoder.name} at {encoder.size} px, {encoder.dimension} numbers per image\n"
        f"signature it would send (methods that ask for one): {present} classes × {encoder.dimension}, "
        f"{megabytes(signature_bytes(present, encoder.dimension))}; training images by class: {counts}\n"
        f"computing it takes about {duration(measure_embedding(encoder, site, batch_size))}, once"
    )


def signature_bytes(classes: int, dimension: int) -> int:
    """Return the bytes of the three arrays of a `Signature`: classes, prototypes and shares."""
    return classes * (8 + 4 * dimension + 8)


@dataclass(frozen=True)
class Epoch:
    """How long training on all of a site's images takes, from the time of some of them."""

    seconds: float
    images: int


def measure_epoch(site: SiteData, run: SiteSettings, identity: Identity) -> Epoch:
    """Train on a few batches with the run's model, after one that warms up, and scale up."""
    model = network_of(run, identity)
    set_state(model, get_state(build_for(run, run.seed)))
    inputs, labels = site.train_inputs(), site.train_labels
    settings = run.train.model_copy(update={"epochs": 1})
    taken = 0.0
    for count in (settings.batch_size, settings.batch_size * _TIMED_BATCHES):
        start = time.perf_counter()
        train(
            model,
            inputs[:count],
            labels[:count],
            settings,
            round_number=1,
            rounds=1,
            seed=run.seed,
            device=default_device(),
        )
        taken = time.perf_counter() - start
    timed = min(settings.batch_size * _TIMED_BATCHES, len(labels))
    return Epoch(taken * len(labels) / timed, timed)


def measure_embedding(encoder: Encoder, site: SiteData, batch_size: int) -> float:
    """Return the seconds to embed all training images, from the time of a few, after some that warm up."""
    some = site.train[:_TIMED_EMBEDDINGS]
    encoder.embed(site.images.images(some[: encoder.block], encoder.size, 3))
    start = time.perf_counter()
    for first in range(0, len(some), batch_size):
        encoder.embed(site.images.images(some[first : first + batch_size], encoder.size, 3))
    return (time.perf_counter() - start) * len(site.train) / len(some)
