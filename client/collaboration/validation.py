"""Which of a site's rows the server may not learn from while it chooses among its candidates (DC-CFL, step 3).

The site decides it: only the site knows which rows belong to one patient, and no patient may be learnt from and
validated on. It tells one bit per row, and not who belongs together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from client.data.split import split

SHARE = 0.2

Labels = NDArray[np.int64]
Mask = NDArray[np.bool_]


def held_out_rows(labels: Labels, rng: np.random.Generator) -> Mask:
    """A share of every class, rounded by lot so that small classes have their say too; never the last row of one."""
    chosen = np.zeros(len(labels), np.bool_)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        count = min(int(len(members) * SHARE + rng.random()), len(members) - 1)
        chosen[members[:count]] = True
    return chosen


def held_out_groups(labels: Labels, groups: NDArray[np.str_], rng: np.random.Generator) -> Mask:
    """Whole groups, about a share of every class; none where all rows are of one group."""
    _, held = split(labels, groups, np.full(len(labels), -1, np.int8), SHARE, rng.random(len(labels)))
    chosen = np.zeros(len(labels), np.bool_)
    chosen[held] = True
    return chosen
