"""A job of a week: no table of detector or master grows after the first hours, whatever the job opens and closes."""

import asyncio
from collections import deque
from itertools import chain

import msgspec
import numpy as np
import pytest
from night_cases import at_night

from c4bench.c4d.detector import Detector
from c4bench.c4d.observe.operations import OperationIntervals
from c4bench.c4p.tuning import WeightTuner
from c4bench.control.agents import AgentConnection, AgentConnections
from c4bench.control.detection.detection import LocalDetection
from c4bench.control.detection.windows import WindowParts
from c4bench.control.jobs.job import Job
from c4bench.control.jobs.rendezvous import RendezvousService
from c4bench.control.state.event_log import EventLog
from c4bench.control.state.store import (
    CommunicatorEnded,
    CommunicatorFailure,
    FinishedExchange,
    RankResult,
    RelayedMessage,
    Store,
)
from c4bench.model.event import AgentBack
from c4bench.model.recording import Evaluated
from c4bench.model.telemetry import ArrivalRecord, CommRecord, ConnRecord, Failure, Member, OpRecord, RankRecord
from c4bench.record.telemetry import Recording
from c4bench.wire.messages import Exchange, Exchanged, Fail, Hello, JobSpec, PollInbox, RelayMessage, Result, StartRanks
from c4bench.wire.peer import ABANDONED
from tools.sim.windows import window_of

HOSTS = ("h0", "h1")
WEEK_S = 7 * 24 * 3600.0
ROUND_S = 3600.0
ROUNDS = int(WEEK_S / ROUND_S)
# What may be added after the first days, as a share.
GROWTH = 0.05


def weight(root):
    """How much an object holds, in itself and in all that it refers to: entries of containers and bytes of arrays."""
    seen, left, total = set(), deque([root]), 0
    while left:
        one = left.popleft()
        if id(one) in seen or isinstance(one, type | str | bytes | int | float | None):
            continue
        seen.add(id(one))
        if isinstance(one, np.ndarray):
            total += one.size
            left.extend(one.tolist() if one.dtype == object else ())
        elif isinstance(one, dict):
            total += len(one)
            left.extend(chain(one.keys(), one.values()))
        elif isinstance(one, list | tuple | set | frozenset | deque):
            total += len(one)
            left.extend(one)
        elif isinstance(one, msgspec.Struct):
            left.extend(getattr(one, name) for name in one.__struct_fields__)
        left.append(getattr(one, "__dict__", None))
    return total


def comm(number, job="job"):
    return CommRecord(
        f"{job}.{number}", job, tuple(Member(at, host, (f"{host}/0",), at) for at, host in enumerate(HOSTS))
    )


def window(at, sequence, end_s, comms, port=0xC000):
    """What the rank on one of two hosts does in these communicators: two operations, and a message to the other."""
    here, there = HOSTS[at], HOSTS[1 - at]
    ops = tuple(
        OpRecord(one.comm, at, seq, "all_reduce", "ring", "float32", 64, entered_s, entered_s, entered_s + 1.0)
        for one in comms
        for seq, entered_s in enumerate((end_s - 4.0, end_s - 2.0))
    )
    conns = tuple(
        ConnRecord(
            one.comm, at, 1 - at, f"{here}/0", f"{there}/0", 0, port + index, 2, 128, 0.0, 0.0, 0.1, 0.1, end_s - 1.0,
            0, 0, posted=2, posted_sum_ns=10,
        )
        for index, one in enumerate(comms)
    )  # fmt: skip
    arrivals = tuple(ArrivalRecord(one.comm, at, 1 - at, f"{there}/0", f"{here}/0", 0, 2, 2, 20) for one in comms)
    ranks = tuple(RankRecord(job, at, here, 7, "running") for job in sorted({one.job for one in comms}))
    return window_of(here, sequence, end_s - ROUND_S, end_s, comms, ranks, ops, conns, arrivals)


