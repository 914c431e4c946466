"""Anchors: rows that all sites have and the server has not (DC-CFL, step 1).

Whoever knows the anchors X_anc and what a site made of them, f_i(X_anc), finds f_i by least squares, and with it the
site's rows but for the one direction it dropped. So anchors are drawn from a secret that only the sites share. A
simulation has nothing to hide and draws them from the run's seed.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from client.identity import Identity
from common.config import SettingsError, SiteSettings
from common.methods.dc_cfl import Settings as CollaborationSettings
from common.randomness import secret_generator
from common.table import Table, write_table

Rows = NDArray[np.float64]

# 128 bits in hexadecimal; `coterie collab secret` writes twice as many.
SHORTEST_SECRET = 32


def agreement(settings: SiteSettings) -> str:
    """All settings on which the anchors and what is made of them depend, as text; no path is among them."""
    collaboration = settings.of(CollaborationSettings).model_dump_json(exclude={"sample"})
    # A projection that is not there is no part of it: it was not known of when the first anchors were drawn.
    without = {"weights"} if settings.encoder.dimensions else {"weights", "dimensions"}
    encoder = settings.encoder.model_dump_json(exclude=without) if settings.data.input == "embedding" else ""
    return "\x1f".join((str(settings.seed), write_table(settings.data.table), collaboration, encoder))


def shared_secret(identity: Identity, settings: SiteSettings) -> int:
    """The number that anchors are drawn from: of the sites' common secret, or of the seed in a simulation.

    Other settings give other anchors. A server could else have the same draw squeezed into one range after another,
    and put together what it sees of each.
    """
    base = b"" if identity.is_simulated else _common_secret(identity)
    return int.from_bytes(hashlib.sha256(base + b"\x1e" + agreement(settings).encode()).digest(), "big")


def _common_secret(identity: Identity) -> bytes:
    if identity.anchor_secret is None:
        raise SettingsError(
            "this method needs a secret that all sites share and the server does not know: make it at one site with "
            "`coterie collab secret FILE`, pass it on to the others, and name it as anchor_secret in site.toml"
        )
    try:
        content = identity.anchor_secret.read_bytes().strip()
    except OSError as error:
        raise SettingsError(f"cannot read the anchor secret {identity.anchor_secret}: {error.strerror}") from None
    if len(content) < SHORTEST_SECRET:
        raise SettingsError(
            f"the anchor secret {identity.anchor_secret} is shorter than {SHORTEST_SECRET} characters and could be "
            "guessed: `coterie collab secret FILE` makes a good one"
        )
    return content


def gaussian_anchors(count: int, width: int, table: Table | None, secret: int) -> Rows:
    """Draw float64[count, width] of zero mean, unit variance and the schema's correlations, within its ranges."""
    rows = secret_generator(secret, "anchors").standard_normal((count, width))
    if table is None:
        return rows
    if table.correlations:
        values, vectors = np.linalg.eigh(np.array(table.correlations))
        # Agreed to a few digits, so that eigenvalues of 0 may have become a little negative.
        rows = rows @ (vectors * np.sqrt(np.maximum(values, 0))).T
    low, high = _ranges(table)
    return np.clip(rows, low, high)


def uniform_anchors(count: int, table: Table, secret: int) -> Rows:
    """Draw float64[count, m]: numbers uniform in their ranges, categories with equal chances."""
    rng = secret_generator(secret, "anchors")
    parts = []
    for column in table.columns:
        if column.categories:
            hit = rng.integers(column.width, size=count)[:, np.newaxis] == np.arange(column.width)
            centre, scale = np.array(column.one_hot()).T
            parts.append((hit - centre) / scale)
        else:
            low, high = column.bounds
            parts.append(((rng.uniform(low, high, count) - column.centre) / column.scale)[:, np.newaxis])
    return np.concatenate(parts, axis=1)


def interpolated_anchors(count: int, public: NDArray[np.floating], secret: int) -> Rows:
    """Draw float64[count, m] on the lines between random pairs of public rows (as SMOTE does)."""
    rng = secret_generator(secret, "anchors")
    first = rng.integers(len(public), size=count)
    # Never a row with itself: an anchor in its place would be that row.
    second = (first + rng.integers(1, len(public), size=count)) % len(public)
    share = rng.random((count, 1))
    anchors: Rows = public[first] * (1 - share) + public[second] * share
    return anchors


def mark(anchors: Rows) -> NDArray[np.uint8]:
    """Digest of the anchors, uint8[32]: tells sites with other anchors apart and nothing about the anchors."""
    # Rounded: sites on other processors may differ in the last bits of a logarithm or a product.
    rounded = np.round(anchors, 6) + 0.0
    return np.frombuffer(hashlib.sha256(str(anchors.shape).encode() + rounded.tobytes()).digest(), np.uint8)


def _ranges(table: Table) -> tuple[Rows, Rows]:
    low, high = [], []
    for column in table.columns:
        if column.categories:
            low += [-np.inf] * column.width
            high += [np.inf] * column.width
        else:
            low.append((column.bounds[0] - column.centre) / column.scale)
            high.append((column.bounds[1] - column.centre) / column.scale)
    return np.array(low), np.array(high)
