"""C4D's findings about one job, as a test asks for them."""

import time

from c4bench.control.cluster import Cluster
from c4bench.errors import UnhealthyError
from c4bench.model.diagnosis import Diagnosis
from c4bench.wire.messages import JobSpec


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
