"""Detect dead rails: by an error of the NIC, or by silence that a probe confirms, never by silence alone.

An idle peer sends nothing and a frozen one grants nothing, but their NICs answer probes. After each answer the next
probe waits twice as long.
"""

from collections.abc import Iterable, Sequence

from c4bench.collective.resilient.failure_broadcast import FailureBroadcast
from c4bench.collective.resilient.peer_rails import Edge, PeerRails, ReceivingPeer, SendingPeer
from c4bench.collective.resilient.rail import Rail, State
from c4bench.collective.resilient.repair import Repair
from c4bench.collective.resilient.timeouts import FailureTimeouts
from c4bench.verbs.transport import Port, PortEvent

_MAX_PROBE_AFTER_S = 1.0
_DOWN, _UP = ("PORT_ERR", "DEVICE_FATAL"), "PORT_ACTIVE"


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
                edge.last_message_ns, edge.probe_after_s = now_ns, self._timeouts.quiet_s

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
        if rail.state not in (State.UP, State.TRIAL):
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
        for edge, rail in list(self._edges.rails(State.UP)):
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
        silent = [rail for _, rail in self._edges.rails(State.UP) if rail.silent_ns(now_ns) > quiet_ns]
        if not all(rail.probing for rail in silent):
            # Other NICs may be affected too; probing only this one would find them one after another.
            self._probe_all()
            self._broadcast.announce(now_ns)

    def on_silence_query(self, now_ns: int) -> None:
        """Another rank has noticed silence."""
        if self._broadcast.announce(now_ns):
            self._probe_all()

    def _probe_all(self) -> None:
        self._probe(rail for _, rail in self._edges.rails(State.UP))

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
    return isinstance(edge, SendingPeer) and any(rail.state is State.FENCED and not rail.drained for rail in edge.rails)
