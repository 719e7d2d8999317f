"""What ranks tell each other about dead rails: to move their messages, to bring them back, and to find out what failed.

Every NIC backs up every other one (R2CCL, arXiv 2512.25059). A message about a rail names the rail and its life. A rail
begins a new life each time it is reconnected; messages about an earlier life are ignored.
"""

from collections.abc import Callable, Sequence

import msgspec

from c4bench.attribution.weigh import Cell, attribute_cells
from c4bench.collective.edges import LEDGER_BYTES, Edge, PeerRails, ReceivingPeer, SendingPeer
from c4bench.collective.operation import Operation
from c4bench.collective.options import FailureTimeouts
from c4bench.collective.rail import Rail, RailName, RailState, ReceiveProgress, ReceivingRail, SendingRail
from c4bench.model.diagnosis import Component, NetworkLoss
from c4bench.model.telemetry import Member
from c4bench.verbs.errors import VerbsError
from c4bench.verbs.transport import Remote


class _OfRail(msgspec.Struct, frozen=True, tag=True):
    rail: RailName
    life: int


class _Qps(_OfRail, frozen=True):
    data: Remote
    probe: Remote


class Fence(_OfRail, frozen=True):
    """Sender to receiver: this end of the rail is fenced; fence yours and report what you have received."""


class Fenced(_OfRail, frozen=True):
    """Receiver to sender: this end of the rail is fenced; `held` is what has been received, by channel."""

    held: tuple[ReceiveProgress, ...]


class RailOffer(_Qps, frozen=True, tag="Offer"):
    """Sender to receiver: reconnect this rail, in a new life, to these QPs."""


class Accepted(_Qps, frozen=True):
    """Receiver to sender: this end is connected to yours; its QPs are these."""


class RailUp(_OfRail, frozen=True):
    """Sender to receiver: the rail has passed its probes and is in use."""


class RailDeath(msgspec.Struct, frozen=True, tag=True):
    """To all peers of a NIC with a dead rail: the probe results (local NIC, remote NIC, whether the rail is bad)."""

    nic: int
    cells: tuple[tuple[str, str, bool], ...]


class SilenceQuery(msgspec.Struct, frozen=True, tag=True):
    """To all ranks, forwarded: a rail is silent somewhere; probe all your rails."""


ControlMessage = Fence | Fenced | RailOffer | Accepted | RailUp | RailDeath | SilenceQuery
encode = msgspec.msgpack.encode
decode = msgspec.msgpack.Decoder(ControlMessage).decode


# Wait this long for probes to end, and this long for the other end's results.
_PROBES_S, _ACCOUNTS_S = 0.06, 0.12
# Wait no longer than this for the other end's results.
_LONGEST_S = 1.0
# Failures further apart than this are unrelated.
_MATTER_S = 2.0


