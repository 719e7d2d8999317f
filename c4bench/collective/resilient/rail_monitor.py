"""Detect dead rails: by an error of the NIC, or by silence that a probe confirms, never by silence alone.

An idle peer sends nothing and a frozen one grants nothing, but their NICs answer probes. After each answer the next
probe waits twice as long.

A failed leaf switch, for example, may silence rails of many ranks. Each rank would notice only when it waits for its
own, one after another in the same operation. So the first rank to notice notifies all, and all probe at once. When no
rail is left to a peer, probes find out which host is unreachable.
"""

from collections.abc import Callable, Iterable, Sequence

from c4bench.collective.edges import Edge, PeerRails, ReceivingPeer, SendingPeer
from c4bench.collective.operation import Operation
from c4bench.collective.options import FailureTimeouts
from c4bench.collective.rail import Rail, RailState
from c4bench.collective.resilient.messages import ControlMessage, SilenceQuery
from c4bench.collective.resilient.repair import Repair
from c4bench.model.telemetry import Member
from c4bench.verbs.transport import Port, PortEvent

_MAX_PROBE_AFTER_S = 1.0
# A rank forwards at most one broadcast in this time.
_BROADCAST_EVERY_S = 1.0
# Time for the other end's messages to arrive; probes end by themselves.
_PROBES_S = 0.06
_DOWN, _UP = ("PORT_ERR", "DEVICE_FATAL"), "PORT_ACTIVE"


class FailureBroadcast:
    """Notifies the ranks at distances 1, 2, 4, ..., which forward it: n ranks are reached in log2(n) steps."""

    def __init__(self, rank: int, size: int, send: Callable[[int, ControlMessage], None]) -> None:
        self._targets = [(rank + (1 << power)) % size for power in range((size - 1).bit_length())]
        self._send = send
        self._passed_ns: int | None = None

    def announce(self, now_ns: int) -> bool:
        """Notify other ranks of silence here or elsewhere; False if this rank has done so recently."""
        if self._passed_ns is not None and now_ns - self._passed_ns < _BROADCAST_EVERY_S * 1e9:
            return False
        self._passed_ns = now_ns
        for rank in self._targets:
            self._send(rank, SilenceQuery())
        return True


class RailMonitor:
    """Monitors the rails of a rank while an operation runs. `devices` are the names of its NICs, in order."""

    def __init__(
        self,
        edges: PeerRails,
        timeouts: FailureTimeouts,
        repair: Repair,
        broadcast: FailureBroadcast,
        ports: Sequence[Port],
        devices: Sequence[str],
    ) -> None:
        self._edges = edges
        self._timeouts = timeouts
        self._repair = repair
        self._broadcast = broadcast
        self._ports = ports
        self._nics = {device: nic for nic, device in enumerate(devices)}
        self._down_ns: dict[int, int] = {}

    def begin(self, now_ns: int) -> None:
        """An operation begins: forget earlier silence."""
        for edge in self._edges.all:
            if isinstance(edge, ReceivingPeer):
                edge.begin_waiting(now_ns)

    def on_port_event(self, event: PortEvent, now_ns: int) -> None:
        """A NIC has reported a change of its port."""
        nic = self._nics.get(event.device)
        if nic is None:
            return
        if event.kind in _DOWN:
            self._down_ns.setdefault(nic, now_ns)
        elif event.kind == _UP:
            self._down_ns.pop(nic, None)

    def failed(self, edge: Edge, rail: Rail, why: str, now_ns: int) -> None:
        """A work request or a probe on a rail has failed."""
        if rail.state not in (RailState.UP, RailState.TRIAL):
            return
        self._repair.broken(edge, rail, why, now_ns)
        if not rail.port.active:
            self._lose(rail.nic, why, now_ns)
        else:
            self.suspect(rail.nic)

    def suspect(self, nic: int) -> None:
        """Probe every rail of a NIC, to tell a failed NIC from a failed path."""
        self._probe(rail for _, rail in self._edges.rails() if rail.nic == nic)

    def _lose(self, nic: int, why: str, now_ns: int) -> None:
        for edge, rail in list(self._edges.rails(RailState.UP)):
            if rail.nic == nic:
                self._repair.broken(edge, rail, why, now_ns)

    def tick(self, now_ns: int) -> None:
        """Fence the rails of ports that stay down, and probe rails that are silent for too long."""
        for nic, since_ns in list(self._down_ns.items()):
            if now_ns - since_ns >= self._timeouts.hold_s * 1e9:
                del self._down_ns[nic]
                if not self._ports[nic].active:
                    self._lose(nic, "its port is down", now_ns)
        for edge in self._edges.all:
            if isinstance(edge, ReceivingPeer) and self._probe_is_due(edge, now_ns):
                self._probe(edge.rails)
        quiet_ns = self._timeouts.quiet_s * 1e9
        silent = [rail for _, rail in self._edges.rails(RailState.UP) if rail.silent_ns(now_ns) > quiet_ns]
        if not all(rail.probing for rail in silent):
            # Other NICs may be affected too; probing only this one would find them one after another.
            self._probe_all()
            self._broadcast.announce(now_ns)

    def on_silence_query(self, now_ns: int) -> None:
        """Another rank has noticed silence."""
        if self._broadcast.announce(now_ns):
            self._probe_all()

    def _probe_all(self) -> None:
        self._probe(rail for _, rail in self._edges.rails(RailState.UP))

    @staticmethod
    def _probe(rails: Iterable[Rail]) -> None:
        for rail in rails:
            if rail.usable:
                rail.probe()

    def _probe_is_due(self, edge: ReceivingPeer, now_ns: int) -> bool:
        if not edge.needed or now_ns - edge.last_message_ns < edge.probe_after_s * 1e9:
            return False
        edge.last_message_ns = now_ns
        edge.probe_after_s = min(_MAX_PROBE_AFTER_S, 2 * edge.probe_after_s)
        return True

    def cut_off(self) -> list[Edge]:
        """The edges that the running operation needs and that have no rail left."""
        return [
            edge
            for edge in self._edges.all
            if edge.needed and not any(rail.usable for rail in edge.rails) and not _draining(edge)
        ]


def _draining(edge: Edge) -> bool:
    return isinstance(edge, SendingPeer) and any(
        rail.state is RailState.FENCED and not rail.drained for rail in edge.rails
    )


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
            for _, rail in self._edges.rails(RailState.UP):
                rail.probe()
        probing = any(rail.probing for _, rail in self._edges.rails(RailState.UP))
        if probing or now_ns - self._since_ns < _PROBES_S * 1e9:
            return
        alone = not any(self._edges.rails(RailState.UP))
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
