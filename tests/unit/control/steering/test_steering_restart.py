"""Steering in a real master, with agents that the test controls."""

import asyncio
import contextlib
import datetime
import time
from fnmatch import fnmatchcase

import pytest
from local_master import Scene

from c4bench.control.client import dial
from c4bench.deploy import authority
from c4bench.model.event import SteeringStage
from c4bench.model.fabric import Host, Nic
from c4bench.model.steering import Action, Policy
from c4bench.model.telemetry import CommRecord, Member, RankRecord
from c4bench.wire.channel import master_channel
from c4bench.wire.messages import Empty, Hello, JobSpec, LaunchJob, Result, StartRanks, StopRanks
from c4bench.wire.peer import Handler, Peer
from c4bench.wire.window_codec import WindowEncoder
from tools.sim.windows import window_of

NAMES = tuple(f"h{i}" for i in range(4))
EVERY_S = 0.1


@pytest.fixture
def scene(tmp_path):
    """A master and certificates of four hosts."""
    authority.establish(tmp_path / "trust", NAMES, datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1))
    made = Scene(tmp_path / "trust", tmp_path)
    yield made
    made.stop()


class FakeHost:
    """An agent that reports ranks without starting any; a silent one never answers a request to start ranks."""

    def __init__(self, name, silent=False):
        self.name, self.silent = name, silent
        self.jobs, self.killed = {}, set()
        self.started = []

    async def _start(self, request):
        if self.silent:
            await asyncio.Event().wait()
        self.jobs[request.job.id] = (request.job, request.ranks)
        self.started.append(request.job.id)
        for rank in request.ranks:
            await self.peer.call("result", Result(request.job.id, rank, {"kind": "resumed", "step": 40}, 1), Empty)
        return Empty()

    async def _stop(self, request):
        self.jobs.pop(request.job, None)
        return Empty()

    async def run(self, scene):
        handlers = {"start": Handler(StartRanks, self._start), "stop": Handler(StopRanks, self._stop)}
        async with master_channel(scene.address, scene.tls(self.name)) as channel:
            self.peer = Peer(channel, handlers)
            serving = asyncio.create_task(self.peer.serve())
            await self.peer.call("hello", Hello(self.name, "1", "", ""), Empty)
            try:
                await self._report()
            finally:
                serving.cancel()

    async def _report(self):
        last_s, number = time.time(), 0
        while True:
            await asyncio.sleep(EVERY_S)
            now_s, number = time.time(), number + 1
            if self.jobs:
                comms = tuple(CommRecord(f"{job.id}:data", job.id, job.members) for job, _ in self.jobs.values())
                ranks = tuple(self._rank(job.id, rank) for job, ranks in self.jobs.values() for rank in ranks)
                window = window_of(self.name, number, last_s, now_s, comms, ranks)
                await self.peer.note("window", WindowEncoder().encode(window))
            last_s = now_s

    def _rank(self, job, rank):
        dead = job in self.killed
        return RankRecord(job, rank, self.name, 100, "killed" if dead else "running", -9 if dead else None)


def nics(*names):
    return tuple(Nic(name, 0, "d", "n", "", 1e10) for name in names)


# The log lines of the job, as patterns.
STORY = [
    "INFO operator at 127.0.0.1 starts job j",
    "INFO j started: 2 ranks on h0, h1",
    "WARNING j: rank 1 killed on h1, code -9",
    "WARNING j: non_communication_hang: rank j:1, process_ended, confidence *",
    "INFO j: rank j:1: restart, h2 takes its place",
    "WARNING h1 taken out of service: rank j:1",
    "INFO job j restarts as j~1: h2 in place of h1",
    "INFO j ended",
    "WARNING j~1 cannot start: h2: no agent answers*",
    "INFO job j restarts as j~2: h3 in place of h2",
    "INFO j~1 ended",
    "INFO j~2 started: 2 ranks on h0, h3",
    "INFO j~2 trains from step 40, * s after the alarm",
]


def test_a_spare_that_does_not_start_ranks_is_replaced_by_the_next(scene):
    """If the first spare does not answer, the next attempt runs on the second spare.

    The log has one line for each agent that connects, and for each change of the job's state, in order.
    """
    hosts = [FakeHost(name, silent=name == "h2") for name in NAMES]
    members = tuple(Member(rank, f"h{rank}", (f"h{rank}/0",)) for rank in range(2))
    spec = JobSpec("j", "learning", members, nics("h0", "h1"))
    spares = tuple(Host(name, "", nics(name)) for name in ("h2", "h3"))

    async def play():
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(host.run(scene)) for host in hosts]
            await asyncio.sleep(0.5)
            async with dial(scene.address, scene.trust, "operator") as master:
                await master.start(LaunchJob(spec, Policy(hang=Action.RESTART), spares))
                await asyncio.sleep(0.5)
                hosts[1].killed.add("j")
                with contextlib.suppress(StopAsyncIteration):
                    async for event in master.follow():
                        if isinstance(event, SteeringStage) and event.incident.resumed_s is not None:
                            break
            for task in running:
                task.cancel()
        return event.incident

    incident = asyncio.run(asyncio.wait_for(play(), 40))
    assert (incident.out, incident.spare, incident.resumed_step) == ("h1", "h3", 40)
    assert [host.started for host in hosts] == [["j", "j~1", "j~2"], ["j"], [], ["j~2"]]
    assert list(hosts[0].jobs) == ["j~2"]
    assert incident.isolated_s < incident.restarted_s <= incident.resumed_s
    scene.master.terminate()
    logged = scene.logged()
    assert sorted(line["host"] for line in logged if line["message"].endswith(" connected, version 1")) == [*NAMES]
    story = [f"{line['level']} {line['message']}" for line in logged if {"job", "attempt"} & line.keys()]
    assert [line for line, wanted in zip(story, STORY, strict=True) if not fnmatchcase(line, wanted)] == []
    assert "shutting down; 1 jobs continue without a master" in [line["message"] for line in logged]
