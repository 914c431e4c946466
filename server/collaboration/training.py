"""Many small networks trained side by side: the models of all clusters, for all candidates (DC-CFL, step 3).

A cluster's network is so small that a step of SGD costs more in calls than in arithmetic. Stacked, the networks of all
clusters take one step with the calls of one. Each still sees its own rows in its own order and ends with the same
weights, up to rounding, as if it had been trained alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.config import TrainSettings
from common.models import build, get_state
from common.randomness import generator
from common.state import State

Hidden = tuple[int, int]

# An MLP of common.models: weight and bias of each layer.
_LAYERS = ("body.1", "body.3", "head")

# Networks trained together: more of them do not fit into a core's cache and take longer each.
_STACKED = 32


@dataclass(frozen=True)
class Job:
    """One network to train.

    Attributes
    ----------
    name
        With the seed it fixes the order of the rows.
    rows : float32[n, k]
    labels : int64[n]
    hidden
        Widths of the two hidden layers.
    """

    name: str
    rows: NDArray[np.float32]
    labels: NDArray[np.int64]
    hidden: Hidden


@lru_cache(maxsize=64)
def initial_network(columns: int, classes: int, hidden: Hidden, seed: int) -> State:
    """The weights a network starts from: a function of the seed and its shape. Shared: copy before changing."""
    return get_state(build("mlp", classes=classes, features=columns, hidden=hidden, seed=seed))


def train_networks(
    jobs: Sequence[Job],
    settings: TrainSettings,
    *,
    classes: int,
    seed: int,
    progress: Callable[[float], None] = lambda share: None,
) -> list[State]:
    """Train every job by SGD with momentum on the mean cross-entropy of its batches; return the states in order.

    Narrower networks are filled up with zeros, which stay zero: a unit without weights gets no gradient.
    """
    before = torch.get_num_threads()
    # Small products: more threads only wait for each other, and the bits would depend on how many there are.
    torch.set_num_threads(1)
    try:
        return _train_stacks(jobs, settings, classes, seed, progress)
    finally:
        torch.set_num_threads(before)


def _train_stacks(
    jobs: Sequence[Job], settings: TrainSettings, classes: int, seed: int, progress: Callable[[float], None]
) -> list[State]:
    steps = np.array([settings.epochs * -(-len(job.rows) // settings.batch_size) for job in jobs])
    # The longest first: those of a stack take about as many steps, and those that go on are always the first ones.
    order = np.argsort(-steps, kind="stable")
    total, done = int(steps.sum()), 0
    states: dict[int, State] = {}
    for start in range(0, len(jobs), _STACKED):
        chosen = order[start : start + _STACKED]
        book = _Book([jobs[place] for place in chosen], settings, seed)
        starts = [initial_network(job.rows.shape[1], classes, job.hidden, seed) for job in book.jobs]
        network = _Stack(starts)
        left = steps[chosen]
        for step in range(int(left[0])):
            active = int((left > step).sum())
            network.step(*book.batch(step, active), settings)
            done += active
            if step % 256 == 0:
                progress(done / total)
        states |= dict(zip(chosen.tolist(), network.states(starts), strict=True))
    return [states[place] for place in range(len(jobs))]


def scores(state: State, rows: NDArray[np.floating]) -> NDArray[np.float32]:
    """Logits float32[n, C] of a network."""
    values = rows.astype(np.float32)
    for layer in _LAYERS:
        values = values @ state[f"{layer}.weight"].T + state[f"{layer}.bias"]
        if layer != _LAYERS[-1]:
            values = np.maximum(values, 0)
    return values


class _Book:
    """Which rows each job sees at which step."""

    def __init__(self, jobs: list[Job], settings: TrainSettings, seed: int) -> None:
        self.jobs = jobs
        self._batch, self._seed = settings.batch_size, seed
        sizes = np.array([len(job.rows) for job in jobs])
        self._per_epoch = -(-sizes // self._batch)
        # All rows in one array, each job's list of turns in another, filled up to whole batches by the row after the
        # last, which is zero and counts for nothing.
        columns = max(job.rows.shape[1] for job in jobs)
        stores: dict[int, int] = {}
        pieces: list[NDArray[np.float32]] = []
        targets: list[NDArray[np.int64]] = []
        self._first = np.zeros(len(jobs), np.int64)
        total = 0
        for place, job in enumerate(jobs):
            # Candidates that differ in width alone share their rows.
            if id(job.rows) not in stores:
                stores[id(job.rows)] = total
                pieces.append(np.pad(job.rows, ((0, 0), (0, columns - job.rows.shape[1]))))
                targets.append(job.labels)
                total += len(job.rows)
            self._first[place] = stores[id(job.rows)]
        self._rows = torch.from_numpy(np.concatenate([*pieces, np.zeros((1, columns), np.float32)]))
        self._labels = torch.from_numpy(np.concatenate([*targets, np.zeros(1, np.int64)]))
        self._nothing = total
        ends = np.cumsum(self._per_epoch * self._batch)
        self._turn_start = ends - self._per_epoch * self._batch
        self._turns = np.full(int(ends[-1]), self._nothing, np.int64)
        self._within = np.arange(self._batch)

    def batch(self, step: int, active: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rows [J, B, k], labels [J, B] and weights [J, B, 1] (1 / size of the batch, or 0) of the first jobs."""
        at = step % self._per_epoch[:active]
        for place in np.flatnonzero(at == 0):
            self._shuffle(int(place), step // int(self._per_epoch[place]))
        turns = self._turns[(self._turn_start[:active] + at * self._batch)[:, np.newaxis] + self._within]
        real = turns != self._nothing
        weights = (real / real.sum(axis=1, keepdims=True)).astype(np.float32)
        index = torch.from_numpy(turns)
        return self._rows[index], self._labels[index], torch.from_numpy(weights).unsqueeze(2)

    def _shuffle(self, place: int, epoch: int) -> None:
        job = self.jobs[place]
        order = generator(self._seed, "collaboration", job.name, epoch).permutation(len(job.rows))
        start = self._turn_start[place]
        self._turns[start : start + len(order)] = self._first[place] + order


class _Stack:
    """Networks of three layers, stacked: weights [J, in, out] and biases [J, 1, out], with their momentum."""

    def __init__(self, starts: Sequence[State]) -> None:
        self._weights, self._biases = [], []
        for layer in _LAYERS:
            shapes = [start[f"{layer}.weight"].shape for start in starts]
            outputs, inputs = (max(shape[side] for shape in shapes) for side in (0, 1))
            weight, bias = torch.zeros(len(starts), inputs, outputs), torch.zeros(len(starts), 1, outputs)
            for place, start in enumerate(starts):
                rows, columns = shapes[place]
                weight[place, :columns, :rows] = torch.from_numpy(start[f"{layer}.weight"].T.copy())
                bias[place, 0, :rows] = torch.from_numpy(start[f"{layer}.bias"].copy())
            self._weights.append(weight)
            self._biases.append(bias)
        self._speeds = [torch.zeros_like(part) for part in (*self._weights, *self._biases)]

    def step(self, rows: Tensor, labels: Tensor, weights: Tensor, settings: TrainSettings) -> None:
        """One step of SGD for the first len(rows) networks."""
        active = len(rows)
        w1, w2, w3 = (part[:active] for part in self._weights)
        b1, b2, b3 = (part[:active] for part in self._biases)
        first = torch.baddbmm(b1, rows, w1).relu_()
        second = torch.baddbmm(b2, first, w2).relu_()
        # The gradient of the mean cross-entropy by the logits: softmax − one-hot, over the size of the batch.
        error = torch.softmax(torch.baddbmm(b3, second, w3), dim=2)
        error.scatter_add_(2, labels.unsqueeze(2), torch.full_like(weights, -1.0))
        error.mul_(weights)
        back2 = torch.bmm(error, w3.mT).mul_(second > 0)
        back1 = torch.bmm(back2, w2.mT).mul_(first > 0)
        gradients = [torch.bmm(rows.mT, back1), torch.bmm(first.mT, back2), torch.bmm(second.mT, error)]
        gradients += [part.sum(dim=1, keepdim=True) for part in (back1, back2, error)]
        parts = [w1, w2, w3, b1, b2, b3]
        speeds = [speed[:active] for speed in self._speeds]
        for part, speed, gradient in zip(parts, speeds, gradients, strict=True):
            if settings.weight_decay:
                gradient.add_(part, alpha=settings.weight_decay)
            speed.mul_(settings.momentum).add_(gradient)
            part.add_(speed, alpha=-settings.lr)

    def states(self, starts: Sequence[State]) -> list[State]:
        """The networks one by one, without what they were filled up with."""
        found = []
        for place, start in enumerate(starts):
            state: State = {}
            for layer, weight, bias in zip(_LAYERS, self._weights, self._biases, strict=True):
                rows, columns = start[f"{layer}.weight"].shape
                state[f"{layer}.weight"] = weight[place, :columns, :rows].T.contiguous().numpy()
                state[f"{layer}.bias"] = bias[place, 0, :rows].clone().numpy()
            found.append(state)
        return found
