"""A master with blocking calls for tests and benchmarks; diagnoses of one job, and what steering does about them."""

import asyncio
import concurrent.futures
import math
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from c4bench.c4d import detectors
from c4bench.c4d.detector import Detector
from c4bench.c4d.observe.delay_matrix import MatrixTable, matrix_table
from c4bench.c4p.knowledge.atlas import Atlas
from c4bench.c4p.knowledge.path_knowledge import PathKnowledge
from c4bench.c4p.policy import PathPolicy
from c4bench.control.jobs.job import Job
from c4bench.control.master import Master
from c4bench.control.parts import compose
from c4bench.control.paths.learning import SOURCE_PORTS, PlannedFabric
from c4bench.control.paths.switches import Read
from c4bench.control.state.registry import name_of
from c4bench.errors import C4Error, UnhealthyError
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.event import AgentBack, AgentMissing, Diagnosed, Event, HostReturned, SteeringStage
from c4bench.model.fabric import Flow, Hash, Host, Nic
from c4bench.model.fabric import Path as FabricPath
from c4bench.model.steering import Incident, Policy
from c4bench.model.window import Window
from c4bench.record.telemetry import Recording
from c4bench.units import format_time
from c4bench.wire.messages import Exchange, Hello, JobSpec, LaunchJob
from c4bench.wire.probes import Burst
from c4bench.workload import programs

Answer = TypeVar("Answer")
HostEvent = TypeVar("HostEvent", AgentMissing, AgentBack, HostReturned)

_POLL_S = 0.2
_LOOK_EVERY_S = 0.1
NO_FIXTURE = "no paths are planned here; have the scenario ask for the fixture `atlas` or `planned`"


