"""Probes of all of a job's NICs once something in it is slow: what they come to is told to C4D."""

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from c4bench.c4d.probing.sweep import plan_sweep, unexplained
from c4bench.control import probe_jobs
from c4bench.control.job_registry import name_of
from c4bench.errors import UnhealthyError
from c4bench.model.diagnosis import Diagnosis, Syndrome
from c4bench.model.recording import ProbeSweep
from c4bench.wire.messages import JobSpec

if TYPE_CHECKING:
    from c4bench.control.master import Master

_logger = logging.getLogger(__name__)

_SLOW = (Syndrome.COMMUNICATION_SLOW, Syndrome.NON_COMMUNICATION_SLOW)
# What is found meanwhile is not swept for again: the same faults still stand.
_APART_S = 10.0
# Once more where something may have begun while probes were sent.
_LOOKS = 2


class ProbeSweeper:
    """One at a time for a job, where its policy allows it."""

    def __init__(self, master: "Master") -> None:
        self._master = master
        self._began_s: dict[str, float] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def consider(self, attempt: str, found: Sequence[Diagnosis]) -> None:
        """Sweep for what else is slow where one of these says that something is."""
        running = self._master.register.present(attempt)
        if running is None or not running.policy.sweep or not any(one.syndrome in _SLOW for one in found):
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
            for _ in range(_LOOKS):
                shares = await probe_jobs.shares(self._master, steps, nics)
                swept = ProbeSweep(time.time(), spec.id, probes, tuple(shares))
                said = (spec.id, len(probes), min(shares))
                _logger.info("%s: all NICs probed by %d transfers, slowest %.2f of its bound", *said, extra=fields)
                self._master.detection.hear(spec.id, swept)
                if not unexplained(swept):
                    return
        except UnhealthyError as error:
            _logger.warning("%s: NICs not probed: %s", spec.id, error, extra=fields)

    async def let_go(self, name: str) -> None:
        """The job has ended, and what is sent for its sake ends as well."""
        self._began_s.pop(name, None)
        if task := self._tasks.pop(name, None):
            task.cancel()
            await asyncio.wait((task,))
