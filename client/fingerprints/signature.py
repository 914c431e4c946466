"""The signature of FMCL: one mean embedding per class."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from common.signature import Signature


def signature(embeddings: NDArray[np.float32], labels: NDArray[np.int64]) -> Signature:
    """Describe a site's training samples by class (FMCL, section 1).

    For every class c that is present: the prototype mu_{i,c} = mean of phi(x) over the site's samples of class c, and
    the share w_{i,c} = n_{i,c} / n_i. Sums are accumulated in float64.

    Parameters
    ----------
    embeddings : float32[n, d]
        phi(x) of each training sample.
    labels : int64[n]
        Index of each sample's class in the agreed class list.
    """
    if len(embeddings) != len(labels):
        raise ValueError(f"{len(embeddings)} embeddings and {len(labels)} labels do not match")
    classes, counts = np.unique(labels, return_counts=True)
    prototypes = np.empty((len(classes), embeddings.shape[1]), np.float32)
    for row, label in enumerate(classes):
        prototypes[row] = embeddings[labels == label].mean(axis=0, dtype=np.float64)
    return Signature(classes.astype(np.int64), prototypes, counts / len(labels))
