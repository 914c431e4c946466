"""Local: every site alone, the opponent that clustering must beat."""

from __future__ import annotations

from server.methods.method import Method
from server.methods.partition import Alone

METHOD = Method(
    name="local",
    title="Local",
    about=("What joining must beat, and what no paper's table should be without. Nothing needs to travel but figures."),
    paper="",
    summary="every site trains alone on its own data",
    family="personal",
    partition=Alone(),
    clustered=False,
)

METHODS = (METHOD,)
