"""Who a site is and where its own things are, from the node config of its SuperNode."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from client.policy.policy import OPEN, Policy

_NO_LEAST = {"class_samples": 1, "train_samples": 1, "test_samples": 0}


@dataclass(frozen=True)
class Identity:
    """A site as its operator set it up.

    Attributes
    ----------
    name
        The site's own name: node config `site`, else its partition id, else the Flower node id.
    data_path
        The site's own folder, manifest or .npz (node config `data-path`). It wins over any path the server names.
    partition
        (index, count) of a simulated site, which holds a share of one common data set.
    cache
        Folder for embeddings and decoded images (node config `cache`); None: the user's cache folder.
    encoder_weights
        The site's own copy of the encoder's weights (node config `encoder-weights`).
    network_weights
        The site's own copy of the pretrained weights of a run's network (node config `network-weights`).
    networks
        Networks of others, `package.module:factory`, that the site allows (node config `networks`).
    anchor_secret
        File with the secret that the sites share and the server does not know (node config `anchor-secret`).
    anchor_sample
        The site's own copy of the public rows or images that anchors are made of (node config `anchor-sample`).
    policy
        What the site answers (node config `policy`, as JSON); a site of a simulation answers everything.
    ledger
        File with what the site was asked and what left it (node config `ledger`); None: beside the cache.
    models
        Folder for the final models (node config `models`); None: as `models_folder` has it.
    memory
        Folder for what the site remembers of a run (node config `memory`); None: beside the cache.
    key, certificate, authority
        Files with the site's private key, the authority's word whose key it is, and the authority's own certificate
        (node config `key`, `certificate`, `authority`); None: it has none.
    in_engine
        Whether nobody set the site up: it is one of a simulation, in the process or on the machine of its server.
    """

    name: str
    data_path: Path | None
    partition: tuple[int, int] | None
    cache: Path | None
    encoder_weights: Path | None = None
    network_weights: Path | None = None
    networks: tuple[str, ...] = ()
    anchor_secret: Path | None = None
    anchor_sample: Path | None = None
    policy: Policy = OPEN
    ledger: Path | None = None
    models: Path | None = None
    memory: Path | None = None
    key: Path | None = None
    certificate: Path | None = None
    authority: Path | None = None
    in_engine: bool = False

    @property
    def is_simulated(self) -> bool:
        """Whether the site only holds a share of a data set that the coordinator's own machine has."""
        return self.data_path is None and self.partition is not None


def identify(node_config: Mapping[str, object], node_id: int) -> Identity:
    """Read the node config of a SuperNode (or of a simulated one)."""
    index, count = node_config.get("partition-id"), node_config.get("num-partitions")
    partition = (index, count) if isinstance(index, int) and isinstance(count, int) else None
    default = f"{index:03d}" if isinstance(index, int) else str(node_id)
    return Identity(
        name=str(node_config.get("site", default)),
        data_path=_path(node_config.get("data-path")),
        partition=partition,
        cache=_path(node_config.get("cache")),
        encoder_weights=_path(node_config.get("encoder-weights")),
        network_weights=_path(node_config.get("network-weights")),
        networks=tuple(name.strip() for name in str(node_config.get("networks", "")).split(",") if name.strip()),
        anchor_secret=_path(node_config.get("anchor-secret")),
        anchor_sample=_path(node_config.get("anchor-sample")),
        policy=_policy(node_config, simulated=partition is not None and not node_config.get("data-path")),
        ledger=_path(node_config.get("ledger")),
        models=_path(node_config.get("models")),
        memory=_path(node_config.get("memory")),
        key=_path(node_config.get("key")),
        certificate=_path(node_config.get("certificate")),
        authority=_path(node_config.get("authority")),
        in_engine=partition is not None and not {"site", "cache", "data-path"} & node_config.keys(),
    )


def _policy(node_config: Mapping[str, object], *, simulated: bool) -> Policy:
    if simulated:
        return OPEN
    text = str(node_config.get("policy", ""))
    # What is none raises: limits that cannot be read must not be passed over.
    policy = Policy.model_validate_json(text) if text else Policy()
    # Where all has noise nobody is hidden by a crowd, and a refusal for want of samples would be exact.
    return policy.model_copy(update=_NO_LEAST) if policy.privacy.is_on else policy


def _path(value: object) -> Path | None:
    return Path(str(value)).expanduser() if value else None


def cache_folder(identity: Identity, setting: str) -> Path:
    """Return the folder for what may be computed again; only a simulated site lets the run choose it."""
    if identity.cache is not None:
        return identity.cache
    if setting and identity.is_simulated:
        return Path(setting).expanduser()
    return _user_cache(os.environ.get("XDG_CACHE_HOME"), os.environ.get("HOME"))


# By what it depends on: it is asked for several times in every message.
@lru_cache(maxsize=4)
def _user_cache(folder: str | None, _home: str | None) -> Path:
    return Path(folder or Path.home() / ".cache") / "coterie"


def models_folder(identity: Identity) -> Path | None:
    """Return where the site keeps final models; None for a simulated site that nobody told to keep any."""
    if identity.models is not None or identity.is_simulated:
        return identity.models
    # Sites of one machine may share the folder of the cache, but never a model.
    return cache_folder(identity, "") / "models" / quote(identity.name, safe="")
