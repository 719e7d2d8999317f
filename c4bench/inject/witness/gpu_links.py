"""Witnesses of the links between GPUs of a host: what its ranks record of the messages that they exchange there."""

import math
import time
from typing import NamedTuple

from c4bench.errors import UsageError
from c4bench.inject import processes
from c4bench.inject.registry import witness
from c4bench.inject.witness.base import Aftermath, Evidence, Values, wait_until
from c4bench.model.fabric import gpu_name
from c4bench.model.fault import FaultRequest

_POLL_S = 0.01
# So many bytes are enough to tell a rate by, and so long a silence is a standstill.
_ENOUGH_BYTES = 256 << 10
_SILENT_S = 0.2


class Carried(NamedTuple):
    """What the links to or from a GPU have carried, in how long, and how many messages are under way."""

    size_bytes: int
    busy_s: float
    messages: int
    outstanding: int


def carried(request: FaultRequest, direction: str) -> Carried:
    """By all ranks of this host: `tx` from this GPU, `rx` to it, `both`."""
    name = gpu_name(request.host, request.gpu or 0)
    size_bytes, busy_s, messages, outstanding = 0, 0.0, 0, 0
    for job, rings in processes.ranks_here().items():
        for ring in (ring for ring in rings if ring.endswith(".ring")):
            try:
                conns = processes.telemetry(processes.ring_path(job, ring)).conns
            except UsageError:  # it has ended
                continue
            for conn in conns:
                ends = {"tx": (conn.source,), "rx": (conn.destination,)}.get(direction, (conn.source, conn.destination))
                if name in ends:
                    size_bytes += conn.size_bytes
                    busy_s += conn.shared_s
                    messages += conn.messages
                    outstanding += conn.outstanding
    return Carried(size_bytes, busy_s, messages, outstanding)


@witness("gpu_link_pace")
class GpuLinkPace:
    """`ns_per_byte`: how long the link was busy for each byte. Seen when it has grown by the root of what is asked.

    A message's delay, which the fault does not change, is part of it.
    """

    def __init__(self, request: FaultRequest) -> None:
        self._request, self._direction = request, request.choice("direction")
        self._grown = math.sqrt(1 / request.number("fraction"))
        self._usual = 0.0

    def before(self) -> Values:
        """Its usual pace; 0 where nothing is sent."""
        self._usual = self._pace()
        return {"ns_per_byte": self._usual}

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002  (all of it is measured after the onset)
        """Its pace now."""
        began_s = time.time()
        pace = self._pace()
        slow = self._usual > 0 and pace >= self._usual * self._grown
        return Evidence({"ns_per_byte": pace}, began_s if slow else None)

    def after(self) -> Aftermath:
        """Recovered when it is near its usual pace."""
        pace = self._pace()
        return Aftermath({"ns_per_byte": pace}, pace < self._usual * self._grown if pace else None)

    def _pace(self) -> float:
        first = carried(self._request, self._direction)

        def grown() -> bool:
            return carried(self._request, self._direction).size_bytes - first.size_bytes >= _ENOUGH_BYTES

        wait_until(grown, self._request.witness_s, _POLL_S)
        last = carried(self._request, self._direction)
        size_bytes = last.size_bytes - first.size_bytes
        return (last.busy_s - first.busy_s) * 1e9 / size_bytes if size_bytes else 0.0


@witness("gpu_link_standstill")
class GpuLinkStandstill:
    """`messages`: how many have arrived within a fifth of a second. Seen when none does, and some are under way."""

    def __init__(self, request: FaultRequest) -> None:
        self._request = request

    def before(self) -> Values:
        """How many arrive."""
        return {"messages": float(self._arrived()[0])}

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002  (a standstill lasts)
        """Observed when messages wait and none arrives."""
        seen: list[float] = []

        def stands() -> bool:
            began_s = time.time()
            arrived, waiting = self._arrived()
            if not arrived and waiting:
                seen.append(began_s)
            return bool(seen)

        wait_until(stands, self._request.witness_s, _POLL_S)
        arrived, _ = self._arrived()
        return Evidence({"messages": float(arrived)}, seen[0] if seen else None)

    def after(self) -> Aftermath:
        """Recovered when messages arrive again."""
        wait_until(lambda: self._arrived()[0] > 0, self._request.witness_s, _POLL_S)
        arrived, waiting = self._arrived()
        return Aftermath({"messages": float(arrived)}, True if arrived else (False if waiting else None))

    def _arrived(self) -> tuple[int, int]:
        first = carried(self._request, "both")
        time.sleep(_SILENT_S)
        last = carried(self._request, "both")
        return last.messages - first.messages, last.outstanding
