"""Bring a rail back when its NIC has come back: reconnect it and probe it.

The sending end offers a new life of the rail, through the relay, with its current addresses; the receiving end connects
and answers with its own. Two probes, some time apart, must succeed before the rail carries data. After each failure
soon after a recovery the delay doubles, so that a flapping NIC is not used.
"""

from collections.abc import Callable

from c4bench.collective.edges import PeerRails, ReceivingPeer
from c4bench.collective.options import FailureTimeouts
from c4bench.collective.rail import RailState, ReceivingRail, SendingRail
from c4bench.collective.resilient.messages import Accepted, ControlMessage, RailOffer, RailUp
from c4bench.verbs.errors import VerbsError


class RailRecovery:
    """The recovery protocol."""

    def __init__(
        self, edges: PeerRails, timeouts: FailureTimeouts, send: Callable[[int, ControlMessage], None]
    ) -> None:
        self._edges = edges
        self._timeouts = timeouts
        self._send = send
        self.returned = 0

    def tick(self, now_ns: int) -> None:
        """RailOffer rails that are due, give up offers without an answer, and probe rails on trial."""
        for _, rail in self._edges.rails():
            if not isinstance(rail, SendingRail) or now_ns < rail.retry_ns:
                continue
            if rail.state is RailState.DOWN and rail.drained and rail.port.active:
                self._offer(rail, now_ns)
            elif rail.state is RailState.TRIAL:
                if not rail.accepted:
                    self.failed(rail, now_ns)
                elif rail.good_ns:
                    rail.probe()

    def _offer(self, rail: SendingRail, now_ns: int) -> None:
        try:
            data, probe = rail.here()
        except VerbsError:
            # The port is up but has no address yet.
            self.failed(rail, now_ns)
            return
        rail.life += 1
        rail.state, rail.accepted, rail.good_ns = RailState.TRIAL, False, 0
        rail.retry_ns = now_ns + int(2 * self._timeouts.retry_s * 1e9)
        self._send(rail.peer, RailOffer(rail.name, rail.life, data, probe))

    def failed(self, rail: SendingRail, now_ns: int) -> None:
        """The rail cannot be used yet; try again later."""
        rail.state = RailState.DOWN
        # The reset that begins the next life drops what is posted.
        rail.receives = 0
        rail.penalty_s = min(self._timeouts.longest_s, max(self._timeouts.retry_s, rail.penalty_s))
        rail.retry_ns = now_ns + int(rail.penalty_s * 1e9)

    def on_offer(self, message: RailOffer) -> None:
        """The sender offers a rail: connect this end, if its port is up."""
        _, rail = self._edges.by_name[message.rail]
        ready = rail.state in (RailState.DOWN, RailState.TRIAL) and not rail.in_flight
        if not isinstance(rail, ReceivingRail) or message.life <= rail.life or not ready or not rail.port.active:
            return
        try:
            rail.connect(message.data, message.probe)
            data, probe = rail.here()
        except VerbsError:
            return
        rail.life, rail.state = message.life, RailState.TRIAL
        self._send(rail.peer, Accepted(rail.name, rail.life, data, probe))

    def on_accepted(self, message: Accepted, now_ns: int) -> None:
        """The receiver's end is connected: connect this one and probe it."""
        _, rail = self._edges.by_name[message.rail]
        if (
            not isinstance(rail, SendingRail)
            or message.life != rail.life
            or rail.state is not RailState.TRIAL
            or rail.accepted
        ):
            return
        try:
            rail.connect(message.data, message.probe, rail.source_port)
        except VerbsError:
            self.failed(rail, now_ns)
            return
        rail.accepted = True
        rail.retry_ns = now_ns
        rail.probe()

    def answered(self, rail: SendingRail, now_ns: int) -> None:
        """A probe of a rail on trial has succeeded."""
        if not rail.good_ns:
            rail.good_ns = now_ns
            rail.retry_ns = now_ns + int(self._timeouts.steady_s * 1e9)
            return
        rail.state, rail.up_ns, rail.last_alive_ns = RailState.UP, now_ns, now_ns
        self.returned += 1
        self._send(rail.peer, RailUp(rail.name, rail.life))

    def on_up(self, message: RailUp, now_ns: int) -> None:
        """The sender uses the rail again: use it at this end too."""
        edge, rail = self._edges.by_name[message.rail]
        if message.life == rail.life and rail.state is RailState.TRIAL and isinstance(rail, ReceivingRail):
            rail.state, rail.last_alive_ns = RailState.UP, now_ns
            assert isinstance(edge, ReceivingPeer)
            for receiver in edge.receivers:
                receiver.send_pending_grant()
