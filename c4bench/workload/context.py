"""What a program gets: its rank, its connections to the other ranks and the control plane, and reporting."""

import itertools
import select
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from c4bench.collective.communicator import Communicator
from c4bench.collective.endpoint_context import RankProcess
from c4bench.collective.group import Group
from c4bench.collective.inside import InsidePlace
from c4bench.collective.options import Options
from c4bench.collective.recorder import Recorder
from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.agent import AgentConfig
from c4bench.model.fabric import Flow
from c4bench.model.qp_address import ConnectionAddress, QpAddress
from c4bench.verbs.errors import VerbsError
from c4bench.wire.messages import FollowGuidance, Guidance, JobSpec, Meet, Result
from c4bench.wire.rank import RankLink
from c4bench.workload.agent_rendezvous import AgentRendezvous
from c4bench.workload.controls import Controls

P = ParamSpec("P")
T = TypeVar("T")


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

    _guide: AgentRendezvous | None = None
    _request: RankLink | None = None
    # How many flows the open request is about.
    _requested = 0

    def follow(self, guide: AgentRendezvous) -> None:
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

    def _add_qps(self, groups: tuple[Group, ...], guide: AgentRendezvous) -> None:
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
            tuple(self._guide.qps.get(qp.flow.id, 0) for qp in qps) if self._guide.qps else msgspec.UNSET,
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


Parameters = TypeVar("Parameters")
Item = TypeVar("Item")


class RankContext:
    """One rank of a running job."""

    def __init__(self, job: JobSpec, rank: int, config: AgentConfig) -> None:
        self.job, self.rank = job, rank
        self.size = len(job.members)
        self._socket = config.socket
        self._link = RankLink(config.socket)
        self._reports = itertools.count(1)
        self.controls = Controls.create(config.controls(job.id, rank))
        self.recorder = Recorder(config.ring(job.id, rank), job.id, rank)
        own = set(job.members[rank].nics)
        self._rendezvous = AgentRendezvous(self._link, job.id, config.socket)
        self._process = RankProcess(
            job=job.id,
            nics=tuple(nic for nic in job.nics if nic.name in own),
            rendezvous=self._rendezvous,
            recorder=self.recorder,
            inside=InsidePlace(config.ring(job.id, rank).parent, config.gpu_links, job.inside) if job.inside else None,
            # So that every program applies orders at its next operation.
            before_operation=self.controls.apply_orders,
        )

    def parameters(self, kind: type[Parameters]) -> Parameters:
        """The job's parameters as the program's struct. Raises UsageError that names an invalid one."""
        try:
            return msgspec.convert(self.job.parameters, kind)
        except msgspec.ValidationError as error:
            raise UsageError(f"job {self.job.id}, program {self.job.program}: {error}") from None

    def communicator(
        self,
        name: str,
        options: Options,
        without: Collection[int] = (),
        ranks: Sequence[int] = (),
        control: AgentRendezvous | None = None,
    ) -> Communicator:
        """A communicator of the job's `ranks`, all if empty, in this order. Names must be unique within the job.

        No rank uses the NICs with the numbers in `without`. A thread that makes communicators while another one uses
        the context gives its own `control` plane.
        """
        ranks = ranks or range(self.size)
        control = control or self._rendezvous
        seated = [(seat, self.job.members[seat]) for seat in ranks]
        members = [
            msgspec.structs.replace(member, rank=rank, seat=seat, nics=_but(member.nics, without))
            for rank, (seat, member) in enumerate(seated)
        ]
        process = replace(self._process, nics=_but(self._process.nics, without), rendezvous=control)
        communicator = PathManagedCommunicator(
            f"{self.job.id}:{name}", ranks.index(self.rank), members, process, options
        )
        communicator.follow(control)
        return communicator

    def control_plane(self) -> AgentRendezvous:
        """A control plane with its own link to the agent, for a thread that waits long."""
        return AgentRendezvous(RankLink(self._socket), self.job.id, self._socket)

    def ports_down(self) -> list[int]:
        """The numbers of this rank's NICs whose port is not up."""
        with ExitStack() as undo:
            ports = [self._process.open_port(nic) for nic in self._process.nics]
            for port in ports:
                undo.callback(port.close)
            return [number for number, port in enumerate(ports) if not port.active]

    def exchange(self, key: str, rank: int, size: int, payload: bytes = b"", timeout_s: float = 300.0) -> list[bytes]:
        """All-gather `payload` with those of this job that name the same key, as number `rank` of `size`.

        The test may be one of them (see `control.cluster.Cluster.exchange`). Raises AbsentError.
        """
        self.controls.apply_orders()
        return self._rendezvous.exchange("", key, rank, size, payload, timeout_s)

    def gather(
        self, key: str, rank: int, seats: Sequence[int], payload: bytes, timeout_s: float = 300.0
    ) -> list[bytes]:
        """All-gather `payload` among these ranks of the job, as their number `rank`. Raises AbsentError."""
        self.controls.apply_orders()
        return self._rendezvous.gather(key, rank, seats, payload, timeout_s)

    def meet(self, moment: str) -> None:
        """Wait for the other members of the job's meeting, so that measurements of several jobs overlap.

        Moments follow each other; a name is used once. The test may be a member (see `control.cluster.Cluster.meet`).
        Raises UnhealthyError if the job is in no meeting, or if the others do not come.
        """
        self.controls.apply_orders()
        self._link.call(Meet(self.job.id, self.rank, moment))

    def report(self, kind: str, **fields: Any) -> None:  # noqa: ANN401  (each program has its own)
        """Send a result to the master."""
        result = Result(self.job.id, self.rank, {"kind": kind} | fields, next(self._reports))
        self._link.call(result)


def _but(items: Sequence[Item], without: Collection[int]) -> tuple[Item, ...]:
    return tuple(item for number, item in enumerate(items) if number not in without)
