"""The files of a run about its settings, its groups, what its sites are like, and its models."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.classes import agreed_classes
from common.config import Config
from common.foreign import read_json
from common.kept_model import PARTIAL, describe, save_model
from common.methods import agreement_on
from common.metrics import Metrics
from common.site_card import SiteCard
from common.state import State
from common.worlds import truth_of
from server.history import run_directory
from server.history.event_log import read_events
from server.history.events import (
    Event,
    GroupsFormed,
    RoundFinished,
    RoundTrained,
    RunEnded,
    RunResumed,
    RunStarted,
    SiteEnrolled,
    SitePlaced,
    SiteRenewed,
)
from server.methods import recipe

_PACKAGES = ("coterie", "flwr", "torch", "torchvision", "timm", "numpy", "scipy", "scikit-learn")


class Artifacts:
    """Keeps what a run was, how it grouped the sites, and what it learnt."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._run: dict[str, object] = {}
        self._clusters: dict[str, object] = {}
        self._distance: NDArray[np.float64] | None = None
        self._views: Mapping[str, NDArray[np.float64]] = {}
        self._cards: dict[str, SiteCard] = {}
        self._labels: dict[str, int] = {}
        self._models: dict[int, State] = {}
        # The round that was tested last, and what its groups' models achieved.
        self._tested: tuple[int, dict[int, Metrics]] = (0, {})
        self._config: Config | None = None
        self._round = 0

    def hear(self, event: Event) -> None:
        """Write each file as soon as its content is known."""
        match event:
            case RunStarted(config, stamp):
                self._config = config
                self._run = _describe(config, stamp)
                self._write_run("running", "")
            case RunResumed():
                self._config, self._round = event.config, event.round_number
                self._run = _describe(event.config, event.stamp) | self._resumed()
                self._write_run("running", "")
                self._cards = {card.name: card for card in event.cards}
                self._labels, self._models = dict(event.labels), event.models
                self._recall(event.round_number)
                self._write_clusters()
            case SiteEnrolled(card):
                self._cards[card.name] = card
            case SiteRenewed(card):
                self._cards[card.name] = card
                self._write_clusters()
            case GroupsFormed():
                self._groups_formed(event)
            case SitePlaced(site=site, group=group):
                self._labels[site] = group
                self._write_clusters()
            case RoundFinished():
                self._models, self._round = event.models, event.round_number
                # Where each site is tested with a model of its own, the figures are not those of the groups' models.
                self._tested = (event.round_number, event.groups if event.shared is None else {})
                self._write_confusions(event)
                self._write_scores(event)
            case RoundTrained(labels=labels):
                self._models, self._round = event.models, event.round_number
                if labels != self._labels:
                    self._labels = dict(labels)
                    self._write_clusters()
            case RunEnded(outcome, reason):
                if self._labels:
                    # The disk may have been full when they last changed.
                    self._write_clusters()
                self._write_distance()
                self._write_views()
                self._save_models()
                self._write_run(outcome, reason)

    def _save_models(self) -> None:
        assert self._config is not None
        classes, method = agreed_classes(self._config.data), recipe(self._config)
        about: dict[str, object] = {"method": method.name}
        about["weights_digest"] = next((card.weights for card in self._cards.values()), "")
        if agreement_on(method.rule).shared is not None:
            about |= {"whole": False, "note": PARTIAL}
        tested, figures = self._tested
        for group, state in self._models.items():
            card = describe(
                self._config,
                classes,
                group,
                self._round,
                # Figures of another round are of another model.
                figures.get(group) if tested == self._round else None,
                integrated=method.one_round,
            ).model_copy(update=about)
            save_model(self._directory / run_directory.MODELS / f"group-{group}.safetensors", state, card)

    def _write_run(self, outcome: str, reason: str) -> None:
        run_directory.write_json(
            self._directory / run_directory.RUN, self._run | {"outcome": outcome, "reason": reason}
        )

    def _resumed(self) -> dict[str, object]:
        """When the run started, and when it went on."""
        kept = read_json(self._directory / run_directory.RUN)
        return {"started": kept["started"], "resumed": [*kept.get("resumed", []), _now()]}

    def _recall(self, done: int) -> None:
        """Take up from the log how the sites were grouped."""
        log = read_events(self._directory).resumed(done)
        for formed in log.of(GroupsFormed):
            self._clusters = _clusters(formed, (self._directory / run_directory.DISTANCES).exists())

    def _groups_formed(self, event: GroupsFormed) -> None:
        self._labels = dict(zip(event.sites, event.labels, strict=True))
        self._clusters = _clusters(event, event.distance is not None)
        self._distance, self._views = event.distance, event.views
        self._write_clusters()
        self._write_distance()
        self._write_views()

    def _write_distance(self) -> None:
        """Write the distances, if that has not been possible before, so that a reader sees all of them or none."""
        if self._distance is None:
            return
        path = self._directory / run_directory.DISTANCES
        temporary = path.with_name(f".{path.name}")
        np.save(temporary, self._distance, allow_pickle=False)
        temporary.replace(path)
        self._distance = None

    def _write_views(self) -> None:
        """Write the similarities that are for the page alone, in the same manner."""
        if not self._views:
            return
        path = self._directory / run_directory.SIMILARITIES
        temporary = path.with_name(f".{path.name}")
        np.savez(temporary, allow_pickle=False, **dict(self._views))
        temporary.replace(path)
        self._views = {}

    def _write_confusions(self, event: RoundFinished) -> None:
        """Write who was taken for what, in the last round that was tested: the log would grow by it in every round."""
        sites = {name: cells.tolist() for name, cells in event.confusions.items()}
        text = json.dumps({"round": event.round_number, "sites": sites}, separators=(",", ":"))
        run_directory.write_text(self._directory / run_directory.CONFUSIONS, text + "\n")

    def _write_scores(self, event: RoundFinished) -> None:
        """Write how sure the groups' models were, as often as who was taken for what: the bins that are not empty."""
        groups = {
            group: [
                [label, place, *counts[:, label, place].tolist()]
                for label, place in np.argwhere(counts.any(axis=0)).tolist()
            ]
            for group, counts in event.scores.items()
        }
        text = json.dumps({"round": event.round_number, "groups": groups}, separators=(",", ":"))
        run_directory.write_text(self._directory / run_directory.SCORES, text + "\n")

    def _write_clusters(self) -> None:
        sites = {
            name: {
                "group": self._labels[name],
                "train_samples": card.train_samples,
                "test_samples": card.test_samples,
                "class_counts": card.class_counts,
                "withheld": card.withheld,
                "faults": card.fault_count,
            }
            for name, card in sorted(self._cards.items())
            if name in self._labels
        }
        value = {"k": len(set(self._labels.values())), **self._clusters, "sites": sites}
        run_directory.write_json(self._directory / run_directory.CLUSTERS, value)


def _clusters(event: GroupsFormed, compared: bool) -> dict[str, object]:
    """How the sites were grouped; `compared`: there is a matrix of their distances."""
    scores = {str(k): run_directory.finite(score) for k, score in (event.k_scores or {}).items()}
    return {
        "cv": None if event.cv is None else run_directory.finite(event.cv),
        "window": event.k_window,
        "silhouette": scores or None,
        "chance": None if event.chance is None else asdict(event.chance),
        "distance_order": event.sites if compared else None,
    }


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _describe(config: Config, stamp: str) -> dict[str, object]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:  # Coterie itself is not installed when Flower runs it from an app bundle.
            continue
    return {
        "config": config.model_dump(),
        "seed": config.seed,
        # The kind of every simulated site, where they differ in kind.
        **({} if (truth := truth_of(config)) is None else {"truth": truth}),
        "stamp": stamp,
        "started": _now(),
        "versions": versions,
        "python": sys.version.split()[0],
        "machine": {"system": platform.system(), "architecture": platform.machine(), "cores": os.cpu_count()},
    }
