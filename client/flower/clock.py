"""How far this machine's clock is off: every answer of the coordinator brings the time there. Imports Flower late.

Every question says which version of Coterie asks, so that the coordinator sees who has to be brought up to date.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from common.clock import TIME_HEADER, ClockWatch, ahead, own_clock_line
from common.release import VERSION, VERSION_HEADER

if TYPE_CHECKING:
    import grpc


def compare_clocks() -> None:
    """Let the SuperNode to come say when its clock is not the coordinator's."""
    from flwr.client.grpc_rere_client import connection

    names = connection.__dict__
    names["NodeAuthClientInterceptor"] = comparing(names["NodeAuthClientInterceptor"], say)


def comparing(flower: type[Any], tell: Callable[[float], None]) -> type[Any]:
    """Flower's interceptor that signs requests, which then reads what time it is at the other end."""
    watch = ClockWatch()

    class Comparing(flower):  # type: ignore[misc]
        def intercept_unary_unary(
            self, continuation: Callable[[Any, Any], Any], client_call_details: grpc.ClientCallDetails, request: Any
        ) -> grpc.Call:
            before = time.time()
            metadata = [*(client_call_details.metadata or ()), (VERSION_HEADER, VERSION)]
            details = client_call_details._replace(metadata=metadata)
            call = super().intercept_unary_unary(continuation, details, request)
            for key, value in call.initial_metadata() or ():
                if key == TIME_HEADER and value.replace(".", "", 1).isdecimal():
                    seconds = ahead(before, float(value), time.time())
                    if watch.is_news(seconds):
                        tell(seconds)
            return call

    return Comparing


def say(seconds: float) -> None:
    """Tell whoever reads the site's log."""
    print(own_clock_line(seconds), file=sys.stderr, flush=True)
