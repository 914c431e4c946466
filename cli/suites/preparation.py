"""What all runs of a suite share is done once, before the first of them: class lists, decoded images, embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from cli.simulation.embedding import embed_sites, needs_embeddings
from cli.simulation.preflight import prepare
from cli.suites.suite import Cell
from common.config import Config
from server.history.run_directory import is_finished


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
        if not needs_embeddings(config) or config.encoder.name.startswith("random:"):
            continue
        # Where sites have devices of their own, their images are others for every seed and partition.
        devices = config.partition.shift == "devices"
        key = (config.data, config.encoder, config.cache, (config.partition, config.seed, config.sites) * devices)
        if key in done or is_finished(Path(config.out), config):
            continue
        done.add(key)
        say(f"embedding the images of {cell.data} by {config.encoder.name}, but for those in the cache …")
        # The test parts, too: in the runs of other seeds they are trained on.
        embed_sites(config, tests=True)
