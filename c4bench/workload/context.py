"""What a program is given: its place in the job, its way to the others, and somewhere to report."""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from c4bench.collective.communicator import Communicator
from c4bench.collective.options import Options
from c4bench.collective.recorder import Recorder
from c4bench.errors import UsageError
from c4bench.model.agent import AgentConfig
from c4bench.model.fabric import Flow
from c4bench.wire.messages import Empty, Exchange, JobSpec, Release, Result, Route
from c4bench.wire.rank import RankLink
from c4bench.workload.controls import Controls

Parameters = TypeVar("Parameters")


class AgentRendezvous:
    """A communicator's control plane, by way of the agent (see `collective.rendezvous.Rendezvous`)."""

    def __init__(self, link: RankLink, job: str) -> None:
        self._link, self._job = link, job

    def exchange(self, key: str, rank: int, size: int, payload: bytes, timeout_s: float) -> list[bytes]:
        """All-gather `payload` under `key`; raises UnhealthyError naming the missing ranks after `timeout_s`."""
        return self._link.call("exchange", Exchange(self._job, key, rank, size, payload, timeout_s), list[bytes])

    def route(self, flows: Sequence[Flow]) -> list[int]:
        """C4P's source port for each flow; 0 leaves it to ECMP."""
        return self._link.call("route", Route(self._job, tuple(flows)), list[int])

    def release(self, flows: Sequence[str]) -> None:
        """These flows are gone."""
        self._link.call("release", Release(self._job, tuple(flows)), Empty)


class RankContext:
    """One rank of a running job."""

    def __init__(self, job: JobSpec, rank: int, config: AgentConfig) -> None:
        self.job, self.rank = job, rank
        self.size = len(job.members)
        self._link = RankLink(config.socket)
        self._recorder = Recorder(config.ring(job.id, rank), job.id, rank)
        self.controls = Controls.create(config.controls(job.id, rank))

    def parameters(self, kind: type[Parameters]) -> Parameters:
        """The job's parameters as a program's own struct. Raises UsageError naming the wrong one."""
        try:
            return msgspec.convert(self.job.parameters, kind)
        except msgspec.ValidationError as error:
            raise UsageError(f"job {self.job.id}, program {self.job.program}: {error}") from None

    def communicator(self, name: str, options: Options) -> Communicator:
        """A communicator of all the job's ranks."""
        own = {nic.name for nic in self.job.nics} & set(self.job.members[self.rank].nics)
        return Communicator(
            name=f"{self.job.id}:{name}",
            job=self.job.id,
            rank=self.rank,
            members=self.job.members,
            nics=[nic for nic in self.job.nics if nic.name in own],
            rendezvous=AgentRendezvous(self._link, self.job.id),
            recorder=self._recorder,
            options=options,
        )

    def meet(self, place: str, key: str, rank: int, size: int) -> None:
        """Wait for `size` ranks, of any jobs, at `place`: so that several jobs' measurements overlap."""
        AgentRendezvous(self._link, place).exchange(key, rank, size, b"", 300.0)

    def report(self, kind: str, **fields: Any) -> None:  # noqa: ANN401  (each program has its own)
        """Tell the master something."""
        self._link.call("result", Result(self.job.id, self.rank, {"kind": kind} | fields), Empty)
