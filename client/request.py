"""A request at a site: the task, who the site is, and its data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from weakref import WeakKeyDictionary

import numpy as np
import torch
from flwr.app import RecordDict
from numpy.typing import NDArray
from torch import nn

from client.data import SiteData, load_site
from client.data.samples import TableSamples
from client.discretion import Discretion
from client.embeddings import embeddings
from client.encoder import Encoder, EncoderError, load_encoder
from client.held import Held
from client.identity import Identity, cache_folder
from client.memory import Memory, open_memory
from client.methods import SiteMethod, Visit, site_method
from client.networks import frozen_digest, network_of
from client.policy.policy import Policy
from client.policy.rules import Declined
from client.privacy.private import discretion_of
from client.training import TEST_BATCH, default_device, evaluate
from common import wire
from common.classes import agreed_classes
from common.config import EncoderSettings, SettingsError, SiteSettings
from common.encoders import COLUMNS, HEADS
from common.extras import Network, Rule
from common.metrics import EvaluationStatistics
from common.models import get_state, set_prior
from common.own_network import NetworkError
from common.presets import PRESETS
from common.prior import class_shares
from common.state import State


@dataclass(frozen=True)
class Request:
    """Everything that an answer is made from; `run_id` is Flower's number of the run."""

    content: RecordDict
    task: wire.Task
    identity: Identity
    site: SiteData
    run_id: int = 0

    @property
    def settings(self) -> SiteSettings:
        """Of the run."""
        return self.task.settings

    @property
    def stamp(self) -> str:
        """What tells the run from every other one, also after it was resumed; hexadecimal."""
        return self.task.run or f"{self.run_id:x}"

    @property
    def method(self) -> SiteMethod:
        """The site's half of the method."""
        return site_method(self.task.rule)

    @property
    def memory(self) -> Memory:
        """What the site remembers of the run."""
        return open_memory(self.identity, self.task)

    @cached_property
    def discretion(self) -> Discretion:
        """How the site says what it knows of its data."""
        return discretion_of(self.identity, self.task, self.site, self.embedded)

    @cached_property
    def model(self) -> State:
        """The model of the message. Nobody writes into it."""
        return wire.unpack_model(self.content)

    def in_round(self, round_number: int) -> Request:
        """The same request to the site as its data are in another round."""
        site = data_of(self.identity, self.task, round_number)
        return self if site is self.site else replace(self, site=site)

    @property
    def describable(self) -> Request:
        """The same request to the site without the classes that are too small to be described."""
        return replace(self, site=describable(self.site, self.identity.policy))

    def embedded(self) -> NDArray[np.float32]:
        """Embeddings of the training samples, float32[n, d]."""
        return embedded(self.site, self.site.train, self.identity, self.settings)

    def visit(self, declared: Mapping[str, Rule] | None = None, *, with_model: bool = True) -> Visit:
        """Read what came and what is remembered.

        `declared` is what must come beside the model; None: what the method declares for training may come.
        """
        own_network = network_of(self.settings, self.identity)
        network, known = _known(self.settings, self.method.agreement.shared, self.task.rule, own_network)
        travelling = known.tensors
        if self.task.weights and self.task.weights != frozen_digest(network):
            raise NetworkError(
                f"this site's weights of {self.settings.train.model} are no longer those that it enrolled with: "
                "restore the file"
            )
        # The network is the process's; the shares are the site's, as it is now.
        set_prior(network, class_shares(self.discretion.expected()) if self.settings.train.prior == "site" else None)
        received = self.model if with_model else {}
        if with_model and received.keys() != travelling.keys():
            missing = ", ".join(sorted(set(travelling) - set(received))[:5])
            fault = (
                f"it lacks {missing}"
                if missing
                else f"it has {wire.plain_text(sorted(set(received) - set(travelling))[:5])}"
            )
            raise wire.WireError(f"the server's model does not fit {self.settings.train.model}: {fault}")
        expected = self.method.agreement.down if declared is None else declared
        extras = wire.unpack_extras(self.content, expected, known, complete=declared is not None)
        remembered = self.memory.recall(self.task.accepted) if self.method.agreement.remembers else None
        return Visit(
            network=network,
            received=received,
            extras=extras,
            memory=remembered or {},
            site=self.site,
            settings=self.settings,
            round_number=self.task.round_number,
            rounds=self.task.rounds,
            group=self.task.group or 0,
            device=default_device(),
            embedded=self.embedded,
            class_samples=self.identity.policy.class_samples,
            training=self.discretion.training(),
        )

    def encoder(self) -> Encoder:
        """The frozen encoder of the run."""
        return load_encoder(self.encoder_settings(), self.settings.seed)

    def encoder_settings(self) -> EncoderSettings:
        """Of the run, as this site has it."""
        return own_encoder(self.settings.encoder, self.identity)


