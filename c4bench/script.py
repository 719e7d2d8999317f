"""A lab in a plain script: `with c4bench.lab() as lab:` runs the script in a new lab.

What a lab has is there only inside it. So the script runs again inside, as `pytest --hosts=softroce` does: what comes
before the block runs twice, and outside the script ends with the block.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from c4bench import inventory, remote
from c4bench.control.cluster import C4D, Cluster
from c4bench.errors import UsageError
from c4bench.inject import places
from c4bench.inject.controller import Injector
from c4bench.inject.protocol import Applied
from c4bench.inventory import Inventory
from c4bench.lab import topology_file
from c4bench.lab.machine import launch
from c4bench.lab.places import RUN
from c4bench.lab.spec import INVENTORY
from c4bench.model.fabric import Host
from c4bench.wire.messages import JobSpec
from c4bench.workload import jobs

_AGENTS_WITHIN_S, _READY_WITHIN_S = 30.0, 60.0
_LISTEN = ("0.0.0.0", 7447)  # noqa: S104  (the lab's own network)


class LabJob(C4D):
    """A job that runs in the lab, and what the detector says of it; `spec` describes it."""

    def __init__(self, cluster: Cluster, spec: JobSpec) -> None:
        super().__init__(cluster, spec)
        self.spec = spec

    def results(self, kind: str, timeout_s: float = 60.0) -> list[dict[str, Any]]:
        """A report of that kind from every rank, in rank order. Raises UnhealthyError when they do not come."""
        return self._cluster.results(self._cluster.job(self.spec.id), kind, timeout_s)


class Lab:
    """A lab that runs; `hosts` are its hosts, `inventory` describes them, `cluster` is its master."""

    def __init__(self, known: Inventory, cluster: Cluster) -> None:
        self.inventory, self.cluster = known, cluster
        self._jobs: list[LabJob] = []
        self._injector = Injector(
            connect=lambda host: remote.connect(host, known.access[host]), python=lambda host: known.access[host].python
        )

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Every host."""
        return self.inventory.hosts

    def run(self, program: str = "training", name: str = "", **parameters: object) -> LabJob:
        """Start a job with a rank on every host, and return when all report `ready`.

        Without `parameters`, `training` is the job that scenarios inject faults into. Raises UsageError for a program
        that does not exist or does not fit, UnhealthyError where ranks do not come up.
        """
        if program == "training" and not parameters:
            spec = jobs.training_job(name or program, self.hosts, seed=0)
        else:
            spec = jobs.job(name or program, program, jobs.place(self.hosts), seed=0, **parameters)
        job = LabJob(self.cluster, spec)
        self.cluster.start(spec)
        job.results("ready", _READY_WITHIN_S)
        self._jobs.append(job)
        return job

    @contextmanager
    def inject(self, fault: str, at: str, **parameters: float | str) -> Iterator[Applied]:
        """A fault at a place in words, such as `h5/0` or `rank 2 of job training`, in force within the block.

        Raises UsageError for a fault or place that does not fit, UnhealthyError where the host cannot apply or revert
        it, InconclusiveError where its witness has not seen it.
        """
        with self._injector.apply_at(fault, places.parse(at, self.inventory), parameters) as applied:
            for job in self._jobs:
                job.expect(applied)
            yield applied


@contextmanager
def lab(topology: str = "clos-2x4", *, seed: int = 1, detector: str = "c4d") -> Iterator[Lab]:
    """Run the script that calls this in a new lab: a name of a topology or a .yml, a seed, and who judges jobs.

    Raises UsageError without a script or for what does not exist, UnhealthyError where the lab does not come up.
    """
    if "C4BENCH_IN_LAB" not in os.environ:
        raise SystemExit(_run_inside(topology, seed))
    known = inventory.load(Path(INVENTORY))
    trust = launch.trust_directory(Path(RUN))
    with Cluster(known.hosts, trust, *_LISTEN, detector, known.hash) as cluster:
        cluster.wait_hosts([host.name for host in known.hosts], _AGENTS_WITHIN_S)
        time.sleep(-time.monotonic() % 1.0)  # what ran before moves nothing
        yield Lab(known, cluster)


def _run_inside(topology: str, seed: int) -> int:
    script = getattr(sys.modules["__main__"], "__file__", None)
    if not script:
        raise UsageError("c4bench.lab runs its script in the lab, and there is none; write it into a file and run that")
    command = [sys.executable, str(Path(script).resolve()), *sys.argv[1:]]
    with tempfile.TemporaryDirectory(prefix="c4bench-") as directory:
        return launch.launch(topology_file.load(topology), command, Path(directory), seed=seed).exit_code
