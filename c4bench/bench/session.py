"""What a case in a lab measures with."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from c4bench.bench.cases import Stage
from c4bench.bench.words import words
from c4bench.control.cluster import Cluster
from c4bench.model.fabric import Host
from c4bench.model.measurement import Clock, Measurement
from c4bench.record import Ledger, RunDirectory
from c4bench.workload.jobs import job

_RESULTS_WITHIN_S = 3000.0


class Session:
    """Hosts, a way to run a job on them, and somewhere to write figures down."""

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

    def measure(
        self,
        suite: str,
        name: str,
        value: float,
        *,
        unit: str = "1",
        at_least: float | None = None,
        at_most: float | None = None,
        **labels: str | float,
    ) -> Measurement:
        """Write a figure down, timed on the stage's clock, and say it."""
        clock = Clock.VIRTUAL if self.stage.virtual else Clock.MACHINE
        taken = Ledger(self.run, f"bench.{suite}").measure(
            name,
            value,
            unit,
            at_least=at_least,
            at_most=at_most,
            clock=clock,
            **labels,  # type: ignore[arg-type]
        )
        sys.stdout.write(words(taken) + "\n")
        sys.stdout.flush()
        return taken
