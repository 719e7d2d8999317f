"""The master as a test holds it: blocking calls, while agents speak to it over the wire."""

import asyncio
import contextlib
import datetime
import gc
import socket
import threading
import time
from types import SimpleNamespace

import msgspec
import pytest

from c4bench.c4d.detector import Detector
from c4bench.control.cluster import C4D, Cluster, SteeredJob
from c4bench.deploy import authority
from c4bench.errors import C4Error, UnhealthyError, UsageError, report_bug
from c4bench.inject.protocol import Applied, WitnessReport
from c4bench.model.diagnosis import Component, Diagnosis, Syndrome
from c4bench.model.event import AgentMissing, Diagnosed, HostReturned, SteeringStage
from c4bench.model.fabric import Host, Nic
from c4bench.model.recording import Evaluated
from c4bench.model.steering import Action, Incident
from c4bench.model.step import StepOp
from c4bench.model.telemetry import Member, RankRecord
from c4bench.record.telemetry import Recording
from c4bench.wire.channel import master_channel
from c4bench.wire.messages import (
    Empty,
    Exchange,
    Exchanged,
    Hello,
    JobSpec,
    Meet,
    Meeting,
    Result,
    StartRanks,
    StopRanks,
)
from c4bench.wire.peer import Handler, Peer
from c4bench.wire.trust import client_context
from c4bench.wire.window_codec import WindowEncoder
from tools.sim.job import simulate
from tools.sim.model import SimJob
from tools.sim.windows import window_of

NAMES = ("h0", "h1")
HOSTS = tuple(Host(name, "", (Nic(name, 0, "r", "n", "", 1e10),)) for name in NAMES)
WITHIN_S = 20.0


