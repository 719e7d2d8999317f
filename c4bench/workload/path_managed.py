"""A communicator that follows C4P's guidance: it applies new source ports and weights between operations."""

import select
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import msgspec

from c4bench.collective.communicator import Communicator
from c4bench.collective.group import Group
from c4bench.errors import UnhealthyError
from c4bench.model.fabric import Flow
from c4bench.model.qp_address import ConnectionAddress, QpAddress
from c4bench.verbs.errors import VerbsError
from c4bench.wire.messages import FollowGuidance, Guidance
from c4bench.wire.rank import RankLink

P = ParamSpec("P")
T = TypeVar("T")


class PathGuidance(Protocol):
    """The source of C4P's guidance; `routed` are the flows that have asked for a path, by id, with their ports."""

    job: str
    routed: dict[str, tuple[Flow, int]]

    def open_link(self) -> RankLink:
        """A new link to the agent."""


class _GuidedQp(msgspec.Struct):
    """A QP of this communicator: its flow, its source port, and its share of the connection's load."""

    flow: Flow
    group: Group
    address: QpAddress
    port: int
    weight: float


def _guided(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """The operation, after the guidance that has arrived is applied."""

    def call(self: "PathManagedCommunicator", /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.apply_guidance()
        return method(self, *args, **kwargs)

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


class PathManagedCommunicator(Communicator):
    """A Communicator whose planned connections C4P moves and weighs while it runs, without help of the program.

    Every rank changes its own sending endpoints between its own operations, when nothing is in flight. Without a master
    nothing changes.
    """

    _guide: PathGuidance | None = None
    _request: RankLink | None = None
    # How many flows the open request is about.
    _requested = 0

    def follow(self, guide: PathGuidance) -> None:
        """Follow this source of guidance from now on."""
        self._guide = guide
        self._qps: dict[str, _GuidedQp] = {}

    def apply_guidance(self) -> None:
        """Apply the guidance that has arrived since the last operation. Never waits."""
        if self._guide is None:
            return
        groups = (self._group, *self._links.values())
        if (routed := sum(len(group.site.routed) for group in groups)) != self._requested:
            self._requested = routed
            self._add_qps(groups, self._guide)
            self._request_guidance({})
        if self._request is None or not _readable(self._request):
            return
        try:
            guidance = self._request.answer(Guidance)
        except (UnhealthyError, OSError):
            self._drop_request()
        else:
            self._request_guidance(self._apply(guidance))

    def _add_qps(self, groups: tuple[Group, ...], guide: PathGuidance) -> None:
        for group in groups:
            for address, flow in group.site.routed:
                _, port = guide.routed[flow.id]
                self._qps.setdefault(flow.id, _GuidedQp(flow, group, address, port, 1 / group.options.qps))

    def _request_guidance(self, refused: dict[str, str]) -> None:
        """Report every flow's source port and weight, and ask for new guidance."""
        assert self._guide
        self._close_request()
        qps = self._qps.values()
        question = FollowGuidance(
            self._guide.job,
            tuple(qp.flow for qp in qps),
            tuple(qp.port for qp in qps),
            tuple(qp.weight for qp in qps),
            refused,
        )
        try:
            self._request = self._guide.open_link()
            self._request.ask(question)
        except OSError:
            self._drop_request()

    def _apply(self, guidance: Guidance) -> dict[str, str]:
        """Change source ports and weights; returns the flows that could not be moved, and why."""
        refused: dict[str, str] = {}
        for name, port in guidance.ports.items():
            qp = self._qps[name]
            try:
                qp.group.sender(qp.address.peer, qp.address.channel).move(qp.address.qp, port)
                qp.port = port
            except VerbsError as error:
                refused[name] = str(error)
        for name, weight in guidance.weights.items():
            self._qps[name].weight = weight
        self._weigh({self._qps[name].address.connection for name in guidance.weights})
        return refused

    def _weigh(self, connections: set[ConnectionAddress]) -> None:
        by_connection: dict[ConnectionAddress, list[_GuidedQp]] = defaultdict(list)
        for qp in self._qps.values():
            by_connection[qp.address.connection].append(qp)
        for connection in sorted(connections):
            qps = sorted(by_connection[connection], key=lambda qp: qp.address)
            qps[0].group.sender(connection.peer, connection.channel).weigh([qp.weight for qp in qps])

    def split(self, color: int | None, key: int = 0) -> "Communicator | None":
        """As for a Communicator; the new communicator follows the same guidance."""
        self.apply_guidance()
        communicator = super().split(color, key)
        if self._guide is not None and isinstance(communicator, PathManagedCommunicator):
            communicator.follow(self._guide)
        return communicator

    def close(self) -> None:
        """Release connections, memory and devices. May be called again, and after an error."""
        self._close_request()
        super().close()

    def _drop_request(self) -> None:
        """Nothing answers: change nothing, and ask again at the next operation."""
        self._close_request()
        self._requested = 0

    def _close_request(self) -> None:
        if self._request is not None:
            self._request.close()
            self._request = None

    all_reduce = _guided(Communicator.all_reduce)
    reduce_scatter = _guided(Communicator.reduce_scatter)
    all_gather = _guided(Communicator.all_gather)
    broadcast = _guided(Communicator.broadcast)
    reduce = _guided(Communicator.reduce)
    all_to_all = _guided(Communicator.all_to_all)
    send = _guided(Communicator.send)
    recv = _guided(Communicator.recv)
    barrier = _guided(Communicator.barrier)


def _readable(link: RankLink) -> bool:
    poll = select.poll()
    poll.register(link.fileno(), select.POLLIN)
    return bool(poll.poll(0))
