"""Embeddings of all simulated sites at once: the encoder sees full batches, however small the sites are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from client.data import load_site
from client.embeddings import embeddings
from client.encoder import load_encoder
from client.identity import Identity, cache_folder
from common.config import Config
from common.encoders import COLUMNS, HEADS
from common.mean_feature import MeanFeature
from common.signature import Signature
from common.subspace import Subspace
from server.methods import get_method

_EMBEDDED = {Signature.kind, MeanFeature.kind, Subspace.kind}
_SITE = Identity("000", None, (0, 1), None, in_engine=True)
# Rows embedded before their place in memory is used again.
_PART = 4096


def needs_embeddings(config: Config) -> bool:
    """Whether the sites of a run embed their images."""
    if config.encoder.name == COLUMNS:
        return False
    return get_method(config.method).fingerprint in _EMBEDDED or config.train.model in HEADS


def embed_sites(config: Config, *, tests: bool) -> None:
    """Put the embeddings of what the sites train on before any drift, and of their test parts, into the cache."""
    parts = [
        load_site(replace(_SITE, partition=(index, config.sites)), config.for_site(), rounds=config.rounds)
        for index in range(config.sites)
    ]
    held = [part.train for part in parts] + ([part.test for part in parts] if tests else [])
    encoder = load_encoder(config.encoder, config.seed)
    cache = cache_folder(_SITE, config.cache)
    # Where sites have devices of their own, each sees images of its own.
    sources = (
        [(part.images, rows) for part, rows in zip(parts * 2, held, strict=False)]
        if config.partition.shift == "devices"
        else [(parts[0].images, np.unique(np.concatenate(held)))]
    )
    for images, rows in sources:
        for start in range(0, len(rows), _PART):
            embeddings(encoder, images, rows[start : start + _PART], cache, config.encoder.batch_size)
