"""FedPer: the head of every site is its own."""

from __future__ import annotations

from common.methods.agreement import Agreement
from common.tensor_names import is_head

AGREEMENT = Agreement(
    "fedper",
    shared=lambda state, _: {name for name in state if not is_head(name)},
    remembers=True,
    private=True,
)
