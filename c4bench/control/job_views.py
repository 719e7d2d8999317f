"""C4D's findings about one job, and what steering does about them, as a test asks for them."""

import time
from collections.abc import Callable
from typing import TypeVar

from c4bench.control.cluster import Cluster
from c4bench.errors import UnhealthyError
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.event import AgentBack, AgentMissing, Event, HostReturned, SteeringStage
from c4bench.model.steering import Incident
from c4bench.wire.messages import JobSpec

Told = TypeVar("Told", AgentMissing, AgentBack, HostReturned)
_LOOK_EVERY_S = 0.1


class C4D:
    """The detector's view of one job."""

    def __init__(self, cluster: Cluster, job: JobSpec) -> None:
        self._cluster, self._job = cluster, job

    def settle(self, duration_s: float) -> None:
        """Let the job run undisturbed, so that the detector learns what normal is."""
        time.sleep(duration_s)

    def wait(self, timeout_s: float) -> Diagnosis:
        """The first diagnosis. Raises UnhealthyError when there is none within `timeout_s`."""
        found = self._cluster.wait_diagnosis(self._job.id, timeout_s)
        if found is None:
            raise UnhealthyError(f"C4D said nothing about {self._job.id} for {timeout_s:g} s")
        return found

    def all(self) -> list[Diagnosis]:
        """Every diagnosis so far."""
        return self._cluster.diagnoses(self._job.id)


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
        """What became of each diagnosis, as far as it has come."""
        return self._cluster.incidents(self.spec.id)

    def wait_resumed(self, timeout_s: float) -> Incident:
        """The first incident after which the job trains again. Raises UnhealthyError with all that is known."""
        return self._wait(lambda incident: incident.resumed_s is not None, timeout_s, "does not train again")

    def wait_decided(self, timeout_s: float, after: Incident | None = None) -> Incident:
        """The first decision, or the first on an attempt later than that of `after`. Raises UnhealthyError."""
        before = after.diagnosis.job if after else ""
        return self._wait(lambda incident: incident.diagnosis.job > before, timeout_s, "has had no such incident")

    def _wait(self, holds: Callable[[Incident], bool], timeout_s: float, otherwise: str) -> Incident:
        def is_it(event: Event) -> bool:
            return isinstance(event, SteeringStage) and event.incident.job == self.spec.id and holds(event.incident)

        found = self._cluster.wait_event(is_it, timeout_s, self._since)
        if isinstance(found, SteeringStage):
            return found.incident
        raise UnhealthyError(f"{self.spec.id} {otherwise} within {timeout_s:g} s; incidents: {self.incidents()}")

    def told(self, kind: type[Told], host: str, timeout_s: float) -> Told | None:
        """The first event of that kind about a host since the job was started, None if there is none in time."""

        def is_it(event: Event) -> bool:
            return isinstance(event, kind) and event.host == host

        found = self._cluster.wait_event(is_it, timeout_s, self._since)
        return found if isinstance(found, kind) else None

    def losses(self) -> dict[int, float]:
        """The loss of each step that the present attempt has reported so far."""
        said = [result.body for result in self._cluster.job(self.spec.id).results if result.body["kind"] == "losses"]
        return {
            body["first"] + index: float.fromhex(loss) for body in said for index, loss in enumerate(body["losses"])
        }

    def wait_step(self, step: int, timeout_s: float) -> None:
        """Wait until the present attempt has reported the loss of `step`. Raises UnhealthyError."""
        deadline_s = time.monotonic() + timeout_s
        while step not in self.losses():
            if time.monotonic() > deadline_s:
                raise UnhealthyError(f"{self.attempt.id} did not come to step {step} within {timeout_s:g} s")
            time.sleep(_LOOK_EVERY_S)
