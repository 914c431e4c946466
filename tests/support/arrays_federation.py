"""A whole clustered federation on plain arrays: digits, a network of one hidden layer, hand-written gradients.

Small enough to run 30 rounds in a second, and real enough to show what updates do when a site's data change.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

Weights = tuple[NDArray[np.float64], ...]  # hidden weight and bias, head weight and bias

HIDDEN = 32
RATE, BATCH, EPOCHS = 0.2, 16, 2


class ArraysFederation:
    """`sites` sites, site i holding the digits of label group i % groups (digits g and g + groups)."""

    def __init__(self, sites: int = 20, groups: int = 5, seed: int = 0) -> None:
        digits = load_digits()
        rng = np.random.default_rng(seed)
        self._pixels, self._labels = digits.data / 16, digits.target
        self._rng = rng
        self._rows: dict[str, NDArray[np.int64]] = {}
        self.kind = {f"{site:03d}": site % groups for site in range(sites)}
        for group in range(groups):
            members = [name for name, kind in self.kind.items() if kind == group]
            rows = rng.permutation(np.flatnonzero(self._labels % groups == group))
            for name, share in zip(members, np.array_split(rows, len(members)), strict=True):
                self._rows[name] = share
        self._start: Weights = (
            rng.normal(0, 0.2, (64, HIDDEN)),
            np.zeros(HIDDEN),
            rng.normal(0, 0.2, (HIDDEN, 10)),
            np.zeros(10),
        )
        self.models: dict[int, Weights] = {}
        # Of the sites while they last trained.
        self.losses: dict[str, float] = {}

    def swap(self, first: str, second: str) -> None:
        """Two sites exchange their data."""
        self._rows[first], self._rows[second] = self._rows[second], self._rows[first]
        self.kind[first], self.kind[second] = self.kind[second], self.kind[first]

    def mix(self, first: str, second: str, share: float) -> None:
        """Two sites exchange a share of their data and keep their kind."""
        cuts = {name: round((1 - share) * len(self._rows[name])) for name in (first, second)}
        (one, from_one), (other, from_other) = (np.split(self._rows[name], [cut]) for name, cut in cuts.items())
        self._rows[first], self._rows[second] = np.r_[one, from_other], np.r_[other, from_one]

    def follow(self, site: str, other: str) -> None:
        """A site now has data of the other's kind; the other shares its own with it."""
        self._rows[other], self._rows[site] = np.array_split(self._rows[other], 2)
        self.kind[site] = self.kind[other]

    def train(self, groups: Mapping[str, int], taking_part: set[str] | None = None) -> dict[str, NDArray[np.float64]]:
        """One round of FedAvg in every group; returns the change of the head at each site that took part."""
        changes: dict[str, NDArray[np.float64]] = {}
        for group in sorted(set(groups.values())):
            model = self.models.setdefault(group, self._start)
            members = [name for name, of in sorted(groups.items()) if of == group]
            trained = {}
            for name in members:
                if taking_part is None or name in taking_part:
                    trained[name], self.losses[name] = self._local(model, self._rows[name])
            for name, state in trained.items():
                changes[name] = np.concatenate([(state[part] - model[part]).ravel() for part in (2, 3)])
            if trained:
                sizes = np.array([len(self._rows[name]) for name in trained], np.float64)
                self.models[group] = tuple(
                    np.average([state[part] for state in trained.values()], axis=0, weights=sizes) for part in range(4)
                )
        return changes

    def accuracy(self, groups: Mapping[str, int]) -> float:
        """Share of all samples that their site's group's model gets right."""
        hits = [
            self._forward(self.models[groups[name]], self._pixels[rows])[1].argmax(1) == self._labels[rows]
            for name, rows in self._rows.items()
        ]
        return float(np.concatenate(hits).mean())

    def _local(self, model: Weights, rows: NDArray[np.int64]) -> tuple[Weights, float]:
        """Train on some rows; returns the new weights and the mean loss while training."""
        state, losses = model, []
        for _ in range(EPOCHS):
            order = self._rng.permutation(rows)
            for batch in (order[start : start + BATCH] for start in range(0, len(order), BATCH)):
                inputs, targets = self._pixels[batch], np.eye(10)[self._labels[batch]]
                hidden, scores = self._forward(state, inputs)
                odds = np.exp(scores - scores.max(1, keepdims=True))
                losses.append(-np.log((odds / odds.sum(1, keepdims=True))[targets > 0] + 1e-12).mean())
                error = (odds / odds.sum(1, keepdims=True) - targets) / len(batch)
                back = (error @ state[2].T) * (hidden > 0)
                gradients = (inputs.T @ back, back.sum(0), hidden.T @ error, error.sum(0))
                state = tuple(part - RATE * gradient for part, gradient in zip(state, gradients, strict=True))
        return state, float(np.mean(losses))

    @staticmethod
    def _forward(model: Weights, inputs: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        hidden = np.maximum(inputs @ model[0] + model[1], 0)
        return hidden, hidden @ model[2] + model[3]
