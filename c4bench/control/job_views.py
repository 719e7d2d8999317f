"""Diagnoses of one job, and what steering does about them, with blocking calls for tests."""

import math
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Protocol, TypeVar

from c4bench.c4d.detector import Detector
from c4bench.control.cluster import Cluster
from c4bench.errors import C4Error, UnhealthyError
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.event import AgentBack, AgentMissing, Event, HostReturned, SteeringStage
from c4bench.model.steering import Incident
from c4bench.units import format_time
from c4bench.wire.messages import JobSpec

HostEvent = TypeVar("HostEvent", AgentMissing, AgentBack, HostReturned)
_LOOK_EVERY_S = 0.1


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