def grown(step, holder, rounds=ROUNDS):
    """By which share the most that `holder` holds in the last four days is more than the most of the first three."""
    held = []
    for number in range(rounds):
        step(number)
        if number % (rounds // 42) == 0:
            held.append(weight(holder))
    early = held[: len(held) * 3 // 7]
    return max(held[len(early) :]) / max(early) - 1


def test_communicators_that_are_made_anew_leave_nothing():
    """Four new ones every hour for a week; the job is healthy, and the newest are known as ever."""
    detector, found = Detector(), []

    def step(number):
        now_s = ROUND_S * (number + 1)
        comms = [comm(4 * number + index) for index in range(4)]
        for at in range(len(HOSTS)):
            detector.ingest_window(window(at, number, now_s, comms))
        found.extend(detector.ingest(Evaluated(now_s + 0.05)))

    assert grown(step, detector) <= GROWTH
    assert found == []
    assert detector.dropped == 0
    view = detector._store.jobs["job"]
    assert len(view.conns) == 2 * len(view.comms)
    assert view.comms[f"job.{4 * ROUNDS - 1}"].latest(1).seq == 1


def test_paths_that_connections_have_left_leave_nothing(monkeypatch):
    """New connections by ever other source ports for a week: the costs of cells that are not used go, others stay."""
    monkeypatch.setattr("c4bench.c4d.act.slowness._CELLS_KEPT", 64)
    detector, found = Detector(), []

    def step(number):
        now_s = ROUND_S * (number + 1)
        comms = [comm(4 * number + index) for index in range(4)]
        for at in range(len(HOSTS)):
            detector.ingest_window(window(at, number, now_s, comms, 0xC000 + 4 * number))
        found.extend(detector.ingest(Evaluated(now_s + 0.05)))

    assert grown(step, detector) <= GROWTH
    assert found == []


def test_jobs_that_come_and_go_leave_nothing():
    """A new job every hour for a week, each with new communicators, on hosts that stay."""
    jobs, detection = {}, LocalDetection()
    parts, found = WindowParts(jobs), []

    def step(number):
        name, now_s = f"job~{number}", ROUND_S * (number + 1)
        jobs[name] = Job(JobSpec(name, "", tuple(Member(at, host, ()) for at, host in enumerate(HOSTS)), ()))
        jobs[name].recording = Recording(0)
        detection.follow(jobs[name], now_s - 60.0)
        for at in range(len(HOSTS)):
            own, foreign = parts.own(window(at, number, now_s, [comm(number, name)]))
            assert foreign == 0
            for attempt, part in parts.parts(own).items():
                detection.ingest(attempt, part)
        found.append(detection.evaluate(now_s + 0.05))
        assert detection.doubts(name) is not None
        detection.forget(name)
        del jobs[name]

    assert grown(step, (detection, parts)) <= GROWTH
    assert not any(found)


def test_a_communicator_that_is_kept_is_judged_as_before_beside_those_that_end():
    """Its operations and connections stay its own, though rows of others are used again."""
    detector = Detector()
    for number in range(120):
        now_s = ROUND_S * (number + 1)
        comms = [comm("kept"), *(comm(f"{number}.{index}") for index in range(4))]
        for at in range(len(HOSTS)):
            detector.ingest_window(window(at, number, now_s, comms))
        detector.ingest(Evaluated(now_s + 0.05))
    view = detector._store.jobs["job"]
    kept = [conn.record for conn in view.conns.values() if conn.record.comm == "job.kept"]
    assert {(conn.rank, conn.peer) for conn in kept} == {(0, 1), (1, 0)}
    assert {view.comms["job.kept"].latest(member).comm for member in (0, 1)} == {"job.kept"}
    assert view.mapping.host(1) == "h1"


@pytest.mark.parametrize("members", [8, *at_night(1)])
def test_operations_of_ever_other_sizes_leave_nothing(members):
    """Of operations that never come back nothing is kept for long, and of those that do the interval is known."""
    known = OperationIntervals()
    rows = np.arange(members)

    def since(number, size):
        kinds, sizes, unbroken = np.zeros(members, np.int64), np.full(members, size), np.zeros(members, np.int64)
        return known.since_s(rows, kinds, sizes, np.full(members, number), np.full(members, 10.0 * number), unbroken)

    assert grown(lambda number: since(number, 1000 + number), known, 4 * 1024) <= GROWTH
    since(5000, 8)
    assert since(5001, 8) == pytest.approx(np.full(members, 10.0))


def test_results_and_events_of_a_week_are_the_newest_ones(tmp_path, monkeypatch):
    """A master keeps the newest in memory, and says which number comes next."""
    monkeypatch.setattr("c4bench.control.jobs.job._RESULTS_KEPT", 100)
    monkeypatch.setattr("os.fsync", lambda _: None)
    store = Store(tmp_path)
    job, log = Job(JobSpec("job", "", (Member(0, "h0", ()),), ()), store), EventLog(store, kept=100)

    def report(number):
        job._keep(Result("job", 0, {"kind": "step", "step": number}, number + 1))
        log.publish(AgentBack(float(number), "h0", 0.0))

    assert grown(report, (job, log), 2_000) <= GROWTH
    assert [event.time_s for event in log.since(0)][-1] == 1_999.0
    progress = asyncio.run(job.progress(0, 0, 0.0))
    assert (progress.first, progress.reports[-1].number) == (2_000, 2_000)
    assert asyncio.run(job.progress(1_998, 0, 0.0)).reports == progress.reports[-2:]


def test_events_keep_their_numbers_over_the_end_of_a_file_and_a_restart(tmp_path, monkeypatch):
    """Whoever follows from a number on misses nothing that is kept, and is never told an event under another number."""
    monkeypatch.setattr("c4bench.control.state.store._EVENTS_AT_MOST_BYTES", 2_000)
    monkeypatch.setattr("os.fsync", lambda _: None)
    store = Store(tmp_path)
    log = EventLog(store)
    for number in range(200):
        log.publish(AgentBack(float(number), "h0", 0.0))
    store.close()
    assert sum(path.stat().st_size for path in tmp_path.glob("events*")) < 5_000
    again = EventLog(Store(tmp_path))
    assert again.count == 200
    assert 0 < again.oldest == again.events[0].time_s
    assert again.since(198) == log.events[198:]


def test_an_introduction_is_kept_without_the_jobs_that_it_names():
    """Every agent of a job names all its ranks: a thousand agents would leave a million of them."""
    connections = AgentConnections()
    job = JobSpec("job", "", tuple(Member(rank, "h0", ()) for rank in range(1000)), ())
    connections.add(AgentConnection(Hello("h0", "1", "", "", (StartRanks(job, (0,)),)), None))
    assert connections.newest_hello("h0") == Hello("h0", "1", "", "")
    assert weight(connections) < 1000


async def in_a_communicator(rendezvous, comm):
    """What two ranks ask of the master for a communicator until they close it."""
    ask = [rendezvous.exchange(Exchange("job", comm, "open", rank, 2, b"here", 10.0)) for rank in range(2)]
    await asyncio.gather(*ask)
    waits = [rendezvous.watch("job", comm) for _ in range(2)]
    waits += [rendezvous.poll(PollInbox("job", comm, rank, 0)) for rank in range(2)]
    waiting = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.sleep(0)
    rendezvous.relay(RelayMessage("job", comm, 0, 1, b"x" * 1000))
    assert (await waiting.pop()).bodies == (b"x" * 1000,)
    waiting.append(asyncio.ensure_future(rendezvous.poll(PollInbox("job", comm, 1, 1))))
    await asyncio.sleep(0)
    for call in waiting:
        call.cancel(ABANDONED)
    await asyncio.gather(*waiting, return_exceptions=True)


def test_communicators_that_are_closed_leave_nothing_with_the_master(monkeypatch):
    """Twice as many communicators as a job may have at a time come and go, and more messages than it may have."""
    monkeypatch.setattr("c4bench.control.jobs.rendezvous._COMMS_AT_MOST", 500)
    monkeypatch.setattr("c4bench.control.jobs.rendezvous._RELAYED_AT_MOST_BYTES", 500_000)
    monkeypatch.setattr("c4bench.control.jobs.rendezvous._ANSWERS_KEPT", 100)

    async def scene():
        rendezvous = RendezvousService()
        rendezvous.admit("job")
        held = []
        for number in range(1_000):
            await in_a_communicator(rendezvous, f"job.{number}")
            if number % 10 == 0:
                held.append(weight(rendezvous))
        return max(held[20:]) / max(held[:20]) - 1

    assert asyncio.run(scene()) <= GROWTH


def test_messages_are_kept_while_a_connection_is_lost():
    """A rank whose agent comes back finds the messages that it has not had yet, by their positions."""

    async def scene():
        rendezvous = RendezvousService()
        rendezvous.relay(RelayMessage("job", "job.0", 0, 1, b"first"))
        before = await rendezvous.poll(PollInbox("job", "job.0", 1, 0))
        lost = asyncio.ensure_future(rendezvous.poll(PollInbox("job", "job.0", 1, before.after)))
        await asyncio.sleep(0)
        lost.cancel()
        await asyncio.gather(lost, return_exceptions=True)
        rendezvous.relay(RelayMessage("job", "job.0", 0, 1, b"second"))
        return await rendezvous.poll(PollInbox("job", "job.0", 1, before.after))

    assert asyncio.run(scene()).bodies == (b"second",)


def test_a_failure_is_heard_by_those_that_watch_after_others_have_gone():
    """A communicator is forgotten only while it is well."""

    async def scene():
        rendezvous = RendezvousService()
        gone = asyncio.ensure_future(rendezvous.watch("job", "job.0"))
        await asyncio.sleep(0)
        gone.cancel(ABANDONED)
        await asyncio.gather(gone, return_exceptions=True)
        rendezvous.fail(Fail("job", "job.0", Failure(1, "why")))
        return await rendezvous.watch("job", "job.0")

    assert asyncio.run(scene()) == Failure(1, "why")


def test_what_is_saved_of_an_attempt_is_what_may_be_asked_for(tmp_path, monkeypatch):
    """Of many exchanges, results and ended communicators the newest are on disk; failures and open messages all are."""
    monkeypatch.setattr("c4bench.control.state.store._ENTRIES_AT_MOST_BYTES", 50_000)
    monkeypatch.setattr("c4bench.control.state.store._NEWEST_KEPT", {FinishedExchange: 10, RankResult: 10})
    monkeypatch.setattr("os.fsync", lambda _: None)
    store, sizes = Store(tmp_path), []
    failure = CommunicatorFailure(Fail("job", "job.0", Failure(1, "why")))
    open_message = RelayedMessage(RelayMessage("job", "open", 0, 1, b"kept"))
    for entry in (failure, open_message):
        store.append("job", entry)
    for number in range(300):
        comm = f"job.{number}"
        store.append("job", FinishedExchange(comm, "key", Exchanged((b"x" * 100,))))
        store.append("job", RelayedMessage(RelayMessage("job", comm, 0, 1, b"x" * 500)))
        store.append("job", CommunicatorEnded(comm))
        store.append("job", RankResult(Result("job", 0, {"kind": "step"}, number + 1)))
        sizes.append((tmp_path / "jobs/job.log").stat().st_size)
    entries = store.entries("job")
    assert max(sizes) < 60_000
    assert [entry for entry in entries if entry in (failure, open_message)] == [failure, open_message]
    assert [entry.result.number for entry in entries if isinstance(entry, RankResult)][-10:] == list(range(291, 301))


def test_messages_of_an_ended_communicator_are_not_found_by_the_next_master():
    """A master that continues knows the messages of open communicators only."""

    async def scene():
        rendezvous = RendezvousService()
        said = [RelayedMessage(RelayMessage("job", comm, 0, 1, b"said")) for comm in ("ended", "open")]
        rendezvous.admit("job", [*said, CommunicatorEnded("ended")])
        batch = await rendezvous.poll(PollInbox("job", "open", 1, 0))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(rendezvous.poll(PollInbox("job", "ended", 1, 0)), 0.05)
        return batch.bodies

    assert asyncio.run(scene()) == (b"said",)


def test_throughput_of_connections_that_are_gone_is_forgotten():
    """Weights are tuned by those that are reported: ever new connections leave nothing, and one that stays is known."""
    tuner = WeightTuner(1.0, 0.05)

    def conn(comm, number):
        at_s = 10.0 * number
        times_s = (0.0, 0.0, 0.01 * number, 0.0)
        return ConnRecord(comm, 0, 1, "h0/0", "h1/0", 0, 0, number, 1000 * number, *times_s, at_s, 0, 0)

    def step(number):
        at_s, conns = 10.0 * number, [conn(f"job.{number // 10}", number), conn("kept", number)]
        samples = tuner.ingest(window_of("h0", number, at_s - 10.0, at_s, conns=conns))
        assert number == 0 or samples.of(("kept", 0, 1, "h0/0", "h1/0"))
        for connection in samples.connections:
            if of_qps := samples.of(connection):
                tuner.correct(connection, (1.0,), of_qps, at_s)

    assert grown(step, tuner, 4_200) <= GROWTH
