"""Local: every site alone, the opponent that clustering must beat."""

from __future__ import annotations

from server.methods.method import Method
from server.methods.partition import Alone

METHOD = Method(
    name="local",
    title="Local",
    paper="",
    summary="every site trains alone on its own data",
    family="personal",
    partition=Alone(),
    clustered=False,
)

METHODS = (METHOD,)
