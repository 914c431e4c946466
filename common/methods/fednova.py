"""FedNova: a site says how many steps it took."""

from __future__ import annotations

from common.extras import Expected, exactly
from common.methods.agreement import Agreement

PROGRESS = "progress"

AGREEMENT = Agreement("fednova", up={PROGRESS: exactly(steps=Expected("int64", least=1))})
