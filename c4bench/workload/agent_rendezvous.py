"""A communicator's control plane through the agent: rendezvous, paths, failures and messages between ranks."""

import sys
from collections.abc import Sequence
from contextlib import suppress

from c4bench.collective.rendezvous import AbsentError, FailedError, FailureSignal, RelayChannel
from c4bench.errors import UnhealthyError
from c4bench.foreign_text import one_line
from c4bench.model.diagnosis import NetworkLoss
from c4bench.model.fabric import USUAL_QPS, Flow
from c4bench.model.telemetry import Failure
from c4bench.wire.messages import (
    ChooseQps,
    Exchange,
    Exchanged,
    Fail,
    InboxBatch,
    NetworkLost,
    PollInbox,
    RelayMessage,
    Release,
    Route,
    Seats,
    Watch,
)
from c4bench.wire.rank import RankLink


class _OwnLink:
    """What waits on a link of its own to the agent."""

    def __init__(self, socket: str) -> None:
        self._link = RankLink(socket)

    @property
    def fd(self) -> int:
        """Readable when a message has arrived, or when the agent is gone."""
        return self._link.fileno()

    def close(self) -> None:
        """Close the link."""
        self._link.close()


class AgentFailureSignal(_OwnLink):
    """Notification of a member's failure (see `collective.rendezvous.FailureSignal`)."""

    def __init__(self, socket: str, job: str, comm: str, seats: Seats) -> None:
        super().__init__(socket)
        self._link.ask(Watch(job, comm, seats))

    def failure(self) -> Failure | None:
        """The failure; None when the agent is gone or the job has ended."""
        try:
            return self._link.answer(Failure)
        except (UnhealthyError, OSError):
            return None


class AgentRelayChannel(_OwnLink):
    """Messages between a communicator's ranks through agent and master (see `collective.rendezvous.RelayChannel`)."""

    def __init__(self, socket: str, job: str, comm: str, rank: int, seats: Seats) -> None:
        super().__init__(socket)
        self._job, self._comm, self._rank, self._seats = job, comm, rank, seats
        self._ask(0)

    def _ask(self, after: int) -> None:
        self._link.ask(PollInbox(self._job, self._comm, self._rank, after, self._seats))

    def send(self, to: int, body: bytes) -> None:
        """Send a message to the master without a reply; it may get lost."""
        with suppress(OSError):
            self._link.note(RelayMessage(self._job, self._comm, self._rank, to, body, self._seats))

    def lost(self, loss: NetworkLoss) -> None:
        """Send a report to C4D without a reply."""
        with suppress(OSError):
            self._link.note(NetworkLost(self._job, self._comm, loss, self._seats))

    def poll(self) -> list[bytes] | None:
        """The messages that have arrived; None when the agent is gone or the job has ended."""
        try:
            batch = self._link.answer(InboxBatch)
            self._ask(batch.after)
        except (UnhealthyError, OSError):
            return None
        return list(batch.bodies)


class AgentRendezvous:
    """A communicator's control plane through the agent (see `collective.rendezvous.Rendezvous`).

    `routed` are the flows that have asked for a path, by id, with their ports; `qps` the queue pairs that their packets
    are for, where C4P has asked for these.
    """

    def __init__(self, link: RankLink, job: str, socket: str) -> None:
        self._link, self.job, self._socket = link, job, socket
        self.routed: dict[str, tuple[Flow, int]] = {}
        self.qps: dict[str, int] = {}
        self._seats: dict[str, Seats] = {}

    def enter(self, comm: str, seats: Sequence[int]) -> None:
        """Note which ranks of the job the members of a communicator are; -1 where that is not known."""
        self._seats[comm] = _numbered(seats)

    def leave(self, comm: str) -> None:
        """Forget it."""
        self._seats.pop(comm, None)

    def exchange(self, comm: str, key: str, rank: int, size: int, payload: bytes, timeout_s: float) -> list[bytes]:
        """All-gather `payload`; raises AbsentError or FailedError."""
        return self._exchange(Exchange(self.job, comm, key, rank, size, payload, timeout_s, self._seats.get(comm, ())))

    def gather(self, key: str, rank: int, seats: Sequence[int], payload: bytes, timeout_s: float) -> list[bytes]:
        """All-gather among these ranks of the job, outside communicators, as their number `rank`; see `exchange`."""
        request = Exchange(self.job, "", key, rank, len(seats), payload, timeout_s, _numbered(seats))
        return self._exchange(request)

    def _exchange(self, request: Exchange) -> list[bytes]:
        exchanged: Exchanged = self._link.call(request)
        if exchanged.failure:
            raise FailedError(exchanged.failure)
        if exchanged.missing:
            raise AbsentError(exchanged.missing, request.timeout_s)
        return list(exchanged.payloads)

    def fail(self, comm: str, failure: Failure, sender: int) -> None:
        """Notify the members."""
        self._link.call(Fail(self.job, comm, failure, sender, self._seats.get(comm, ())))

    def failure_signal(self, comm: str) -> FailureSignal:
        """Subscribe to failures."""
        return AgentFailureSignal(self._socket, self.job, comm, self._seats.get(comm, ()))

    def relay(self, comm: str, rank: int) -> RelayChannel:
        """A relay channel to the other members."""
        return AgentRelayChannel(self._socket, self.job, comm, rank, self._seats.get(comm, ()))

    def choose_qps(self, pairs: Sequence[tuple[str, str]]) -> int:
        """C4P's number of QPs for each connection of these pairs; the usual number if C4P cannot be reached."""
        try:
            count: int = self._link.call(ChooseQps(self.job, tuple(pairs)))
        except UnhealthyError as error:
            sys.stderr.write(f"c4bench: C4P does not answer ({one_line(error)}); connections have {USUAL_QPS} QPs\n")
            return USUAL_QPS
        return count

    def route(self, flows: Sequence[Flow]) -> list[int]:
        """C4P's source port for each flow; 0 leaves a flow to ECMP. All are 0 if C4P cannot be reached."""
        return self._route(Route(self.job, tuple(flows)))

    def route_qps(self, flows: Sequence[Flow], qps: Sequence[int]) -> list[int]:
        """The same, by the queue pairs that packets are for."""
        self.qps |= {flow.id: qp for flow, qp in zip(flows, qps, strict=True)}
        return self._route(Route(self.job, tuple(flows), tuple(qps)))

    def _route(self, request: Route) -> list[int]:
        flows = request.flows
        try:
            ports: list[int] = self._link.call(request)
        except UnhealthyError as error:
            sys.stderr.write(
                f"c4bench: C4P does not answer ({one_line(error)}); {len(flows)} flows run on ECMP until it does\n"
            )
            ports = [0] * len(flows)
        self.routed |= {flow.id: (flow, port) for flow, port in zip(flows, ports, strict=True)}
        return ports

    def release(self, flows: Sequence[str]) -> None:
        """Release the flows; a master that cannot be reached forgets them with the job."""
        for flow in flows:
            self.routed.pop(flow, None)
            self.qps.pop(flow, None)
        with suppress(UnhealthyError):
            self._link.call(Release(self.job, tuple(flows)))

    def open_link(self) -> RankLink:
        """A new link to the agent."""
        return RankLink(self._socket)


def _numbered(seats: Sequence[int]) -> Seats:
    """Seats as requests have them: none where they are the job's ranks in order, or not known."""
    unknown = any(seat < 0 for seat in seats)
    return () if unknown or list(seats) == list(range(len(seats))) else tuple(seats)
