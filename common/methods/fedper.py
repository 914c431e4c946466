"""FedPer: the head of every site is its own."""

from __future__ import annotations

from common.methods.agreement import Agreement
from common.tensor_names import is_head

AGREEMENT = Agreement("fedper", shared=lambda names: {name for name in names if not is_head(name)}, remembers=True)
