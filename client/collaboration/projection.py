"""From an encoder's numbers to the fewer that image sites collaborate by."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from common.randomness import generator


def projected(vectors: NDArray[np.floating], width: int, seed: int) -> NDArray[np.float64]:
    """Embeddings [n, d] of length 1, projected by the same draw everywhere: float64[n, width] of variance about 1."""
    vectors = vectors.astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    projection = generator(seed, "projection").standard_normal((vectors.shape[1], width))
    return (vectors / np.where(lengths > 0, lengths, 1.0)) @ projection
