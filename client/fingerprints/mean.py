"""The fingerprint of FECFL: one mean embedding over all samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from common.mean_feature import MeanFeature


def mean_feature(embeddings: NDArray[np.float32]) -> MeanFeature:
    """Return the mean of phi(x), float32[n, d], over a site's training samples; accumulated in float64."""
    return MeanFeature(embeddings.mean(axis=0, dtype=np.float64).astype(np.float32))
