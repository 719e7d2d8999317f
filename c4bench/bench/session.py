"""The hosts, job runner and recorder a case measures with."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from c4bench.bench.cases import Stage
from c4bench.bench.notes import note
from c4bench.control.cluster import Cluster
from c4bench.model.fabric import Host
from c4bench.model.measurement import Clock
from c4bench.record import RunDirectory
from c4bench.workload.jobs import job

_RESULTS_WITHIN_S = 3000.0


class Session:
    """Runs jobs on the lab's hosts and records their figures."""

    def __init__(self, stage: Stage, run: RunDirectory, cluster: Cluster, seed: int) -> None:
        self.stage, self.run = stage, run
        self.cluster = cluster
        self.hosts = cluster.hosts
        self.rate_bps = stage.topology.nic_rate_bps
        self._seed = seed
        self._jobs = 0

    @contextmanager
    def running(
        self, program: str, hosts: tuple[Host, ...], kind: str, **parameters: object
    ) -> Iterator[list[dict[str, Any]]]:
        """A job on these hosts, once every rank has reported a result of that kind; those, in rank order."""
        self._jobs += 1
        spec = job(f"bench{self._jobs}", program, hosts, seed=self._seed, **parameters)
        running = self.cluster.start(spec)
        try:
            yield self.cluster.results(running, kind, _RESULTS_WITHIN_S)
        finally:
            self.cluster.stop(spec.id)

    def results(self, program: str, hosts: tuple[Host, ...], kind: str, **parameters: object) -> list[dict[str, Any]]:
        """Run a job on these hosts until every rank has reported a result of that kind."""
        with self.running(program, hosts, kind, **parameters) as results:
            return results

    def measure(self, suite: str, name: str, value: float, **rest: Any) -> None:  # noqa: ANN401  (as `note` has it)
        """Record a figure on the stage's clock and print it."""
        note(self.run, suite, name, value, clock=Clock.VIRTUAL if self.stage.virtual else Clock.MACHINE, **rest)