class Cluster:
    """Hosts with agents and the master they connect to, which runs on a thread of its own; a context manager.

    A bug of ours that the master reports, and goes on after, is raised when the cluster is closed. `detector` names who
    judges its jobs. `hash` is what switches choose paths by; None if that is to be found out.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        trust: Path,
        address: str,
        port: int,
        detector: str = detectors.C4D,
        hash: Hash | None = None,  # noqa: A002
    ) -> None:
        self.hosts, judging = tuple(hosts), detectors.judge(detector)
        self._hash = hash
        self._loop = asyncio.new_event_loop()
        self._bugs: list[Exception] = []
        self._loop.set_exception_handler(self._note_bug)
        self._thread = threading.Thread(target=self._loop.run_forever, name="c4bench-master", daemon=True)
        self._thread.start()
        self.parts = parts = self._call_soon(lambda: compose(judge=judging))
        self._beside: list[concurrent.futures.Future[None]] = []
        self._agents, self._jobs, self._log = parts.agents, parts.jobs, parts.log
        self._detection, self._paths = parts.detection, parts.paths
        self._paths.requested.only_explicit(NO_FIXTURE)
        self._rendezvous, self._meetings = parts.rendezvous, parts.meetings
        self._server = self._call_soon(lambda: Master(parts, trust, address, port))
        self._serving = self._serve()

    def _note_bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        # Others are connections that ended while somebody waited for an answer.
        if context.get("bug") and isinstance(bug := context["exception"], Exception) and not isinstance(bug, C4Error):
            self._bugs.append(bug)

    def _serve(self) -> "concurrent.futures.Future[None]":
        opened = threading.Event()
        serving = asyncio.run_coroutine_threadsafe(self._server.run(opened.set), self._loop)
        while not opened.wait(0.05):
            if serving.done():
                serving.result()
        return serving

    def _call_soon(self, make: Callable[[], Answer]) -> Answer:
        async def call() -> Answer:
            return make()

        return self._wait(call())

    def _wait(self, call: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop every job and the master, and what runs beside it."""
        for work in self._beside:
            work.cancel()
        self._wait(self._server.close())
        self._serving.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._bugs:
            raise self._bugs[0]

    def run_beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this on the master's loop until the cluster is closed."""
        self._beside.append(asyncio.run_coroutine_threadsafe(work, self._loop))

    def wait_hosts(self, names: Iterable[str], timeout_s: float) -> dict[str, Hello]:
        """Wait for these hosts' agents. Raises UnhealthyError naming the missing ones."""
        wanted = set(names)
        connected = self._agents.by_host
        self._wait(self._agents.wait_for(lambda: wanted <= set(connected), timeout_s))
        missing = sorted(wanted - set(connected))
        if missing:
            raise UnhealthyError(f"no agent answers on {', '.join(missing)} after {timeout_s:g} s (c4bench doctor)")
        return {name: connected[name].hello for name in sorted(wanted)}

    def wait_links(self, timeout_s: float) -> None:
        """Wait until C4P may use every link again. Raises UnhealthyError naming those that stay closed."""
        until_s = time.monotonic() + timeout_s
        while closed := self._call_soon(lambda: self._paths.controller.health.closed):
            if time.monotonic() > until_s:
                names = ", ".join(sorted(closed))
                raise UnhealthyError(f"C4P does not use links {names} after {timeout_s:g} s; look for what is down")
            time.sleep(_POLL_S)

    def start(self, spec: JobSpec, policy: Policy | None = None, spares: Sequence[Host] = ()) -> Job:
        """Start a job, steered by `policy`; without one nothing is done about diagnoses.

        Raises UsageError, and starts nothing, if its program cannot run.
        """
        programs.check(spec.program, spec.parameters)
        return self._wait(self._jobs.start(LaunchJob(spec, policy or Policy(), tuple(spares))))

    def job(self, name: str) -> Job:
        """The present attempt of a job by its name."""
        return self._call_soon(lambda: self._jobs.present(name))

    def events(self) -> list[Event]:
        """Every published event so far."""
        return self._call_soon(lambda: list(self._log.events))

    def wait_event(self, holds: Callable[[Event], bool], timeout_s: float, since: int = 0) -> Event | None:
        """The first event from number `since` on of which `holds` is true, None if there is none within `timeout_s`."""
        return self._wait(self._log.first(holds, timeout_s, since))

    def incidents(self, name: str) -> list[Incident]:
        """The newest state of each incident of a job."""
        incidents = [
            event.incident for event in self.events() if isinstance(event, SteeringStage) and event.incident.job == name
        ]
        return list({(known.diagnosis.job, known.diagnosis.component): known for known in incidents}.values())

    def results(self, job: Job, kind: str, timeout_s: float, *, each: int = 1) -> list[dict[str, Any]]:
        """`each` results of that kind from every rank, in rank order; UnhealthyError when they do not come."""
        return self._wait(job.wait(kind, each * len(job.spec.members), timeout_s))

    def stop(self, job: str) -> None:
        """End a job."""
        self._wait(self._jobs.stop(job))

    def put_back(self, job: str) -> list[str]:
        """Put every host back into service that a job has isolated, without a test; return which."""
        return self._call_soon(lambda: self._jobs.return_hosts(job))

    def exchange(self, job: str, key: str, rank: int, size: int, payload: bytes, timeout_s: float) -> tuple[bytes, ...]:
        """Join an exchange of a job's ranks as one more; return each payload (see `RankContext.exchange`)."""
        return self._wait(self._rendezvous.gather(Exchange(job, "", key, rank, size, payload, timeout_s)))

    def meet(self, meeting: str, moment: str) -> None:
        """Wait for the other members of a meeting of running jobs, of which the test is one."""
        self._wait(self._meetings.attend(meeting, moment))

    def learn_paths(self, source_ports: Sequence[int] = SOURCE_PORTS, read: Read | None = None) -> Atlas:
        """Learn all pairs of NICs now, and have C4P plan with the atlas; `read` as for `PlannedFabric`."""
        return self._wait(self._paths.learn(PlannedFabric(self.hosts, source_ports, read, hash=self._hash)))

    def plan_paths(self, read: Read | None = None) -> None:
        """Have C4P plan from now on, and learn the paths of a pair of NICs when a flow first needs one."""
        self._call_soon(lambda: self._paths.plan(PlannedFabric(self.hosts, read=read, hash=self._hash)))

    def plan_by(self, policy: PathPolicy) -> None:
        """Have C4P plan by this policy from now on. Raises UsageError while there are planned connections."""
        self._call_soon(lambda: self._paths.plan_by(policy))

    def known_paths(self) -> PathKnowledge:
        """Every path that is known so far, port by port."""
        return self._call_soon(lambda: self._paths.controller.knowledge)

    def send_bursts(self, pairs: Mapping[tuple[Nic, Nic], Sequence[Burst]]) -> None:
        """Send packets with the 5-tuples of data flows, for switches to count; all NICs at the same time."""

        async def send() -> None:
            survey = self._paths.survey
            await asyncio.gather(*(survey.burst(pair, bursts) for pair, bursts in pairs.items()))

        self._wait(send())

    def remarks(self) -> list[str]:
        """Remarks of C4P on requests that it could not fulfil."""
        return self._call_soon(lambda: list(self._paths.controller.remarks))

    def placed(self, job: str) -> dict[Flow, FabricPath]:
        """The paths of a running job's flows, including those of closed communicators."""
        return self._call_soon(lambda: dict(self._jobs.by_attempt(job).placed))

    def wait_diagnosis(self, job: str, timeout_s: float, since_s: float = -math.inf) -> Diagnosis | None:
        """The job's first diagnosis that was alarmed at `since_s` or later, None if there is none in `timeout_s`."""

        def holds(event: Event) -> bool:
            return isinstance(event, Diagnosed) and event.diagnosis.job == job and event.diagnosis.alarmed_s >= since_s

        event = self.wait_event(holds, timeout_s)
        return event.diagnosis if isinstance(event, Diagnosed) else None

    def diagnoses(self, job: str) -> list[Diagnosis]:
        """Every diagnosis of a job, in all its attempts."""
        return self._call_soon(lambda: [d for d in self._log.diagnoses if name_of(d.job) == name_of(job)])

    def delay_matrix(self, job: str) -> MatrixTable:
        """The newest delay matrix of a running job."""
        return self._call_soon(lambda: matrix_table(self._detection.cells(job)))

    def windows(self, job: str) -> list[Window]:
        """The telemetry received from a running job so far."""
        return [record for record in self.recording(job) if isinstance(record, Window)]

    def recording(self, job: str) -> Recording:
        """The records of a running job that C4D has ingested so far."""
        return self._call_soon(self._jobs.by_attempt(job).recording.copy)

    def recordings(self, name: str) -> dict[str, Recording]:
        """The records of each attempt of a running job that C4D has ingested so far."""
        return self._call_soon(lambda: {job.spec.id: job.recording.copy() for job in self._jobs.attempts_of(name)})


