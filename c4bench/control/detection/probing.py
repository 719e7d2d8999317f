"""Probes all NICs of a job once something in it is slow, and passes the results to C4D."""

import asyncio
import logging
import math
import time
from collections.abc import Sequence

from c4bench.c4d.probing.sweep import plan_sweep, unexplained
from c4bench.control.detection.telemetry import Detection
from c4bench.control.jobs.probe_jobs import ProbeJobs
from c4bench.control.state.registry import JobRegistry, name_of
from c4bench.errors import UnhealthyError
from c4bench.model.diagnosis import Diagnosis, Syndrome
from c4bench.model.recording import ProbeSweep
from c4bench.wire.messages import JobSpec

_logger = logging.getLogger(__name__)

_SLOW = (Syndrome.COMMUNICATION_SLOW, Syndrome.NON_COMMUNICATION_SLOW)
# Further diagnoses within this time are of the same faults.
_APART_S = 10.0
# A second sweep follows if a fault may have begun during the first.
_SWEEPS = 2


class ProbeSweeper:
    """Sweeps at most one at a time for each job whose policy allows it."""

    def __init__(self, registry: JobRegistry, detection: Detection, probes: ProbeJobs) -> None:
        self._registry, self._detection, self._probes = registry, detection, probes
        self._began_s: dict[str, float] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def consider(self, attempt: str, diagnoses: Sequence[Diagnosis]) -> None:
        """Begin a sweep if one of the diagnoses says that something is slow."""
        running = self._registry.by_attempt(attempt)
        slow = any(diagnosis.syndrome in _SLOW for diagnosis in diagnoses)
        if running is None or not running.policy.sweep or not slow:
            return
        name, now_s = name_of(attempt), time.time()
        if now_s - self._began_s.get(name, -math.inf) >= _APART_S:
            self._began_s[name] = now_s
            self._tasks[name] = asyncio.create_task(self._sweep(running.spec))

    async def _sweep(self, spec: JobSpec) -> None:
        nics = {nic.name: nic for nic in spec.nics}
        steps = plan_sweep(spec.nics)
        probes = tuple(probe for step in steps for probe in step)
        if not probes:
            return
        fields = {"attempt": spec.id, "probes": len(probes)}
        try:
            for _ in range(_SWEEPS):
                shares = await self._probes.shares(steps, nics)
                sweep = ProbeSweep(time.time(), spec.id, probes, tuple(shares))
                values = (spec.id, len(probes), min(shares))
                _logger.info("%s: all NICs probed by %d transfers, slowest %.2f of its bound", *values, extra=fields)
                self._detection.ingest(spec.id, sweep)
                if not unexplained(sweep):
                    return
        except UnhealthyError as error:
            _logger.warning("%s: NICs not probed: %s", spec.id, error, extra=fields)

    async def release(self, name: str) -> None:
        """Stop the sweep of a job that has ended."""
        self._began_s.pop(name, None)
        if task := self._tasks.pop(name, None):
            task.cancel()
            await asyncio.wait((task,))
