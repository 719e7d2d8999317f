"""What a program gets: its rank, its connections to the other ranks and the control plane, and reporting."""

import itertools
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from c4bench.collective.communicator import Communicator
from c4bench.collective.options import Options
from c4bench.collective.process import RankProcess
from c4bench.collective.recorder import Recorder
from c4bench.errors import UsageError
from c4bench.model.agent import AgentConfig
from c4bench.wire.messages import JobSpec, Meet, Result
from c4bench.wire.rank import RankLink
from c4bench.workload.agent_rendezvous import AgentRendezvous
from c4bench.workload.controls import Controls
from c4bench.workload.path_managed import PathManagedCommunicator

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
        members = [
            msgspec.structs.replace(self.job.members[seat], rank=rank, seat=seat, nics=self._nics(seat, without))
            for rank, seat in enumerate(ranks)
        ]
        process = replace(self._process, nics=_but(self._process.nics, without), rendezvous=control)
        communicator = PathManagedCommunicator(
            f"{self.job.id}:{name}", ranks.index(self.rank), members, process, options
        )
        communicator.follow(control)
        return communicator

    def _nics(self, rank: int, without: Collection[int]) -> tuple[str, ...]:
        return _but(self.job.members[rank].nics, without)

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