class FailureAttribution:
    """Attributes a dead rail to a NIC, the remote NIC or the path between, by probes; `report` passes findings to C4D.

    When a rail dies, both ends probe the other rails of its NICs and send the results to their peers. With the results
    of both ends a rank can tell a NIC that reaches nobody from a path between two NICs that reach others
    (`attribution.weigh`). With only two hosts there is no third one to probe, and several components stay possible.
    """

    def __init__(
        self,
        edges: PeerRails,
        rank: int,
        members: Sequence[Member],
        send: Callable[[int, ControlMessage], None],
        report: Callable[[NetworkLoss], None],
    ) -> None:
        self._edges = edges
        self._rank = rank
        self._members = members
        self._send = send
        self._report = report
        self._since_ns: dict[int, int] = {}
        self._reported: set[int] = set()
        self._seen: dict[int, dict[Cell, float]] = {}
        self._accounts: dict[int, set[str]] = {}
        self._last_account_ns: dict[int, int] = {}
        self.findings: list[tuple[Component, ...]] = []

    def open(self, nic: int, now_ns: int) -> None:
        """A rail of this NIC has died."""
        self._since_ns.setdefault(nic, now_ns)

    def on_rail_death(self, message: RailDeath, now_ns: int) -> None:
        """Ingest a rank's probe results for its own NIC; results of an unrelated earlier failure are dropped."""
        if now_ns - self._last_account_ns.get(message.nic, 0) > _MATTER_S * 1e9:
            self._seen.pop(message.nic, None)
            self._accounts.pop(message.nic, None)
        self._last_account_ns[message.nic] = now_ns
        seen = self._seen.setdefault(message.nic, {})
        self._accounts.setdefault(message.nic, set()).update(nic for nic, _, _ in message.cells)
        for nic, other, bad in message.cells:
            # A probe is a round trip and tests both directions.
            seen[nic, other] = seen[other, nic] = float(bad)

    def tick(self, now_ns: int) -> None:
        """Send the probe results once the probes have ended, and evaluate once the other ends have sent theirs."""
        for nic, since_ns in list(self._since_ns.items()):
            age_s = (now_ns - since_ns) / 1e9
            probing = any(rail.probing for _, rail in self._edges.rails(RailState.UP) if rail.nic == nic)
            if age_s >= _PROBES_S and nic not in self._reported and not probing:
                self._reported.add(nic)
                self._report_probes(nic, now_ns)
            if nic in self._reported and age_s >= (_LONGEST_S if self._awaits_account(nic) else _ACCOUNTS_S):
                self._evaluate(nic)

    def _awaits_account(self, nic: int) -> bool:
        """Whether the results of an end of a dead rail are still missing."""
        ends = {end for cell, bad in self._seen[nic].items() if bad for end in cell}
        return not ends <= self._accounts[nic]

    def _report_probes(self, nic: int, now_ns: int) -> None:
        own = self._members[self._rank].nics[nic]
        rails = [rail for _, rail in self._edges.rails() if rail.nic == nic]
        peers = {rail.peer for rail in rails}
        bad = {peer: any(r.state is not RailState.UP for r in rails if r.peer == peer) for peer in peers}
        message = RailDeath(nic, tuple((own, self._members[peer].nics[nic], bad[peer]) for peer in sorted(peers)))
        self.on_rail_death(message, now_ns)
        for peer in sorted(peers):
            self._send(peer, message)

    def _evaluate(self, nic: int) -> None:
        blames = attribute_cells(self._seen.pop(nic), above=0.5)
        del self._accounts[nic]
        components = tuple(dict.fromkeys(component for blame in blames for component in blame.suspects))
        if components:
            self.findings.append(components)
            self._report(NetworkLoss(self._rank, components[0], self._since_ns[nic] / 1e9, components[1:]))
        del self._since_ns[nic]
        self._reported.discard(nic)


_MOST_DOUBLINGS = 5


