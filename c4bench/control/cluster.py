"""The master with a blocking face: what a test, which is not a coroutine, holds in its hand."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from c4bench.c4d.network.delay_matrix import MatrixTable, matrix_table
from c4bench.c4p.atlas import Atlas
from c4bench.c4p.path_knowledge import PathKnowledge
from c4bench.c4p.policy import PathPolicy
from c4bench.control.job_registry import name_of
from c4bench.control.jobs import Job
from c4bench.control.master import Master
from c4bench.control.switches import Switches
from c4bench.errors import UnhealthyError
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.event import Diagnosed, Event, SteeringStage
from c4bench.model.fabric import Flow, Host, Nic
from c4bench.model.fabric import Path as FabricPath
from c4bench.model.steering import Incident, Policy
from c4bench.model.telemetry import Window
from c4bench.record.telemetry import Recording
from c4bench.wire.messages import Burst, Exchange, Hello, JobSpec, LaunchJob

Answer = TypeVar("Answer")


class Cluster:
    """Hosts with agents, and the master they are connected to; a context manager."""

    def __init__(self, hosts: Sequence[Host], trust: Path, address: str, port: int) -> None:
        self.hosts = tuple(hosts)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="c4bench-master", daemon=True)
        self._thread.start()
        self._master = self._call_soon(lambda: Master(trust, address, port))
        self._serving = self._serve()

    def _serve(self) -> "concurrent.futures.Future[None]":
        opened = threading.Event()
        serving = asyncio.run_coroutine_threadsafe(self._master.run(opened.set), self._loop)
        while not opened.wait(0.05):
            if serving.done():
                serving.result()
        return serving

    def _call_soon(self, make: Callable[[], Answer]) -> Answer:
        async def call() -> Answer:
            return make()

        return self._ask(call())

    def _ask(self, question: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(question, self._loop).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop every job and the master."""
        self._ask(self._master.close())
        self._serving.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def wait_hosts(self, names: Iterable[str], timeout_s: float) -> dict[str, Hello]:
        """Wait for these hosts' agents. Raises UnhealthyError naming the missing ones."""
        wanted = set(names)
        self._ask(self._master.lines.wait_for(lambda: wanted <= set(self._master.lines.agents), timeout_s))
        missing = sorted(wanted - set(self._master.lines.agents))
        if missing:
            raise UnhealthyError(f"no agent answers on {', '.join(missing)} after {timeout_s:g} s (c4bench doctor)")
        return {name: self._master.lines.agents[name].hello for name in sorted(wanted)}

    def start(self, spec: JobSpec, policy: Policy | None = None, spares: Sequence[Host] = ()) -> Job:
        """Start a job, steered by `policy`; without one it is only looked at."""
        return self._ask(self._master.start(LaunchJob(spec, policy or Policy(), tuple(spares))))

    def job(self, name: str) -> Job:
        """The present attempt of a job by its name."""
        return self._call_soon(lambda: self._master.jobs[self._master.register.running(name).spec.id])

    def events(self) -> list[Event]:
        """Everything the master has told so far."""
        return self._call_soon(lambda: list(self._master.log.events))

    def wait_event(self, holds: Callable[[Event], bool], timeout_s: float, since: int = 0) -> Event | None:
        """The first event from number `since` on of which `holds` is true, None if there is none within `timeout_s`."""
        return self._ask(self._master.log.first(holds, timeout_s, since))

    def incidents(self, name: str) -> list[Incident]:
        """What became of each diagnosis of a job, as far as it has come."""
        told = [
            event.incident for event in self.events() if isinstance(event, SteeringStage) and event.incident.job == name
        ]
        return list({(one.diagnosis.job, one.diagnosis.component): one for one in told}.values())

    def results(self, job: Job, kind: str, timeout_s: float, *, each: int = 1) -> list[dict[str, Any]]:
        """`each` results of that kind from every rank, in rank order; UnhealthyError when they do not come."""
        return self._ask(job.wait(kind, each * len(job.spec.members), timeout_s))

    def stop(self, job: str) -> None:
        """End a job."""
        self._ask(self._master.stop(job))

    def put_back(self, job: str) -> list[str]:
        """Put every host back into service that was taken out for that job's sake, unchecked; which these were."""
        return self._call_soon(lambda: self._master.put_back(job))

    def meet(
        self, place: str, key: str, rank: int, size: int, payload: bytes = b"", timeout_s: float = 300.0
    ) -> tuple[bytes, ...]:
        """Take part in a meeting of ranks, and get what each has brought (see `workload.context.RankContext.meet`)."""
        return self._ask(self._master.meet(Exchange(place, "", key, rank, size, payload, timeout_s)))

    def learn_paths(self, source_ports: Sequence[int]) -> Atlas:
        """Probe all pairs of NICs and keep the atlas for planning."""
        return self._ask(self._master.routing.learn(self.hosts, source_ports))

    def plan_paths(self, source_ports: Sequence[int]) -> None:
        """Have C4P plan from here on, and learn the paths of a pair of NICs when a flow first asks for one."""
        self._call_soon(lambda: self._master.routing.plan(self.hosts, source_ports))

    def count_paths(self, switches: Switches) -> None:
        """Have C4P learn paths by these switches' counters where probes are not answered."""
        self._call_soon(lambda: self._master.routing.count_by(switches.ports))

    def plan_by(self, policy: PathPolicy) -> None:
        """Have C4P plan by this policy from here on, and learn the fabric anew.

        Raises UsageError while there are planned connections.
        """
        self._call_soon(lambda: self._master.routing.plan_by(policy))

    @contextmanager
    def background_watched(self, switches: Switches, every_s: float = 1.0) -> Iterator[None]:
        """Have C4P measure the traffic of others on the switches' ports, and plan around it, meanwhile."""
        watching = asyncio.run_coroutine_threadsafe(self._master.routing.watch(switches.ports, every_s), self._loop)
        try:
            yield
        finally:
            watching.cancel()

    def known_paths(self) -> PathKnowledge:
        """All that probing has found so far, port by port."""
        return self._call_soon(lambda: self._master.routing.controller.knowledge)

    def send_bursts(self, pairs: Mapping[tuple[Nic, Nic], Sequence[Burst]]) -> None:
        """Send packets with the 5-tuples of data flows, for switches to count; all NICs side by side."""

        async def send() -> None:
            survey = self._master.routing.survey
            await asyncio.gather(*(survey.burst(pair, bursts) for pair, bursts in pairs.items()))

        self._ask(send())

    def remarks(self) -> list[str]:
        """What C4P could not do, or not as asked, in words."""
        return self._call_soon(lambda: list(self._master.routing.controller.remarks))

    def placed(self, job: str) -> dict[Flow, FabricPath]:
        """Where C4P has put a running job's flows, those of communicators already closed included."""
        return self._call_soon(lambda: dict(self._master.jobs[job].placed))

    def wait_diagnosis(self, job: str, timeout_s: float) -> Diagnosis | None:
        """The job's first diagnosis, None when there is none within `timeout_s`."""
        found = self.wait_event(lambda event: isinstance(event, Diagnosed) and event.diagnosis.job == job, timeout_s)
        return found.diagnosis if isinstance(found, Diagnosed) else None

    def diagnoses(self, job: str) -> list[Diagnosis]:
        """Everything C4D has said about a job, in all its attempts."""
        return self._call_soon(lambda: [d for d in self._master.log.diagnoses if name_of(d.job) == name_of(job)])

    def delay_matrix(self, job: str) -> MatrixTable:
        """The newest delay matrix of a running job."""
        return self._call_soon(lambda: matrix_table(self._master.cells(job)))

    def windows(self, job: str) -> list[Window]:
        """The telemetry received from a running job so far."""
        return [record for record in self.recording(job) if isinstance(record, Window)]

    def recording(self, job: str) -> Recording:
        """What C4D has heard of a running job so far."""
        return self._call_soon(self._master.jobs[job].recording.copy)

    def recordings(self, name: str) -> dict[str, Recording]:
        """What C4D has heard of each attempt of a running job so far."""
        return self._call_soon(lambda: {one.spec.id: one.recording.copy() for one in self._master.attempts_of(name)})
