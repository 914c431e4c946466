"""What all runs of a suite share is done once, before the first of them: class lists, decoded images, embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cli.simulation.preflight import prepare
from cli.suites.suite import Cell
from client.data import load_site
from client.embeddings import embeddings
from client.encoder import load_encoder
from client.identity import Identity, cache_folder
from common.config import Config
from common.encoders import COLUMNS, HEADS
from common.mean_feature import MeanFeature
from common.signature import Signature
from common.subspace import Subspace
from server.history.run_directory import is_finished
from server.methods import get_method

_EMBEDDED = {Signature.kind, MeanFeature.kind, Subspace.kind}


def prepare_cells(cells: Sequence[Cell], *, embed: bool, say: Callable[[str], None]) -> list[Cell]:
    """Return the cells with their class lists, or raise `SettingsError`; with `embed`, fill the cache of embeddings."""
    classes: dict[Config, tuple[str, ...]] = {}
    prepared = []
    for cell in cells:
        key = _data_of(cell.config)
        if key not in classes:
            classes[key] = prepare(cell.config).data.classes
        data = cell.config.data.model_copy(update={"classes": classes[key]})
        prepared.append(replace(cell, config=cell.config.model_copy(update={"data": data})))
    if embed:
        _embed_once(prepared, say)
    return prepared


def _data_of(config: Config) -> Config:
    """The part of the settings on which the data of the sites depend."""
    return Config(
        data=config.data, partition=config.partition, sites=config.sites, seed=config.seed, cache=config.cache,
        drift=config.drift, rounds=config.rounds,
    )  # fmt: skip


def _embed_once(cells: Sequence[Cell], say: Callable[[str], None]) -> None:
    """Embed each data set by each encoder that does not depend on the seed, so that no two runs do it side by side."""
    done = set()
    for cell in cells:
        config = cell.config
        needed = get_method(config.method).fingerprint in _EMBEDDED or config.train.model in HEADS
        if not needed or config.encoder.name.startswith("random:") or config.encoder.name == COLUMNS:
            continue
        # Where sites have devices of their own, their images are others for every seed and partition.
        devices = config.partition.shift == "devices"
        key = (config.data, config.encoder, config.cache, (config.partition, config.seed, config.sites) * devices)
        if key in done or is_finished(Path(config.out), config):
            continue
        done.add(key)
        site = Identity("000", None, (0, config.sites), None)
        parts = [
            load_site(replace(site, partition=(index, config.sites)), config.for_site(), rounds=config.rounds)
            for index in range(config.sites)
        ]
        held = [np.union1d(part.train, part.test) for part in parts]
        say(
            f"embedding {sum(map(len, held))} images of {cell.data} by {config.encoder.name}, but for those in the "
            "cache …"
        )
        encoder = load_encoder(config.encoder, config.seed)
        cache = cache_folder(site, config.cache)
        sources = (
            zip((part.images for part in parts), held, strict=True)
            if devices
            else [(parts[0].images, np.sort(np.concatenate(held)))]
        )
        for images, rows in sources:
            embeddings(encoder, images, rows, cache, config.encoder.batch_size)
