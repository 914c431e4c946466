"""The signature of FMCL: one mean embedding per class, and how far the samples scatter about it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from common.signature import Signature


def signature(embeddings: NDArray[np.float32], labels: NDArray[np.int64]) -> Signature:
    """Describe a site's training samples by class (FMCL, section 1).

    For every class c that is present: the prototype mu_{i,c} = mean of phi(x) over the site's samples of class c, the
    share w_{i,c} = n_{i,c} / n_i, and the scatter, the mean of |phi(x) - mu_{i,c}|^2. Sums are accumulated in float64.

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
    scatter = np.empty(len(classes))
    for row, label in enumerate(classes):
        samples = embeddings[labels == label].astype(np.float64)
        mean = samples.mean(axis=0)
        samples -= mean
        prototypes[row] = mean
        scatter[row] = np.einsum("nd,nd->", samples, samples) / len(samples)
    return Signature(classes.astype(np.int64), prototypes, counts / len(labels), scatter)
