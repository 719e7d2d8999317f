"""A bus whose detectors and masters are killed, and that is full, slow and gone: each finding is published once."""

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter

import pytest
from bus_faults import APART_S, LASTS_S, Watched, as_faults, stops
from bus_scene import HOSTS, SUBJECTS, BusScene, SimulatedJobs, free_port, needs_nats

from c4bench.bus.connection import opened
from c4bench.model.measurement import Clock, Outcome
from c4bench.record import Ledger
from c4bench.wire.trust import Role

pytestmark = needs_nats
# What C4D learns from first, and how long it may take to name a fault that nothing disturbs.
LEARN_S, NAMED_WITHIN_S = 4.0, 1.5
TAKEN_OVER_WITHIN_S = 2.0
KILLS = 50
# Of the bus that is full: when a detector is there again, also on a busy machine.
FULL_S = 14.0
# What takes longer on a busy machine does not happen.
WITHIN_S = 30.0


@pytest.fixture
def scene(tmp_path):
    """nats-server and a master."""
    with BusScene(tmp_path) as scene:
        scene.master = scene.start_master()
        yield scene


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_detectors_are_killed_and_each_fault_is_named_once(scene, drills, request):
    """Whenever a detector is killed, another judges its jobs, and each fault is published once.

    How soon it does is machine time: it is measured against a limit, which the output shows as missed where it is.
    """
    jobs = [f"job{number}" for number in range(4)]
    # On a busy machine a detector starts so slowly that some faults pass without a kill.
    stopped, draw = stops(jobs, LEARN_S, 6 * KILLS), random.Random(KILLS)
    took_s = []

    async def play():
        detectors = {}

        async def start():
            # On a thread: agents go on meanwhile.
            detector = await asyncio.to_thread(scene.start_detector)
            detectors[detector.pid] = detector

        await start()
        await start()
        async with (
            Watched(scene, SimulatedJobs(scene, as_faults(stopped, jobs))) as watched,
            opened(scene.bus()) as bus,
        ):
            for job, rank, at_s, _ in stopped:
                if len(took_s) == KILLS:
                    break
                holder = (await scene.judging(jobs, bus))[job]
                if time.time() > watched.jobs.began_s + at_s - 0.6:
                    continue
                after_s = draw.uniform(-0.5, 1.2)
                await watched.until(at_s + after_s)
                victim = detectors.pop(int(holder.rpartition("-")[2]))
                victim.end(signal.SIGKILL)
                killed_s = time.time() - watched.jobs.began_s - at_s
                named_s = await watched.named(job, rank, at_s, WITHIN_S)
                took_s.append(max(0.0, named_s - max(killed_s, NAMED_WITHIN_S)))
                await start()
            ended_s = time.time() - watched.jobs.began_s
            await asyncio.sleep(APART_S)
        past = [fault for fault in stopped if fault[3] < ended_s]
        counts = Counter(len(watched.times(job, rank, at_s, until_s)) for job, rank, at_s, until_s in past)
        return counts, len(past), watched.repeated()

    counts, faults, repeated = asyncio.run(play())
    assert len(took_s) == KILLS
    ledger = Ledger(drills, request.node.nodeid)
    ledger.measure("bus.takeover_s", max(took_s), "s", at_most=TAKEN_OVER_WITHIN_S, clock=Clock.MACHINE, kills=KILLS)
    twice = sum(count * (times - 1) for times, count in counts.items()) + len(repeated)
    taken = ledger.measure("bus.duplicates", twice, "1", equals=0, clock=Clock.NONE, kills=KILLS)
    assert taken.outcome is Outcome.PASS, (counts, repeated)
    assert counts == {1: faults}


