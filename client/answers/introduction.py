"""What a site says before training: its card, and the fingerprint that the method asks for."""

from __future__ import annotations

import logging
import time

from flwr.app import RecordDict

from client.data.samples import TableSamples, in_one_line
from client.fingerprints import FINGERPRINTS
from client.identity import models_folder
from client.networks import frozen_digest, network_of
from client.request import Request
from client.watching import remember_description
from common import wire
from common.fingerprint import KINDS

_log = logging.getLogger("coterie")


def hello(request: Request) -> RecordDict:
    """Say who the site is and how much data it has."""
    return wire.pack_introduction(wire.Introduction(card_of(request), None, 0.0))


def introduce(request: Request, kind: str) -> RecordDict:
    """Say who the site is, and describe its training samples."""
    return wire.pack_introduction(introduction(request, kind))


def introduction(request: Request, kind: str) -> wire.Introduction:
    """What a site says of itself, with a fingerprint of one kind."""
    start = time.perf_counter()
    by_row = KINDS[kind].by_row
    described = FINGERPRINTS[kind](request if by_row else request.describable)
    # Before the answer goes out: what was said must be known, when the server goes by it.
    remember_description(request)
    return wire.Introduction(card_of(request, by_row=by_row), described, time.perf_counter() - start)


def card_of(request: Request, *, by_row: bool = False) -> wire.SiteCard:
    """The card of a site; files that cannot be used are named in its own log alone.

    Of classes that are too small to be described only the sum of their samples is told, unless the fingerprint has a
    label for each row.
    """
    site, identity = request.site, request.identity
    told = request.discretion.told(1 if by_row else identity.policy.class_samples)
    named = tuple(f"{fault.name}: {fault.reason}" for fault in site.faults)
    if named:
        done = "left out or stood in for" if isinstance(site.samples, TableSamples) else "skipped"
        _log.warning("%s: %s", done, in_one_line(site.faults))
    for note in site.samples.notes:
        _log.warning("%s", note)
    return wire.SiteCard(
        name=site.name,
        train_samples=int(told.counts.sum()) + told.withheld,
        test_samples=told.tested,
        class_counts=tuple(int(count) for count in told.counts),
        withheld=told.withheld,
        fault_count=told.faults,
        # Simulated sites share one data set on one machine: the first of them reports it, by name.
        faults=named if identity.is_simulated else (),
        keeps=models_folder(identity) is not None,
        weights=digest_of(request),
        spending=request.discretion.spending(),
    )


def digest_of(request: Request) -> str:
    """What tells the weights of a pretrained network from others; a site that cannot have the network says so here."""
    if ":" not in request.settings.train.model:
        # One of ours, which everybody has, and of which some methods need none.
        return ""
    return frozen_digest(network_of(request.settings, request.identity))
