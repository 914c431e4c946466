"""A site's class shares in the softmax: what it knows of its own data before it looks at a sample.

Under label skew most of what a model trained alone knows is which classes its site has. With the shares in the softmax,
in training and at prediction, the shared model need not learn them: it becomes a model for balanced classes, which is
why averaging it over skewed sites works (balanced softmax, logit adjustment; Ren et al. 2020, Menon et al. 2021).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def class_shares(counts: NDArray[np.integer] | NDArray[np.floating]) -> NDArray[np.float64]:
    """π_c = (n_c + ½) / (n + ½ C) from training samples per class, [C]; a class never seen stays possible."""
    shares: NDArray[np.float64] = (counts + 0.5) / (counts.sum() + 0.5 * len(counts))
    return shares