def test_a_detector_that_stands_still_and_goes_on_says_nothing_twice(scene):
    """Others judge the jobs of a detector that stands still; when it goes on it gives them up, and repeats nothing."""
    stopped, jobs = stops(["job0"], LEARN_S, 2), ["job0"]
    detectors = {detector.pid: detector for detector in (scene.start_detector(), scene.start_detector())}

    async def holder():
        return int((await scene.judging(jobs))["job0"].rpartition("-")[2])

    async def play():
        async with Watched(scene, SimulatedJobs(scene, as_faults(stopped, jobs))) as watched:
            first = await holder()
            await watched.until(LEARN_S + 0.4)
            detectors[first].send(signal.SIGSTOP)
            await watched.named("job0", 0, LEARN_S, WITHIN_S)
            assert await holder() != first
            detectors[first].send(signal.SIGCONT)
            await watched.named("job0", 1, LEARN_S + APART_S, WITHIN_S)
            await asyncio.sleep(1.0)
        return first, watched

    first, watched = asyncio.run(play())
    assert [len(watched.times(job, rank, at_s, until_s)) for job, rank, at_s, until_s in stopped] == [1, 1]
    assert not watched.repeated()
    assert "job0: another detector has taken it over" in detectors[first].log.read_text()


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.nightly)])
def test_detectors_end_with_their_bus(tmp_path, times):
    """Detectors that are told to end in the moment in which nats-server ends do so, and call it no failure."""
    for number in range(times):
        (folder := tmp_path / str(number)).mkdir()
        with BusScene(folder) as scene:
            detectors = [scene.start_detector() for _ in range(4)]
            scene.server.send(signal.SIGTERM)
            for detector in detectors:
                detector.send(signal.SIGTERM)
            assert [detector.started.wait(20) for detector in detectors] == [0] * 4, number


def test_a_full_bus_loses_the_oldest_windows_and_says_how_many(scene):
    """Where the bus is full because no detector reads it, what is lost is counted, and judging goes on."""
    stopped = stops(["job0"], FULL_S, 1)
    detector = scene.start_detector()

    async def play():
        async with Watched(scene, SimulatedJobs(scene, as_faults(stopped, ["job0"]))) as watched:
            await scene.judging(["job0"])
            async with opened(scene.bus()) as bus:
                config = (await bus.js.stream_info(SUBJECTS.telemetry)).config
                config.max_bytes = 20_000
                await bus.js.update_stream(config)
            await watched.until(LEARN_S)
            detector.end(signal.SIGKILL)
            await asyncio.sleep(2.0)
            await asyncio.to_thread(scene.start_detector)
            await watched.named("job0", 0, FULL_S, WITHIN_S)
            await asyncio.sleep(0.5)
        assert len(watched.times("job0", 0, FULL_S, FULL_S + LASTS_S)) == 1
        return await asyncio.to_thread(scene.health)

    health = asyncio.run(play())
    assert all(health["agents"][host]["dropped"]["lost on the bus"] > 0 for host in HOSTS), health["agents"]


def test_a_slow_bus_delays_findings_and_loses_none(scene):
    """Where nats-server stands still for a while, windows wait, and a fault in that time is named once."""
    stopped = stops(["job0"], LEARN_S, 1)
    scene.start_detector()

    async def play():
        async with Watched(scene, SimulatedJobs(scene, as_faults(stopped, ["job0"]))) as watched:
            await scene.judging(["job0"])
            await watched.until(LEARN_S - 0.2)
            scene.server.send(signal.SIGSTOP)
            await asyncio.sleep(0.8)
            scene.server.send(signal.SIGCONT)
            await watched.named("job0", 0, LEARN_S, WITHIN_S)
            await asyncio.sleep(1.0)
        assert len(watched.times("job0", 0, LEARN_S, LEARN_S + LASTS_S)) == 1
        assert not watched.repeated()

    asyncio.run(play())
    assert scene.master.started.poll() is None