class Repair:
    """Moves the messages in flight on a dead rail to other rails, exactly once; `send` may lose messages.

    The sender fences its QP, so that nothing more leaves, and notifies the receiver. The receiver fences its own QP, so
    that no late packet can be written, and reports what has arrived. Then the sender sends the rest again by other
    rails. Either end may begin. Messages are repeated until they are answered. If the receiver has ended the operation
    and does not answer, the sender reads in its ledger that all arrived.
    """

    def __init__(
        self,
        edges: PeerRails,
        timeouts: FailureTimeouts,
        send: Callable[[int, ControlMessage], None],
        attribution: FailureAttribution,
    ) -> None:
        self._edges = edges
        self._timeouts = timeouts
        self._send = send
        self._attribution = attribution
        self.died = 0

    def broken(self, edge: Edge, rail: Rail, why: str, now_ns: int) -> None:
        """A rail has failed: fence this end and notify the other. Does nothing if it is fenced already."""
        if rail.state in (RailState.FENCED, RailState.DOWN):
            return
        rail.fence(why, now_ns)
        self.died += 1
        self._attribution.open(rail.nic, now_ns)
        if isinstance(rail, SendingRail):
            rail.answer = None
            self._send(rail.peer, Fence(rail.name, rail.life))
        elif isinstance(edge, ReceivingPeer):
            assert isinstance(rail, ReceivingRail)
            rail.fence_acknowledged = False
            for receiver in edge.receivers.values():
                receiver.resend_grant()

    def on_fence(self, message: Fence, now_ns: int) -> None:
        """The sender has fenced a rail: fence this end too, or repeat the report."""
        edge, rail = self._edges.by_name[message.rail]
        if message.life != rail.life or not isinstance(rail, ReceivingRail):
            return
        self.broken(edge, rail, "the sender found it dead", now_ns)
        rail.fence_acknowledged = True
        if rail.state is RailState.DOWN:
            self._report(edge, rail, now_ns)

    def on_fenced(self, message: Fenced, now_ns: int) -> None:
        """The receiver has fenced a rail, and reports what it has received."""
        edge, rail = self._edges.by_name[message.rail]
        if message.life != rail.life or not isinstance(rail, SendingRail) or rail.state is RailState.DOWN:
            return
        self.broken(edge, rail, "the receiver found it dead", now_ns)
        rail.answer = message.held

    def step(self, operation: Operation, now_ns: int) -> None:
        """Recover fenced rails as far as possible."""
        for edge, rail in self._edges.rails(RailState.FENCED):
            if isinstance(rail, SendingRail):
                self._resend_lost(operation, edge, rail, now_ns)
            elif rail.drained:
                assert isinstance(rail, ReceivingRail)
                rail.state = RailState.DOWN
                self._report(edge, rail, now_ns)

    def _resend_lost(self, operation: Operation, edge: Edge, rail: SendingRail, now_ns: int) -> None:
        """Send again the messages that the receiver has not received."""
        assert isinstance(edge, SendingPeer)
        if rail.answer is None or not rail.drained:
            return
        while rail.lost:
            sent = rail.lost[0]
            sender = edge.senders[sent.channel]
            if rail.answer[sent.channel].has(sent.seq, sent.number):
                operation.acknowledged(sender, None)
            elif not sender.resend(sent, now_ns):
                return
            rail.lost.pop(0)
        rail.state = RailState.DOWN
        self._set_retry_time(rail, now_ns)

    def _set_retry_time(self, rail: SendingRail, now_ns: int) -> None:
        """Set when to reconnect the rail: the delay doubles if it failed soon after the last recovery."""
        timeouts = self._timeouts
        early = rail.penalty_s and now_ns - rail.up_ns < timeouts.longest_s * 1e9
        rail.penalty_s = min(timeouts.longest_s, 2 * rail.penalty_s) if early else timeouts.retry_s
        rail.retry_ns = now_ns + int(rail.penalty_s * 1e9)

    def _report(self, edge: Edge, rail: ReceivingRail, now_ns: int) -> None:
        assert isinstance(edge, ReceivingPeer)
        rail.last_sent_ns = now_ns
        rail.send_count += 1
        self._send(
            rail.peer, Fenced(rail.name, rail.life, tuple(receiver.progress() for receiver in edge.receivers.values()))
        )

    def tick(self, now_ns: int) -> None:
        """Repeat unanswered messages, and read the ledgers of receivers that may not answer."""
        for edge, rail in self._edges.rails(RailState.FENCED):
            if isinstance(rail, SendingRail) and rail.answer is None:
                if self._resend_is_due(rail, now_ns):
                    rail.last_sent_ns = now_ns
                    rail.send_count += 1
                    self._send(rail.peer, Fence(rail.name, rail.life))
                if rail.lost:
                    self._read_ledger(edge)
        for edge, rail in self._edges.rails(RailState.DOWN):
            if isinstance(rail, ReceivingRail) and not rail.fence_acknowledged and self._resend_is_due(rail, now_ns):
                self._report(edge, rail, now_ns)

    def _resend_is_due(self, rail: Rail, now_ns: int) -> bool:
        wait_s = self._timeouts.resend_s * (1 << min(rail.send_count, _MOST_DOUBLINGS))
        return now_ns - rail.last_sent_ns >= wait_s * 1e9

    def _read_ledger(self, edge: Edge) -> None:
        assert isinstance(edge, SendingPeer)
        rail = next((rail for rail in edge.rails if rail.usable and not rail.probing), None)
        if edge.reading is not None or rail is None:
            return
        copy, ledger = edge.ledger_copy, edge.far[rail.nic].backup
        assert copy
        assert ledger
        assert rail.ends.probe
        edge.reading, rail.probing = rail, True
        local = (copy.address, copy.regions[rail.nic].lkey)
        rail.ends.probe.read(local, (ledger.ledger, ledger.ledger_rkey), LEDGER_BYTES)

    def ledger_read(self, operation: Operation, edge: SendingPeer) -> None:
        """The peer's ledger has been read: all messages of the operations that it has ended have arrived."""
        assert edge.ledger_copy
        ended = int.from_bytes(edge.ledger_copy.view[:LEDGER_BYTES], "little")
        for rail in edge.rails:
            if rail.state is RailState.FENCED and rail.answer is None and rail.drained:
                while rail.lost and rail.lost[0].seq < ended:
                    operation.acknowledged(edge.senders[rail.lost.pop(0).channel], None)


class RailRecovery:
    """Brings a rail back when its NIC has come back: reconnects it and probes it.

    The sending end offers a new life of the rail, through the relay, with its current addresses; the receiving end
    connects and answers with its own. Two probes, some time apart, must succeed before the rail carries data. After
    each failure soon after a recovery the delay doubles, so that a flapping NIC is not used.
    """

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

    def on_offer(self, message: RailOffer, _now_ns: int) -> None:
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
            for receiver in edge.receivers.values():
                receiver.send_pending_grant()
