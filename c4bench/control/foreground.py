"""Jobs in the foreground: start them, pass on what their ranks report, and end them with their exit code."""

import asyncio
import time
from collections.abc import Callable, Sequence

from c4bench.control.client import Client
from c4bench.model.steering import Action
from c4bench.wire.messages import LaunchJob, QueryProgress, Result

_POLL_S = 2.0  # how long the master holds back an answer that there is nothing new
_SIGNALLED = 128  # exit code of a process that a signal ended, as shells count

Report = Callable[[str, Result], None]


async def run(master: Client, launches: Sequence[LaunchJob], report: Report) -> int:
    """Run all jobs until they end; 0, or the exit code of the first of them, in the order given, whose rank failed.

    `report` gets a job's name and what a rank reported. Whatever ends this, no job runs on. Raises UnhealthyError with
    the master's reason if a job cannot start.
    """
    started: list[str] = []
    try:
        for launch in launches:
            await master.start(launch)
            started.append(launch.job.id)
        codes = await asyncio.gather(*(_follow(master, launch, report) for launch in launches))
    finally:
        for name in started:
            await master.stop(name)
    return next((code for code in codes if code), 0)


async def _follow(master: Client, launch: LaunchJob, report: Report) -> int:
    """Follow a job from attempt to attempt. One that may be restarted has the policy's time for it after a failure."""
    policy = launch.policy
    patience_s = policy.resume_within_s if Action.RESTART in (policy.hang, policy.slow) else 0.0
    attempt, first, failed_s = "", 0, None
    exits: dict[int, int] = {}
    while True:
        query = QueryProgress(launch.job.id, attempt, first, len(exits), _POLL_S)
        progress = await master.progress(query)
        if progress.attempt != attempt:
            attempt, first, failed_s = progress.attempt, 0, None
        for result in progress.reports:
            report(launch.job.id, result)
        first = max(progress.first, first + len(progress.reports))
        exits = progress.exits
        code = next((code for code in exits.values() if code), 0)
        if code:
            failed_s = failed_s or time.monotonic()
            if time.monotonic() - failed_s >= patience_s:
                return code if code > 0 else _SIGNALLED - code
        elif len(exits) == progress.ranks:
            return 0
