"""One round of data collaboration at a site (DC-CFL): what it sends once, and what it does with the answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client.collaboration.anchors import (
    gaussian_anchors,
    interpolated_anchors,
    mark,
    shared_secret,
    uniform_anchors,
)
from client.collaboration.outgoing import aggregated, blurred
from client.collaboration.projection import projected
from client.collaboration.validation import held_out_groups, held_out_rows
from client.collaboration.vault import MapIsGone, Vault
from client.data import NoUsableData, SiteData, open_source
from client.data.samples import ImageSamples, TableSamples
from client.data.tables import read_public_rows
from client.embeddings import embeddings
from client.encoder import Encoder
from client.identity import Identity, cache_folder
from common.collaboration import Answer, Collaboration
from common.config import SettingsError, SiteSettings
from common.methods.dc_cfl import Settings as CollaborationSettings
from common.randomness import generator, secret_generator
from common.state import State

Rows = NDArray[np.float64]


class Collaborator:
    """A site that takes part in a single round.

    Parameters
    ----------
    identity, settings
        Of the site and the run.
    site
        Its data.
    encoder
        Where `data.input` is "embedding".
    """

    def __init__(self, identity: Identity, settings: SiteSettings, site: SiteData, encoder: Encoder | None) -> None:
        self._identity, self._settings, self._site, self._encoder = identity, settings, site, encoder
        self._vault = Vault(identity, settings)

    def offer(self) -> Collaboration:
        """What the site sends, once."""
        settings = self._settings.of(CollaborationSettings)
        rows = self._rows(self._site.samples, self._site.train)
        anchors = self._anchors(rows.shape[1])
        dimensions = self._dimensions(rows.shape[1])
        digest = f"{self._site.samples.digest} {self._site.train.tobytes().hex()}"
        private, secret = self._vault.map_for(rows, dimensions, digest)
        sent, labels, validates = self._outgoing(private(rows), settings.aggregate)
        if not len(sent):
            raise NoUsableData(
                self._site.name, [f"no class has collaboration.aggregate = {settings.aggregate} rows or more"]
            )
        return Collaboration(
            rows=blurred(sent, settings.noise, secret_generator(secret, "noise")).astype(np.float32),
            labels=labels,
            validates=validates.astype(np.uint8),
            anchors=private(anchors).astype(np.float32),
            mark=mark(anchors),
            ticket=private.ticket,
        )

    def integrated(self, answer: Answer, positions: NDArray[np.int64]) -> NDArray[np.float32]:
        """[f_i(x), 1] G_i of some of the site's samples: what the answer's model reads, float32[n, k]."""
        train = self._rows(self._site.samples, self._site.train)
        private = self._vault.recall(answer.ticket, train, self._dimensions(train.shape[1]))
        if private.components.shape[1] + 1 != len(answer.mapping) or private.components.shape[0] != train.shape[1]:
            raise MapIsGone(
                f"a mapping of {len(answer.mapping) - 1} dimensions does not fit this site's map of "
                f"{private.components.shape[1]}"
            )
        rows = self._rows(self._site.samples, positions)
        integrated: Rows = private(rows) @ answer.mapping[:-1] + answer.mapping[-1]
        return integrated.astype(np.float32)

    def plain_model(self, answer: Answer) -> State:
        """h(f_i(x) G_i) as one network on a row x itself; it holds f_i, so it stays at the site."""
        train = self._rows(self._site.samples, self._site.train)
        private = self._vault.recall(answer.ticket, train, self._dimensions(train.shape[1]))
        turn = private.components @ answer.mapping[:-1]
        offset = answer.mapping[-1] - private.mean @ turn
        weight, bias = answer.model["body.1.weight"], answer.model["body.1.bias"]
        first = {"body.1.weight": weight @ turn.T, "body.1.bias": bias + weight @ offset}
        return {name: np.ascontiguousarray(first.get(name, array), np.float32) for name, array in answer.model.items()}

    def _outgoing(self, rows: Rows, size: int) -> tuple[Rows, NDArray[np.int64], NDArray[np.bool_]]:
        """What is sent of the rows: they or their averages, their labels, and which of them only validate."""
        rng = generator(self._settings.seed, "validation", self._site.name)
        labels, groups = self._site.train_labels, self._site.samples.groups
        if groups is None:
            sent, kinds = aggregated(rows, labels, size)
            return sent, kinds, held_out_rows(kinds, rng)
        held = held_out_groups(labels, groups[self._site.train], rng)
        if size == 1:
            return rows, labels, held
        # Each part by itself: an average over both would have a patient on both sides.
        parts = [aggregated(rows[part], labels[part], size) for part in (~held, held)]
        if not len(parts[0][0]):
            sent, kinds = aggregated(rows, labels, size)
            return sent, kinds, np.zeros(len(kinds), np.bool_)
        (fitted, fitted_kinds), (kept, kept_kinds) = parts
        return (
            np.concatenate([fitted, kept]),
            np.concatenate([fitted_kinds, kept_kinds]),
            np.repeat([False, True], [len(fitted), len(kept)]),
        )

    def _dimensions(self, width: int) -> int:
        """m̃: what the settings say, else one fewer than a row has, so that rows cannot be computed back."""
        return min(self._settings.of(CollaborationSettings).dimensions or max(width - 1, 1), width)

    def _anchors(self, width: int) -> Rows:
        settings, table = self._settings.of(CollaborationSettings), self._settings.data.table
        secret = shared_secret(self._identity, self._settings)
        count = settings.anchor_rows
        if count < width:
            raise SettingsError(f"collaboration.anchor_rows = {count} is fewer than a row has numbers ({width})")
        if settings.anchors == "interpolated":
            return interpolated_anchors(count, self._public_rows(), secret)
        if settings.anchors == "uniform":
            if table is None:
                raise SettingsError("collaboration.anchors = 'uniform' needs the ranges of a table's schema")
            return uniform_anchors(count, table, secret)
        return gaussian_anchors(count, width, table, secret)

    def _public_rows(self) -> NDArray[np.floating]:
        path = self._identity.anchor_sample
        if path is None and self._identity.is_simulated and self._settings.of(CollaborationSettings).sample:
            path = Path(self._settings.of(CollaborationSettings).sample).expanduser()
        if path is None:
            raise SettingsError(
                "collaboration.anchors = 'interpolated' needs public rows: set anchor_sample in site.toml "
                "(in a simulation collaboration.sample)"
            )
        data = self._settings.data
        if data.table is not None:
            return read_public_rows(path, data.table)
        public = open_source(data, path, self._site.classes, cache_folder(self._identity, self._settings.cache))
        return self._rows(public, np.arange(len(public), dtype=np.int64))

    def _rows(self, samples: object, positions: NDArray[np.int64]) -> Rows:
        """Scaled rows of a table, or embeddings projected to fewer numbers, float64[n, m]."""
        if isinstance(samples, TableSamples):
            return samples.rows[positions].astype(np.float64)
        assert isinstance(samples, ImageSamples)
        if self._encoder is None:
            raise SettingsError("this method reads tables, or images with data.input = 'embedding'")
        settings = self._settings
        cache = cache_folder(self._identity, settings.cache)
        vectors = embeddings(self._encoder, samples, positions, cache, settings.encoder.batch_size)
        return projected(vectors, settings.of(CollaborationSettings).projection, settings.seed)


__all__ = ["Collaborator", "MapIsGone"]