class Agents:
    """Agents of two hosts that start no ranks: the test speaks for these. `started` and `stopped` are requests."""

    def __init__(self, trust, port):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._open, self._serving = contextlib.AsyncExitStack(), []
        self.started, self.stopped = [], []
        self._peers = {name: self.wait(self._connect(trust, port, name)) for name in NAMES}

    def wait(self, work):
        """Run a coroutine beside the test, and return its result."""
        return self.begin(work).result(WITHIN_S)

    def begin(self, work):
        """Run a coroutine beside the test."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _connect(self, trust, port, name):
        tls = client_context(trust / "ca.pem", trust / f"{name}.pem", trust / f"{name}.key")
        channel = await self._open.enter_async_context(master_channel(f"127.0.0.1:{port}", tls))

        async def start(request):
            self.started.append((name, request.job.id, request.ranks))
            return Empty()

        async def stop(request):
            self.stopped.append((name, request.job))
            return Empty()

        peer = Peer(channel, {"start": Handler(StartRanks, start), "stop": Handler(StopRanks, stop)})
        self._serving.append(self._loop.create_task(peer.serve()))
        await peer.call("hello", Hello(name, "1", "", ""), Empty)
        return peer

    def call(self, rank, method, body, answer=Empty):
        """A request of the rank on host `rank`, under way."""
        return self.begin(self._peers[NAMES[rank]].call(method, body, answer))

    def result(self, rank, number, **body):
        """A rank's result, received by the master."""
        self.call(rank, "result", Result("job", rank, body, number)).result(WITHIN_S)

    def window(self, rank, *records):
        """A window of the host's telemetry, followed by a call that is answered after it."""
        window = WindowEncoder().encode(window_of(NAMES[rank], 1, 0.0, 0.1, ranks=records))
        self.wait(self._peers[NAMES[rank]].note("window", window))
        self.result(rank, 0, kind="after")

    def close(self):
        """Hang up."""
        self.wait(self._open.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def wait_for(holds):
    until_s = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def spec(**rest):
    members = tuple(Member(rank, name, (f"{name}/0",)) for rank, name in enumerate(NAMES))
    return JobSpec("job", "pulse", members, tuple(host.nics[0] for host in HOSTS), **rest)


@contextlib.contextmanager
def running(tmp_path):
    """A cluster and agents of its two hosts."""
    authority.establish(tmp_path, NAMES, datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Cluster(HOSTS, tmp_path, "127.0.0.1", port) as cluster:
        agents = Agents(tmp_path, port)
        try:
            yield cluster, agents
        finally:
            cluster.stop("job")
            agents.close()


@pytest.fixture
def scene(tmp_path):
    """A cluster and agents of its two hosts."""
    with running(tmp_path) as made:
        yield made


def test_hosts_that_are_missing_are_named(scene):
    """Agents that have introduced themselves are returned by host; one that never comes is an error with its name."""
    cluster, _ = scene
    assert list(cluster.wait_hosts(NAMES, WITHIN_S)) == ["h0", "h1"]
    assert cluster.wait_hosts(["h1"], WITHIN_S)["h1"].version == "1"
    with pytest.raises(UnhealthyError, match=r"no agent answers on h8, h9 after 0.05 s"):
        cluster.wait_hosts(["h9", "h0", "h8"], 0.05)


def test_links_that_are_not_used_again_are_named(scene):
    """A link that C4P has closed for a moment is waited for; one that stays closed is an error with its address."""
    cluster, _ = scene
    cluster.wait_links(0.0)
    health = cluster.parts.paths.controller.health
    health.avoid(["10.0.0.1"], time.time() - health.hold_down.avoid_s + 0.5)
    cluster.wait_links(WITHIN_S)
    health.mark_lost(["10.0.0.2"], time.time())
    with pytest.raises(UnhealthyError, match=r"does not use links 10.0.0.2 after 0.05 s"):
        cluster.wait_links(0.05)


def test_a_job_is_started_on_its_hosts_and_stopped_there(scene):
    """Each host starts its own ranks; results come in rank order, `each` of every rank; every host is told to stop."""
    cluster, agents = scene
    job = cluster.start(spec())
    assert sorted(agents.started) == [("h0", "job", (0,)), ("h1", "job", (1,))]
    for number in (1, 2):
        for rank in (1, 0):
            agents.result(rank, number, kind="done", of=rank, turn=number)
    results = cluster.results(job, "done", WITHIN_S, each=2)
    assert [result["of"] for result in results] == [0, 0, 1, 1]
    assert [result["turn"] for result in cluster.results(job, "done", WITHIN_S)] == [1, 1]
    with pytest.raises(UnhealthyError, match=r"4 of 6 'done' results in 0.05 s"):
        cluster.results(job, "done", 0.05, each=3)
    assert cluster.job("job") is job
    assert cluster.placed("job") == {}
    cluster.stop("job")
    assert sorted(agents.stopped) == [("h0", "job"), ("h1", "job")]
    with pytest.raises(UsageError, match="no job 'job' is running"):
        cluster.job("job")


def test_the_test_joins_an_exchange_and_a_meeting(scene):
    """As one more rank of a job it gets and gives payloads; as a member of a meeting it waits for all the others."""
    cluster, agents = scene
    cluster.start(spec(meeting=Meeting("m", 3)))
    asked = [
        agents.call(rank, "exchange", Exchange("job", "", "k", rank, 3, b"%d" % rank, WITHIN_S), Exchanged)
        for rank in range(2)
    ]
    assert cluster.exchange("job", "k", 2, 3, b"test", WITHIN_S) == (b"0", b"1", b"test")
    assert [call.result(WITHIN_S).payloads for call in asked] == [(b"0", b"1", b"test")] * 2
    with pytest.raises(UnhealthyError, match=r"ranks \[0, 1\] did not come to 'late' of job in 0.05 s"):
        cluster.exchange("job", "late", 2, 3, b"", 0.05)
    waiting = [agents.call(rank, "meet", Meet("job", rank, "start")) for rank in range(2)]
    cluster.meet("m", "start")
    assert [call.result(WITHIN_S) for call in waiting] == [Empty(), Empty()]


def test_telemetry_of_a_running_job_is_kept(scene):
    """Windows come back as received, with the records of the job's own ranks, and by attempt."""
    cluster, agents = scene
    cluster.start(spec())
    agents.window(1, RankRecord("job", 1, "h1", 77, "running"))
    (window,) = cluster.windows("job")
    assert (window.host, [rank.pid for rank in window.ranks]) == ("h1", [77])
    assert list(cluster.recordings("job")) == ["job"]
    assert window in list(cluster.recordings("job")["job"])


def test_an_error_in_evaluating_a_job_ends_neither_the_master_nor_other_jobs(tmp_path, monkeypatch, caplog):
    """It is reported once, other jobs are evaluated on, and whoever closes the cluster is told."""
    evaluated, sound = [], Detector.ingest

    def ingest(detector, record):
        if isinstance(record, Evaluated):
            evaluated.append(detector)
            if detector is evaluated[0]:
                raise KeyError("c4")
        return sound(detector, record)

    def run_two():
        with running(tmp_path) as (cluster, agents):
            for name in ("job", "other"):
                cluster.start(msgspec.structs.replace(spec(), id=name))
                wait_for(lambda: evaluated)
            wait_for(lambda: sorted(map(evaluated.count, set(evaluated)))[1:] > [3])
            agents.window(1, RankRecord("other", 1, "h1", 77, "running"))
            assert len(cluster.windows("other")) == 1

    monkeypatch.setattr(Detector, "ingest", ingest)
    with pytest.raises(KeyError, match="c4"):
        run_two()
    assert caplog.text.count("job was not evaluated: KeyError") == 1
    assert len(set(evaluated)) == 2


def test_a_connection_that_ended_is_no_bug(tmp_path):
    """A task that failed as an agent has hung up, and whose exception nobody retrieved, does not fail the close."""

    async def abandon():
        async def ask():
            raise UnhealthyError("the connection closed before the answer")

        task = asyncio.get_running_loop().create_task(ask())
        await asyncio.sleep(0)
        del task
        gc.collect()

    with running(tmp_path) as (cluster, _):
        cluster._wait(abandon())
        cluster._call_soon(lambda: report_bug("asked", UnhealthyError("the connection closed before the answer")))


def diagnosis(attempt, component="h0/0", at_s=1.0):
    return Diagnosis(attempt, Syndrome.COMMUNICATION_SLOW, Component("nic", component), at_s, at_s, at_s, 0.9, (), "")


def publish(cluster, *events):
    """Publish events as the master's parts do."""
    for event in events:
        cluster._call_soon(lambda event=event: cluster._log.publish(event))


def test_diagnoses_are_those_of_one_job(scene):
    """Diagnoses of all attempts of a job count, those of others do not; to wait for the first ends with an error."""
    cluster, _ = scene
    cluster.start(spec())
    view = C4D(cluster, spec())
    with pytest.raises(UnhealthyError, match=r"C4D published no diagnosis of job for 0.05 s"):
        view.wait(0.05)
    publish(cluster, Diagnosed(1.0, diagnosis("other")), Diagnosed(2.0, diagnosis("job")))
    publish(cluster, Diagnosed(3.0, diagnosis("job~1", "h1/0")))
    assert view.wait(WITHIN_S) == diagnosis("job")
    assert [found.component.name for found in view.all()] == ["h0/0", "h1/0"]


def test_a_baseline_is_waited_for():
    """The wait ends when each connection has enough healthy history, and says how long it took."""
    recording = Recording()
    jobs = SimpleNamespace(by_attempt=lambda _: SimpleNamespace(recording=recording))
    view = C4D(SimpleNamespace(parts=SimpleNamespace(jobs=jobs)), spec())
    steps = StepOp("all_reduce", 1 << 20, 0.05), StepOp("all_to_all", 1 << 20, 0.0)
    simulated = iter(tuple(simulate(SimJob(4, steps, name="job"), (), 3.0)))

    def play():
        for tick in simulated:
            recording.extend((*tick.windows, Evaluated(tick.time_s)))
            time.sleep(0.03)

    playing = threading.Thread(target=play)
    playing.start()
    took_s = view.learn_baseline(0.1, at_most_s=10.0)
    assert next(simulated, None), "it ends before the job does"
    playing.join()
    assert 0.2 <= took_s < 3.0
    assert view.learn_baseline() == 0.0


def test_a_baseline_that_is_not_learnt_is_an_error(scene):
    """A job that carries nothing has nothing to learn: one line says so after the bound."""
    cluster, _ = scene
    cluster.start(spec())
    with pytest.raises(
        UnhealthyError, match=r"did not learn the baseline of job within 0.2 s: some of its connections"
    ):
        C4D(cluster, spec()).learn_baseline(at_most_s=0.2)


def fault(onset_s, bound_s=0.0, error_s=0.0):
    """A fault in force since then, or so much earlier, by a clock that may be so wrong."""
    return Applied(
        "f", "nic.rate", None, None, onset_s, bound_s, onset_s + 30.0, WitnessReport(True, None, {}, {}), error_s
    )


def test_a_diagnosis_is_about_the_last_fault(scene):
    """What was alarmed before a fault is not said of it, but within what is not known of its onset it may be."""
    cluster, _ = scene
    cluster.start(spec())
    view = C4D(cluster, spec())
    first, second = fault(1.0), fault(5.0, bound_s=0.5, error_s=0.25)
    view.expect(first)
    publish(cluster, Diagnosed(2.0, diagnosis("job", at_s=2.0)), Diagnosed(4.0, diagnosis("job", "h1/0", at_s=4.2)))
    view.expect(second)
    with pytest.raises(UnhealthyError, match="no diagnosis of job"):
        view.wait(0.05)
    publish(cluster, Diagnosed(5.0, diagnosis("job", "h1/0", at_s=4.3)))
    assert view.wait(WITHIN_S).alarmed_s == 4.3
    assert view.wait(WITHIN_S, since=first).alarmed_s == 2.0


def test_a_job_that_was_blamed_before_the_fault_proves_nothing(scene):
    """A diagnosis from before the first fault fails the scenario, also where the next one would be right."""
    cluster, _ = scene
    cluster.start(spec())
    view = C4D(cluster, spec())
    publish(cluster, Diagnosed(1.0, diagnosis("job", at_s=1.0)))
    view.check_calm()
    view.expect(fault(3.0))
    publish(cluster, Diagnosed(4.0, diagnosis("job", at_s=4.0)))
    for ask in (view.check_calm, lambda: view.wait(WITHIN_S)):
        with pytest.raises(C4Error, match=r"C4D named nic h0/0 in job 2 s before the fault: a false alarm"):
            ask()


def test_incidents_have_their_newest_state(scene):
    """Each incident of the job is there once, as published last; waits end with the one that has come that far."""
    cluster, _ = scene
    cluster.start(spec())
    view = SteeredJob(cluster, spec())
    first = Incident("job", diagnosis("job"), Action.RESTART, "")
    again = Incident("job", diagnosis("job", at_s=2.0), Action.RESTART, "", resumed_s=5.0)
    later = Incident("job", diagnosis("job~1", "h1/0"), Action.OBSERVE, "")
    other = Incident("other", diagnosis("other"), Action.RESTART, "", resumed_s=1.0)
    publish(cluster, *(SteeringStage(1.0, incident) for incident in (other, first)))
    with pytest.raises(UnhealthyError, match=r"job does not train again within 0.05 s; incidents: "):
        view.wait_resumed(0.05)
    publish(cluster, *(SteeringStage(1.0, incident) for incident in (again, later)))
    assert view.incidents() == [again, later]
    assert view.wait_resumed(WITHIN_S) == again
    assert view.wait_decided(WITHIN_S) == first
    assert view.wait_decided(WITHIN_S, after=first) == later
    with pytest.raises(UnhealthyError, match=r"job has had no such incident within 0.05 s"):
        view.wait_decided(0.05, after=later)


def test_events_of_hosts_count_from_the_jobs_start(scene):
    """Of a kind and a host the first event since the job was started is found, and no earlier one."""
    cluster, _ = scene
    missing = AgentMissing(1.0, "h0", 0.5, "none")
    publish(cluster, missing)
    view = SteeredJob(cluster, spec())
    assert view.wait_host_event(AgentMissing, "h0", 0.05) is None
    publish(
        cluster, AgentMissing(2.0, "h1", 0.5, "none"), HostReturned(3.0, "h0"), AgentMissing(4.0, "h0", 2.0, "none")
    )
    found = view.wait_host_event(AgentMissing, "h0", WITHIN_S)
    assert found.time_s == 4.0
    assert cluster.events()[0] == missing


def test_losses_are_by_step(scene):
    """Losses are reported in pieces that begin at a step; to wait for a step ends when it is there, or in an error."""
    cluster, agents = scene
    cluster.start(spec())
    view = SteeredJob(cluster, spec())
    agents.result(0, 1, kind="ready")
    agents.result(0, 2, kind="losses", first=10, losses=[(0.5).hex(), (0.25).hex()])
    agents.result(0, 3, kind="losses", first=12, losses=[(0.125).hex()])
    assert view.losses() == {10: 0.5, 11: 0.25, 12: 0.125}
    view.wait_step(12, 0.0)
    with pytest.raises(UnhealthyError, match=r"job did not come to step 13 within 0.05 s"):
        view.wait_step(13, 0.05)
    assert view.attempt.id == "job"
