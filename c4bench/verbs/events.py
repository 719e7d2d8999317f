"""Asynchronous events of a device, taken without blocking."""

from typing import Any

from pyverbs.pyverbs_error import PyverbsRDMAError

from c4bench.verbs.enums import names
from c4bench.verbs.transport import PortEvent

KINDS = names("IBV_EVENT_")


def drain_events(context: Any, device: str) -> list[PortEvent]:  # noqa: ANN401  (a pyverbs Context)
    """Take and acknowledge every pending event; the context's descriptor must be non-blocking.

    A port that comes up may say so twice. Only the NIC's own context hears of it; the far end hears nothing.
    """
    found: list[PortEvent] = []
    while True:
        try:
            event = context.get_async_event()
        except PyverbsRDMAError:
            return found
        found.append(PortEvent(device, KINDS.get(int(event.event_type), str(event.event_type))))
        # An event that is not acknowledged blocks the destruction of what it belongs to.
        event.ack()
