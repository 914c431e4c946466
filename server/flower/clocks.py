"""Clocks of sites: Flower lets nobody in who is 5 s ahead. Here minutes are tolerated, and both sides are told."""

from __future__ import annotations

import datetime
import importlib
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from common.clock import TIME_HEADER, TOLERANCE, ClockWatch, ForeignClock, foreign_clock_line, is_off
from common.release import VERSION_HEADER

if TYPE_CHECKING:
    import grpc

    from server.flower.sightings import Sightings

_INTERCEPTOR = "flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor"

Tell = Callable[[bytes, float], None]


def tolerate(sightings: Sightings | None = None) -> None:
    """Let the Fleet API to come tolerate clocks that are off, say so, and keep what it sees of sites."""
    module = importlib.import_module(_INTERCEPTOR)
    module.__dict__.update(MIN_TIMESTAMP_DIFF=-TOLERANCE, MAX_TIMESTAMP_DIFF=TOLERANCE)
    superlink = importlib.import_module("flwr.superlink.cli.flower_superlink")
    superlink.__dict__["NodeAuthServerInterceptor"] = tolerant(module.NodeAuthServerInterceptor, _write, sightings)


def tolerant(flower: type[Any], tell: Tell, sightings: Sightings | None = None) -> type[Any]:
    """Flower's interceptor that knows sites by their signatures, which also looks at the time they signed."""
    import grpc
    from flwr.common.constant import PUBLIC_KEY_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
    from flwr.supercore.utils import get_metadata_bytes, get_metadata_str

    class Tolerant(flower):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._watches: defaultdict[bytes, ClockWatch] = defaultdict(ClockWatch)

        def intercept_service(
            self, continuation: Callable[[Any], Any], handler_call_details: grpc.HandlerCallDetails
        ) -> grpc.RpcMethodHandler:
            handler = super().intercept_service(continuation, handler_call_details)
            if handler is None or handler.unary_unary is None:
                return handler
            # Now, because what follows these headers may be long under way.
            metadata, arrived = handler_call_details.invocation_metadata, time.time()

            def answer(request: Any, context: grpc.ServicerContext) -> Any:
                # Also to who is turned away: he is to know why.
                context.send_initial_metadata(((TIME_HEADER, f"{time.time():.3f}"),))
                self._look(metadata, arrived)
                return handler.unary_unary(request, context)

            return grpc.unary_unary_rpc_method_handler(
                answer, handler.request_deserializer, handler.response_serializer
            )

        def _look(self, metadata: Any, arrived: float) -> None:
            key, signed = get_metadata_bytes(metadata, PUBLIC_KEY_HEADER), get_metadata_str(metadata, TIMESTAMP_HEADER)
            signature = get_metadata_bytes(metadata, SIGNATURE_HEADER)
            try:
                seconds = datetime.datetime.fromisoformat(signed or "").timestamp() - arrived
            except (ValueError, OverflowError):
                return
            version = get_metadata_str(metadata, VERSION_HEADER) or ""
            if not (key and signed and signature):
                return
            is_due = sightings is not None and sightings.is_due(key, version, seconds)
            if not (is_due or is_off(seconds) or key in self._watches):
                return
            # Of sites that are registered: others could fill the log and the memory.
            if self.state_factory.state().get_node_id_by_public_key(key) is None:
                return
            genuine = verify_signature(bytes_to_public_key(key), signed.encode(), signature)
            if not genuine:
                return
            if sightings is not None and is_due:
                sightings.note(key, version, seconds)
            if (is_off(seconds) or key in self._watches) and self._watches[key].is_news(seconds):
                tell(key, seconds)

    return Tolerant


def _write(key: bytes, seconds: float) -> None:
    line = foreign_clock_line(ForeignClock(key.decode("ascii", "replace"), seconds))
    print(line, file=sys.stderr, flush=True)
