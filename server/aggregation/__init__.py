"""Screening of updates and what becomes of them, one reply at a time."""

from __future__ import annotations

from server.aggregation.accumulator import Accumulator, RejectedUpdate
from server.aggregation.masked import MaskedSum
from server.aggregation.mean import GroupAverage
from server.aggregation.rules import Aggregation
from server.aggregation.screening import Screen

__all__ = ["Accumulator", "Aggregation", "GroupAverage", "MaskedSum", "RejectedUpdate", "Screen"]
