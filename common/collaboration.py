"""What a site sends once, so that a server can learn from its rows without seeing them (DC-CFL)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from common.extras import InvalidExtras
from common.methods.dc_cfl import ANSWER, DIGEST_BYTES
from common.site_card import Fingerprint, SiteCard
from common.state import Extras, State

# A gigabyte of float32: ten million rows of 25 columns.
_MOST_VALUES = 2**28
# Rows and anchors are scaled to a spread of about 1. Far larger values would drown the other sites of a group.
_LARGEST_VALUE = 1e6


class InvalidCollaboration(ValueError):
    """A collaboration that breaks one of its invariants; the message says which."""


@dataclass(frozen=True)
class Collaboration(Fingerprint):
    """One site's rows and the anchors, both seen through the site's private map f_i.

    Attributes
    ----------
    rows : float32[n, m̃]
        f_i(X_i): the training rows.
    labels : int64[n]
        y_i: index of each row's class in the agreed class list.
    validates : uint8[n]
        1: no candidate learns from the row before one is chosen. No patient has rows with 0 and with 1.
    anchors : float32[r, m̃]
        f_i(X_anc): rows that all sites have and the server has not.
    mark : uint8[32]
        Digest of X_anc, the same at every site that has the same anchors.
    ticket : uint8[32]
        Digest of f_i, by which the site finds it again when the answer comes.
    """

    kind: ClassVar[str] = "collaboration"
    by_row: ClassVar[bool] = True
    agreement: ClassVar[str] = "the same table schema, settings of [collaboration] and anchor secret"

    rows: NDArray[np.float32]
    labels: NDArray[np.int64]
    validates: NDArray[np.uint8]
    anchors: NDArray[np.float32]
    mark: NDArray[np.uint8]
    ticket: NDArray[np.uint8]

    def __post_init__(self) -> None:
        for name, dtype, ndim in (
            ("rows", np.float32, 2),
            ("labels", np.int64, 1),
            ("validates", np.uint8, 1),
            ("anchors", np.float32, 2),
            ("mark", np.uint8, 1),
            ("ticket", np.uint8, 1),
        ):
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != ndim:
                raise InvalidCollaboration(f"{name} must be a {ndim}-dimensional {np.dtype(dtype).name} array")
        if self.rows.shape[0] == 0 or self.rows.shape[1] == 0:
            raise InvalidCollaboration(f"rows of shape {self.rows.shape} are nothing to learn from")
        if len(self.labels) != len(self.rows):
            raise InvalidCollaboration(f"{len(self.rows)} rows and {len(self.labels)} labels do not match")
        if self.labels.min() < 0:
            raise InvalidCollaboration("labels must not be negative")
        self._check_validation()
        if self.anchors.shape[1] != self.rows.shape[1]:
            raise InvalidCollaboration(
                f"anchors of {self.anchors.shape[1]} dimensions and rows of {self.rows.shape[1]} do not match"
            )
        if self.anchors.shape[0] < self.anchors.shape[1]:
            raise InvalidCollaboration(
                f"{self.anchors.shape[0]} anchors are too few for {self.anchors.shape[1]} dimensions"
            )
        if max(self.rows.size, self.anchors.size) > _MOST_VALUES:
            raise InvalidCollaboration(f"more than {_MOST_VALUES} values")
        largest = np.max([np.abs(self.rows).max(), np.abs(self.anchors).max()])
        if not largest <= _LARGEST_VALUE:  # nor if it is NaN
            fault = f"above {_LARGEST_VALUE:g}: they are not scaled" if np.isfinite(largest) else "that are not finite"
            raise InvalidCollaboration(f"rows or anchors hold values {fault}")
        if not self.anchors.any():
            raise InvalidCollaboration("the anchors are all zero")
        for name in ("mark", "ticket"):
            if len(getattr(self, name)) != DIGEST_BYTES:
                raise InvalidCollaboration(f"{name} must have {DIGEST_BYTES} bytes")

    def _check_validation(self) -> None:
        if len(self.validates) != len(self.rows) or self.validates.max() > 1:
            raise InvalidCollaboration("validates must say 0 or 1 of each row")
        if self.validates.all():
            raise InvalidCollaboration("rows that all validate are nothing to learn from")

    def check(self, card: SiteCard) -> None:
        """Raise unless this can come from the site that the card describes."""
        classes, highest = len(card.class_counts), int(self.labels.max())
        # Before they are counted: there would be a counter for every number up to the highest label.
        if highest >= classes:
            raise InvalidCollaboration(f"label {highest} is not among the {classes} classes")
        # Rows may have been averaged, so there may be fewer of a class than the site has, but never more.
        if (np.bincount(self.labels, minlength=classes) > np.array(card.class_counts)).any():
            raise InvalidCollaboration("more rows of a class than the class counts say")

    @property
    def form(self) -> str:
        """What must be alike for two sites to be integrated, in words."""
        mark = self.mark[:4].tobytes().hex()
        return f"{self.anchors.shape[0]} anchors ({mark}) in {self.anchors.shape[1]} dimensions"


@dataclass(frozen=True)
class Answer:
    """Server → site, once: how its representation becomes comparable, and the model of its group.

    Attributes
    ----------
    mapping : float64[m̃ + 1, k]
        G_i; its last row is an offset.
    ticket : uint8[32]
        Of the private map that the site sent its rows through.
    model
        h, a network on k columns.
    """

    mapping: NDArray[np.float64]
    ticket: NDArray[np.uint8]
    model: State

    def beside_model(self) -> Extras:
        """What travels with the model."""
        return {ANSWER: {"mapping": self.mapping, "ticket": self.ticket}}

    @classmethod
    def read(cls, model: State, extras: Extras) -> Answer:
        """Put an answer together at the site; whether it fits the site's private map is found out there."""
        arrays = extras[ANSWER]
        if not arrays["mapping"].size:
            raise InvalidExtras("the mapping of the answer is empty")
        if not all(np.isfinite(array).all() for array in model.values()):
            raise InvalidExtras("the model of the answer is not finite: its training diverged, perhaps by train.lr")
        return cls(arrays["mapping"], arrays["ticket"], model)
