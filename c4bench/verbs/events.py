"""Read a device's asynchronous events without blocking."""

from typing import Any

from pyverbs.pyverbs_error import PyverbsRDMAError

from c4bench.verbs.enums import names
from c4bench.verbs.transport import PortEvent

KINDS = names("IBV_EVENT_")


def drain_events(context: Any, device: str) -> list[PortEvent]:  # noqa: ANN401  (a pyverbs Context)
    """Read and acknowledge every pending event. The context's descriptor must be non-blocking.

    A port that comes up may report that twice. Only the NIC's own context gets the event, not the far end.
    """
    events: list[PortEvent] = []
    while True:
        try:
            event = context.get_async_event()
        except PyverbsRDMAError:
            return events
        events.append(PortEvent(device, KINDS.get(int(event.event_type), str(event.event_type))))
        # An event that is not acknowledged blocks the destruction of what it belongs to.
        event.ack()
