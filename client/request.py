"""A request at a site: the task, who the site is, and its data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from flwr.app import RecordDict
from torch import nn

from client.data import SiteData, load_site
from client.encoder import Encoder, EncoderError, load_encoder
from client.identity import Identity
from client.memory import Memory, open_memory
from client.methods import SiteMethod, Visit, site_method
from client.training import TEST_BATCH, default_device, evaluate
from common import wire
from common.config import EncoderSettings, SiteSettings
from common.extras import Network, Rule
from common.metrics import EvaluationStatistics
from common.models import get_state, set_prior
from common.networks import build_for
from common.prior import class_shares


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
    def method(self) -> SiteMethod:
        """The site's half of the method."""
        return site_method(self.task.rule)

    @property
    def memory(self) -> Memory:
        """What the site remembers of the run."""
        return open_memory(self.identity, self.task)

    def in_round(self, round_number: int) -> Request:
        """The same request to the site as its data are in another round."""
        return replace(self, site=load_site(self.identity, self.settings, round_number, self.task.rounds))

    def visit(self, declared: Mapping[str, Rule] | None = None, *, with_model: bool = True) -> Visit:
        """Read what came and what is remembered.

        `declared` is what must come beside the model; None: what the method declares for training may come.
        """
        network = network_of(self.settings)
        # The network is the process's; the shares are the site's, as it is now.
        set_prior(network, class_shares(self.site.class_counts) if self.settings.train.prior == "site" else None)
        state = get_state(network)
        travelling = {name: state[name] for name in self.method.agreement.travels(list(state))}
        known = Network.of(travelling, len(self.site.classes))
        expected = self.method.agreement.down if declared is None else declared
        extras = wire.unpack_extras(self.content, expected, known, complete=declared is not None)
        remembered = self.memory.recall(self.task.accepted) if self.method.agreement.remembers else None
        return Visit(
            network=network,
            received=wire.unpack_model(self.content) if with_model else {},
            extras=extras,
            memory=remembered or {},
            site=self.site,
            settings=self.settings,
            round_number=self.task.round_number,
            rounds=self.task.rounds,
            group=self.task.group or 0,
            device=default_device(),
        )

    def encoder(self) -> Encoder:
        """The frozen encoder of the run."""
        return load_encoder(self.encoder_settings(), self.settings.seed)

    def encoder_settings(self) -> EncoderSettings:
        """Of the run, but a weights file is named by the site it lies at, unless the site is simulated."""
        settings = self.settings.encoder
        if not settings.weights or self.identity.is_simulated:
            return settings
        if self.identity.encoder_weights is None:
            raise EncoderError(
                "this run's encoder needs a local weights file: set encoder-weights in the site's node config"
            )
        return settings.model_copy(update={"weights": str(self.identity.encoder_weights)})


@lru_cache(maxsize=1)
def network_of(settings: SiteSettings) -> nn.Module:
    """The network of a run, built once per process: every message overwrites all of its state."""
    return build_for(settings, seed=None)


def limit_threads(settings: SiteSettings, identity: Identity) -> None:
    """Simulated sites run side by side and get a core each; a site of its own uses the whole machine."""
    threads = settings.train.threads or (1 if identity.partition else torch.get_num_threads())
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)


def tested(model: nn.Module, site: SiteData) -> EvaluationStatistics:
    """Test a model on the site's own test split."""
    return evaluate(
        model,
        site.test_inputs(),
        site.test_labels,
        classes=len(site.classes),
        batch_size=TEST_BATCH,
        device=default_device(),
    )
