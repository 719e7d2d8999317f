"""Ranks of simulated jobs that stop, and what a master on a bus publishes of them."""

import asyncio
import time

from bus_scene import HOSTS

from tools.sim.model import SimFault, SimFaultKind

# A fault lasts so long, and the next one begins so much later.
LASTS_S, APART_S = 2.5, 5.0


def stops(jobs, first_s, count):
    """A rank of one job after the other stops for a while; (job, rank, from, until) of each."""
    return [
        (jobs[number % len(jobs)], number // len(jobs) % len(HOSTS), at_s, at_s + LASTS_S)
        for number, at_s in enumerate(first_s + APART_S * number for number in range(count))
    ]


def as_faults(stopped, jobs):
    """The faults of each job."""
    return {
        job: [
            SimFault(SimFaultKind.STOPPED, rank, at_s, until_s) for name, rank, at_s, until_s in stopped if name == job
        ]
        for job in jobs
    }


class Watched:
    """Simulated jobs that run, and what the master publishes of them, with the time when it came."""

    def __init__(self, scene, jobs):
        self.scene, self.jobs = scene, jobs
        self.found = []

    async def __aenter__(self):
        self.tasks = [asyncio.create_task(self.jobs.run()), asyncio.create_task(self._follow())]
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_):
        ended = [task.exception() for task in self.tasks if task.done()]
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)
        assert not ended, ended

    async def _follow(self):
        async for diagnosis in self.scene.diagnoses():
            self.found.append((time.time(), diagnosis))

    async def until(self, at_s):
        """Wait for this time of the jobs."""
        await asyncio.sleep(self.jobs.began_s + at_s - time.time())

    async def named(self, job, rank, at_s, within_s):
        """Wait until a rank that stopped at `at_s` has been named; return how long after that (s)."""
        while not (times := self.times(job, rank, at_s, at_s + LASTS_S)):
            assert time.time() < self.jobs.began_s + at_s + within_s, f"{job}:{rank} was not named: {self.found}"
            await asyncio.sleep(0.02)
        return times[0] - at_s

    def times(self, job, rank, since_s, until_s):
        """When a rank was named for what began between these times of the jobs."""
        began_s = self.jobs.began_s
        return [
            came_s - began_s
            for came_s, found in self.found
            if found.component.name == f"{job}:{rank}" and since_s - 0.5 <= found.onset_s - began_s <= until_s
        ]

    def repeated(self):
        """Findings that say the same of the same component, and whose onsets are nearer than two faults can be."""
        said = [(found.job, found.cause, found.component, found.alternatives, found.onset_s) for _, found in self.found]
        return [
            (one, other)
            for at, one in enumerate(said)
            for other in said[:at]
            if one[:4] == other[:4] and abs(one[4] - other[4]) < LASTS_S
        ]
