"""A rehearsal at a site: linear heads on the frozen encoder, with the site's own class shares, in folds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from client.methods.method import SiteMethod, Visit
from common import wire
from common.methods.rehearsal import HEAD, LOSSES, MOST_LOSS, MOST_WEIGHT, PARTS, STEP, TEST, Settings, numbers
from common.models import EMBEDDING_LENGTH
from common.prior import class_shares
from common.randomness import generator, secret_generator
from common.state import Extras

_RATE = 0.01
_BATCH = 16


class Rehearsal(SiteMethod):
    """Trains the heads that came, or tests them, and beside them one that only this site has trained."""

    describes = True

    def answer(self, question: str, visit: Visit) -> Extras:
        """Answer either question."""
        samples = Folded(visit.embedded(), visit.site.train_labels, len(visit.site.classes), visit)
        order = numbers(visit.extras)
        heads = [samples.checked(visit.extras[f"{HEAD}.{number}"]["weights"]) for number in order]
        # The bits of a product depend on the number of threads.
        with threadpool_limits(limits=1, user_api="blas"):
            if question == TEST:
                return {LOSSES: self._losses(samples, heads, visit.settings.of(Settings).rounds)}
            if not heads:
                raise wire.WireError("there is no head to train")
            step, rounds = int(visit.extras[STEP]["number"]), visit.settings.of(Settings).rounds
            if step > rounds:
                raise wire.WireError(f"step {step} of a rehearsal that has rehearsal.rounds = {rounds}")
            trained = samples.train(np.stack(heads), step)
        return {
            f"{HEAD}.{number}": {"weights": np.ascontiguousarray(head)}
            for number, head in zip(order, trained, strict=True)
        }

    @staticmethod
    def _losses(samples: Folded, heads: list[NDArray[np.float32]], rounds: int) -> dict[str, NDArray[np.generic]]:
        folds = heads[0].shape[0] if heads else PARTS
        alone = samples.start(folds)
        for number in range(1, rounds + 1):
            alone = samples.train(alone, number)
        losses = samples.losses(np.stack([*heads, alone[0]]))
        return {
            "heads": losses[:-1],
            "alone": np.array(losses[-1]),
            "samples": np.array(samples.held_out(folds), np.int64),
        }


class Folded:
    """A site's training samples as heads read them, dealt into parts.

    A simulated site deals by the run's seed. Of a site with data of its own nobody may foretell or choose the lots, or
    the steps of one row could be told from the others': parts and order come from the site's secret and are the same in
    every message, each part has its share of every class, and each row counts alike, also in a short last batch.

    Heads are float32[heads, folds, classes, width + 1]; all heads of a fold see the same batches, so that what differs
    between them is the company they were averaged in.
    """

    def __init__(self, embeddings: NDArray[np.float32], labels: NDArray[np.int64], classes: int, visit: Visit) -> None:
        lengths = np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-12)
        ones = np.ones((len(embeddings), 1), np.float32)
        self._rows = np.hstack([embeddings * (EMBEDDING_LENGTH / lengths), ones]).astype(np.float32)
        self._labels, self._classes = labels, classes
        self._seed, self._secret, self._name = visit.settings.seed, visit.site.secret, visit.site.name
        self._part = self._lots("rehearsal parts").permutation(len(labels)) % PARTS
        if self._secret is not None:
            order = self._lots("rehearsal parts").permutation(len(labels))
            self._part[order[np.argsort(labels[order], kind="stable")]] = np.arange(len(labels)) % PARTS

    def checked(self, weights: NDArray[np.float32]) -> NDArray[np.float32]:
        """The same, or an error: the server may have another encoder or class list in mind."""
        folds, width = weights.shape[0], self._rows.shape[1]
        if not 1 <= folds <= PARTS or weights.shape[1:] != (self._classes, width):
            raise wire.WireError(
                f"a head is {'×'.join(map(str, weights.shape))}, not of 1 to {PARTS} folds × {self._classes} × {width}"
            )
        if not np.abs(weights).max() <= MOST_WEIGHT:
            raise wire.WireError(f"a head has weights beyond ±{MOST_WEIGHT:g}, which no training leads to")
        return weights

    def start(self, folds: int) -> NDArray[np.float32]:
        """One head that knows nothing."""
        return np.zeros((1, folds, self._classes, self._rows.shape[1]), np.float32)

    def held_out(self, folds: int) -> int:
        """Samples that are tested on in all folds together: at least one, which is in the first part."""
        return int((self._part < folds).sum())

    def train(self, heads: NDArray[np.float32], round_number: int) -> NDArray[np.float32]:
        """One epoch of SGD in every fold."""
        heads = heads.copy()
        count, folds, classes, width = heads.shape
        for fold in range(folds):
            rows = np.flatnonzero(self._part != fold)
            if not len(rows):
                continue
            prior = self._prior(fold)
            rng = self._lots(f"rehearsal fold {fold}", round_number)
            weights = heads[:, fold].reshape(count * classes, width)
            order = rng.permutation(rows)
            for batch in np.split(order, range(_BATCH, len(order), _BATCH)):
                inputs = self._rows[batch]
                error = _softmax((inputs @ weights.T).reshape(len(batch), count, classes) + prior)
                error[np.arange(len(batch)), :, self._labels[batch]] -= 1
                rate = np.float32(_RATE / (len(batch) if self._secret is None else _BATCH))
                weights = weights - rate * (error.reshape(len(batch), -1).T @ inputs)
            heads[:, fold] = weights.reshape(count, classes, width)
        return heads

    def losses(self, heads: NDArray[np.float32]) -> NDArray[np.float64]:
        """Log loss of each head on what its folds left out, summed: float64[heads]."""
        total = np.zeros(len(heads))
        for fold in range(heads.shape[1]):
            rows = np.flatnonzero(self._part == fold)
            scores = np.einsum("nd,hcd->nhc", self._rows[rows], heads[:, fold]) + self._prior(fold)
            chances = _softmax(scores.astype(np.float64))[np.arange(len(rows)), :, self._labels[rows]]
            total += np.minimum(-np.log(np.maximum(chances, 1e-300)), MOST_LOSS).sum(axis=0)
        return total

    def _lots(self, purpose: str, round_number: int = 0) -> np.random.Generator:
        if self._secret is None:
            return generator(self._seed, purpose, self._name, round_number)
        # Whatever the seed and the round: two orders of the same rows tell them apart.
        return secret_generator(self._secret, f"{purpose} {self._name}")

    def _prior(self, fold: int) -> NDArray[np.float32]:
        """The site's class shares among what a fold trains on, as scores."""
        counts = np.bincount(self._labels[self._part != fold], minlength=self._classes)
        return np.log(class_shares(counts)).astype(np.float32)


def _softmax(scores: NDArray[np.floating]) -> NDArray[np.floating]:
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


SITE = Rehearsal