def test_a_bus_that_is_gone_is_no_missing_host(scene):
    """Without a bus the master ends in one line. With it the next one goes on, misses no agent, and names faults."""
    stopped = stops(["job0"], 12.0, 1)
    scene.start_detector()

    async def play():
        async with Watched(scene, SimulatedJobs(scene, as_faults(stopped, ["job0"]))) as watched:
            await scene.judging(["job0"])
            await watched.until(LEARN_S)
            scene.server.end(signal.SIGKILL)
            code = await asyncio.to_thread(scene.master.started.wait, 15)
            log = scene.master.log.read_text()
            scene.start_server()
            scene.master = await asyncio.to_thread(scene.start_master)
            await watched.named("job0", 0, 12.0, WITHIN_S)
        return code, log, watched, await asyncio.to_thread(scene.health)

    code, log, watched, health = asyncio.run(play())
    assert code == 3
    assert log.splitlines()[-1].startswith("c4bench: the bus nats://")
    assert len(watched.times("job0", 0, 12.0, 12.0 + LASTS_S)) == 1
    assert health["missing"] == []


def test_of_two_masters_the_bus_decides_which_leads(scene):
    """A master that stands still is replaced, with all that it knew; when it goes on it writes nothing, and ends."""
    stopped = stops(["job0"], LEARN_S, 2)
    scene.start_detector()
    other_port = free_port()
    second = scene.start_master(waits=True, port=other_port)

    async def play():
        async with Watched(scene, SimulatedJobs(scene, as_faults(stopped, ["job0"]))) as watched:
            await watched.named("job0", 0, LEARN_S, WITHIN_S)
            assert second.started.poll() is None
            first, first_port = scene.master, scene.port
            first.send(signal.SIGSTOP)
            while "listening" not in second.log.read_text():
                await asyncio.sleep(0.1)
            first.send(signal.SIGCONT)
            code = await asyncio.to_thread(first.started.wait, 15)
            assert scene.port == first_port
            scene.port, scene.address = other_port, f"127.0.0.1:{other_port}"
            await watched.named("job0", 1, LEARN_S + APART_S, WITHIN_S)
            await asyncio.sleep(1.0)
        return code, first.log.read_text(), watched

    code, log, watched = asyncio.run(play())
    assert code == 3
    assert log.splitlines()[-1] == "c4bench: another master leads now, so this one ends"
    assert "1 jobs restored" in second.log.read_text()
    assert [len(watched.times(job, rank, at_s, until_s)) for job, rank, at_s, until_s in stopped] == [1, 1]
    assert not watched.repeated()


def test_a_master_that_stands_still_while_it_waits_for_an_answer_says_that_another_leads(scene):
    """What has not answered is the master itself: it does not say that the bus is gone."""
    first, second = scene.master, scene.start_master(waits=True, port=free_port())
    scene.server.send(signal.SIGSTOP)
    # Until the lease is renewed again, which is in flight then.
    time.sleep(0.5)
    first.send(signal.SIGSTOP)
    scene.server.send(signal.SIGCONT)
    while "listening" not in second.log.read_text():
        time.sleep(0.1)
    first.send(signal.SIGCONT)
    assert first.started.wait(15) == 3
    assert first.log.read_text().splitlines()[-1] == "c4bench: another master leads now, so this one ends"


def test_a_certificate_permits_what_its_role_needs(scene):
    """An agent publishes only its own host's windows, and neither it nor a detector touches the master's state."""
    windows = (SUBJECTS.window("job0", "h0"), SUBJECTS.window("job0", "h1"))
    state = f"$KV.{SUBJECTS.state}.file.x"

    async def play():
        stored = {}
        for name in ("h0", "detector"):
            bus = scene.bus(name)
            async with opened(bus):
                for subject in (*windows, SUBJECTS.finding("job0"), state):
                    await bus.client.publish(subject, name.encode())
                with contextlib.suppress(Exception):
                    await bus.client.flush(2)
        kept = {Role.BUS_MASTER: (SUBJECTS.telemetry, SUBJECTS.findings), Role.BUS_LEADER: (f"KV_{SUBJECTS.state}",)}
        for role, streams in kept.items():
            async with opened(scene.bus(role)) as bus:
                for subject in (*windows, SUBJECTS.finding("job0"), state):
                    for stream in streams:
                        if (found := await bus.last(stream, subject)) is not None:
                            stored[subject] = found.body
        return stored

    assert asyncio.run(play()) == {windows[0]: b"h0", SUBJECTS.finding("job0"): b"detector"}