class Onset(Protocol):
    """When a fault took effect, such as `inject` yields: on our clock, with how much earlier it may have been."""

    @property
    def onset_s(self) -> float:
        """When it was in force."""

    @property
    def onset_bound_s(self) -> float:
        """By how much earlier it may have begun."""

    @property
    def clock_error_s(self) -> float:
        """By how much these times may be off."""


class C4D:
    """The diagnoses of one job."""

    def __init__(self, cluster: Cluster, job: JobSpec) -> None:
        self._cluster, self._job = cluster, job
        self._faults: list[Onset] = []

    def learn_baseline(self, at_least_s: float = 0.0, *, at_most_s: float = 30.0) -> float:
        """Let the job run undisturbed until C4D knows what its connections cost in health; return how long it took.

        In a lab only the waiting takes virtual time. Raises UnhealthyError if it takes longer than `at_most_s`.
        """
        time.sleep(at_least_s)
        recording = self._cluster.parts.jobs.by_attempt(self._job.id).recording
        detector, seen, took_s = Detector(), 0, at_least_s
        while True:
            for record in islice(recording.copy(), seen, None):
                detector.ingest(record)
                seen += 1
            if detector.has_baseline(self._job.id):
                return took_s
            if took_s >= at_most_s:
                raise UnhealthyError(
                    f"C4D did not learn the baseline of {self._job.id} within {at_most_s:g} s: some of its connections "
                    "carry no data; look at its ranks, or give at_most_s"
                )
            time.sleep(_LOOK_EVERY_S)
            took_s += _LOOK_EVERY_S

    def expect(self, fault: Onset) -> None:
        """A fault is in force: what `wait` returns is about it, or about a later one."""
        self._faults.append(fault)

    def wait(self, timeout_s: float, since: Onset | None = None) -> Diagnosis:
        """The first diagnosis that was alarmed since a fault, by default since the last one injected, if any was.

        Raises UnhealthyError if there is none within `timeout_s`, and C4Error as `check_calm` does.
        """
        fault = since or (self._faults[-1] if self._faults else None)
        since_s = _earliest_s(fault) if fault else -math.inf
        diagnosis = self._cluster.wait_diagnosis(self._job.id, timeout_s, since_s)
        self.check_calm()
        if diagnosis is None:
            raise UnhealthyError(f"C4D published no diagnosis of {self._job.id} for {timeout_s:g} s")
        return diagnosis

    def check_calm(self) -> None:
        """Raises C4Error if C4D had named something before the first fault: then it was wrong, or the job was ill."""
        first_s = min(map(_earliest_s, self._faults), default=-math.inf)
        early = next((found for found in self.all() if found.alarmed_s < first_s), None)
        if early:
            ahead = format_time(first_s - early.alarmed_s)
            named = early.component.named(self.link_names)
            raise C4Error(
                f"C4D named {named} in {early.job} {ahead} before the fault: a false alarm, or something is "
                "wrong with these hosts; what it says of the fault proves nothing"
            )

    @property
    def link_names(self) -> Mapping[str, str]:
        """The names of links as people say them, by address, where paths are known."""
        return self._cluster.parts.paths.named.names

    def all(self) -> list[Diagnosis]:
        """Every diagnosis so far."""
        return self._cluster.diagnoses(self._job.id)