def data_of(identity: Identity, task: wire.Task, round_number: int) -> SiteData:
    """A site's data in a round, as the models of the run read them."""
    site = load_site(identity, task.settings, round_number, task.rounds)
    return read_by(task.settings, identity, large_enough(site, identity.policy))


def large_enough(site: SiteData, policy: Policy) -> SiteData:
    """The site as its policy lets it learn: not from too few samples, and untested where too few are held out."""
    if len(site.train) < policy.train_samples:
        raise Declined(f"policy.train_samples = {policy.train_samples}, and this site has fewer to train on")
    if not policy.tests or len(site.test) < policy.test_samples:
        return replace(site, test=site.test[:0])
    return site


def describable(site: SiteData, policy: Policy) -> SiteData:
    """The site without the classes that its policy finds too small to be described."""
    large = site.told_counts(policy.class_samples) > 0
    train = site.train[large[site.train_labels]]
    if not len(train):
        raise Declined(
            f"policy.class_samples = {policy.class_samples}, and no class of this site has as many to train on"
        )
    return replace(site, train=train)


def read_by(settings: SiteSettings, identity: Identity, site: SiteData) -> SiteData:
    """A site's data as the models of a run read them: heads read an encoder's numbers."""
    if settings.train.model not in HEADS:
        return site
    known = _read.get(site)
    if known is None or known[0] is not settings or known[1] != identity:
        through = site.through(lambda of, positions: embedded(of, positions, identity, settings))
        known = _read[site] = settings, identity, through
    return known[2]


# The same in every message, as long as the data are.
_read: WeakKeyDictionary[SiteData, tuple[SiteSettings, Identity, SiteData]] = WeakKeyDictionary()


def embedded(
    site: SiteData, positions: NDArray[np.int64], identity: Identity, settings: SiteSettings
) -> NDArray[np.float32]:
    """What the run's encoder makes of some of a site's samples, float32[n, d]; a table's own columns are its rows."""
    if settings.encoder.name == COLUMNS:
        if not isinstance(site.samples, TableSamples):
            raise SettingsError("encoder.name = 'columns' reads a table, and this site has images")
        return site.samples.rows[positions]
    encoder = load_encoder(own_encoder(settings.encoder, identity), settings.seed)
    folder = cache_folder(identity, settings.cache)
    return _held.get(
        (encoder.identity, site.images.digest, positions.tobytes()),
        lambda: embeddings(encoder, site.images, positions, folder, settings.encoder.batch_size),
    )


# A head's training takes as much again for what it makes of them.
_held = Held(2**30)


def own_encoder(settings: EncoderSettings, identity: Identity) -> EncoderSettings:
    """The encoder of a run; a weights file is named by the site it lies at, unless the site is simulated."""
    if identity.is_simulated:
        return settings
    preset = PRESETS.get(settings.name)
    if identity.encoder_weights is not None and (settings.weights or preset is not None):
        return settings.model_copy(update={"weights": str(identity.encoder_weights)})
    if settings.weights or (preset is not None and not preset.hub):
        raise EncoderError(
            f"this run's encoder needs a local weights file, {settings.name}: set encoder_weights in site.toml"
        )
    return settings


@lru_cache(maxsize=4)
def _known(settings: SiteSettings, shared: object, rule: str, network: nn.Module) -> tuple[nn.Module, Network]:
    """The network of a run, and what of it travels under a rule, which says so by `shared`."""
    state = get_state(network)
    travelling = site_method(rule).agreement.travelling(state, settings)
    own = {name: array for name, array in state.items() if name not in travelling}
    return network, Network.of(travelling, len(agreed_classes(settings.data)), own)


def limit_threads(settings: SiteSettings, identity: Identity) -> None:
    """Simulated sites run side by side and get a core each; a site of its own uses the whole machine."""
    threads = settings.train.threads or (1 if identity.partition else torch.get_num_threads())
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)


def tested(model: nn.Module, site: SiteData, *, forgiving: bool) -> EvaluationStatistics:
    """Test a model on the site's own test split; `forgiving` is as `log_probabilities` has it."""
    return evaluate(
        model,
        site.test_inputs(),
        site.test_labels,
        classes=len(site.classes),
        batch_size=TEST_BATCH,
        device=default_device(),
        forgiving=forgiving,
    )
