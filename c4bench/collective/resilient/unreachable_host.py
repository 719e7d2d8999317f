"""Find out which host is unreachable when no rail is left to a peer."""

from collections.abc import Sequence

from c4bench.collective.operation import Operation
from c4bench.collective.resilient.peer_rails import PeerRails
from c4bench.collective.resilient.rail import State
from c4bench.collective.resilient.rail_monitor import RailMonitor
from c4bench.model.telemetry import Member

# Time for the other end's messages to arrive; probes end by themselves.
_PROBES_S = 0.06


class UnreachableHostCheck:
    """Ends an operation that cannot continue, with an error that names the unreachable host.

    A host that reaches a third one is not unreachable. With only two hosts the other one is named, unless all ports of
    this one are down.
    """

    def __init__(self, edges: PeerRails, monitor: RailMonitor, rank: int, members: Sequence[Member]) -> None:
        self._edges = edges
        self._monitor = monitor
        self._rank = rank
        self._members = members
        self._since_ns = 0

    def check(self, operation: Operation, now_ns: int) -> None:
        """Raises CollectiveError HOST_LOST once the unreachable host is known."""
        cut_off = self._monitor.cut_off()
        if not cut_off:
            self._since_ns = 0
            return
        if not self._since_ns:
            self._since_ns = now_ns
            for _, rail in self._edges.rails(State.UP):
                rail.probe()
        probing = any(rail.probing for _, rail in self._edges.rails(State.UP))
        if probing or now_ns - self._since_ns < _PROBES_S * 1e9:
            return
        alone = not any(self._edges.rails(State.UP))
        others = {edge.peer for edge in self._edges.all}
        ports_down = not any(rail.port.active for _, rail in self._edges.rails())
        lost = self._rank if ports_down or (alone and len(others) > 1) else cut_off[0].peer
        host = self._members[lost].host
        reasons = sorted({rail.why for _, rail in self._edges.rails() if rail.why})
        raise operation.error(
            f"host {host} of rank {lost} has no NIC left that can be reached ({'; '.join(reasons)}); "
            f"continue without it (shrink) or restart on another host",
            peer=lost,
            status="HOST_LOST",
        )