def _earliest_s(fault: Onset) -> float:
    """The earliest moment at which a fault may have had an effect."""
    return fault.onset_s - fault.onset_bound_s - fault.clock_error_s


class SteeredJob:
    """A job that is steered; `spec` is its first attempt."""

    def __init__(self, cluster: Cluster, spec: JobSpec) -> None:
        self._cluster, self.spec = cluster, spec
        self._since = len(cluster.events())

    @property
    def attempt(self) -> JobSpec:
        """The attempt that runs now."""
        return self._cluster.job(self.spec.id).spec

    def incidents(self) -> list[Incident]:
        """The newest state of each incident."""
        return self._cluster.incidents(self.spec.id)

    def wait_resumed(self, timeout_s: float) -> Incident:
        """The first incident after which the job trains again. Raises UnhealthyError with all known incidents."""
        return self._wait(lambda incident: incident.resumed_s is not None, timeout_s, "does not train again")

    def wait_decided(self, timeout_s: float, after: Incident | None = None) -> Incident:
        """The first decision, or the first on an attempt later than that of `after`. Raises UnhealthyError."""
        before = after.diagnosis.job if after else ""
        return self._wait(lambda incident: incident.diagnosis.job > before, timeout_s, "has had no such incident")

    def _wait(self, holds: Callable[[Incident], bool], timeout_s: float, otherwise: str) -> Incident:
        def matches(event: Event) -> bool:
            return isinstance(event, SteeringStage) and event.incident.job == self.spec.id and holds(event.incident)

        event = self._cluster.wait_event(matches, timeout_s, self._since)
        if isinstance(event, SteeringStage):
            return event.incident
        raise UnhealthyError(f"{self.spec.id} {otherwise} within {timeout_s:g} s; incidents: {self.incidents()}")

    def wait_host_event(self, kind: type[HostEvent], host: str, timeout_s: float) -> HostEvent | None:
        """The first event of that kind about a host since the job was started, None after `timeout_s`."""

        def matches(event: Event) -> bool:
            return isinstance(event, kind) and event.host == host

        event = self._cluster.wait_event(matches, timeout_s, self._since)
        return event if isinstance(event, kind) else None

    def losses(self) -> dict[int, float]:
        """The loss of each step that the present attempt has reported so far."""
        results = self._cluster.job(self.spec.id).results
        reports = [result.body for result in results if result.body["kind"] == "losses"]
        return {
            body["first"] + index: float.fromhex(loss) for body in reports for index, loss in enumerate(body["losses"])
        }

    def wait_step(self, step: int, timeout_s: float) -> None:
        """Wait until the present attempt has reported the loss of `step`. Raises UnhealthyError."""
        deadline_s = time.monotonic() + timeout_s
        while step not in self.losses():
            if time.monotonic() > deadline_s:
                raise UnhealthyError(f"{self.attempt.id} did not come to step {step} within {timeout_s:g} s")
            time.sleep(_LOOK_EVERY_S)
