"""The master as a user starts it, on this machine, with real agents and ranks that need no RDMA."""

import asyncio
import datetime
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from functools import partial

import msgspec
import pytest
from forged import CLIENT, forge
from local_master import Scene
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from c4bench.agent.agent import Agent
from c4bench.agent.spawner import start as start_spawner
from c4bench.cli.main import main
from c4bench.control.client import dial
from c4bench.control.detection.windows import WindowParts
from c4bench.control.jobs.job import Job
from c4bench.deploy import authority
from c4bench.errors import UnhealthyError
from c4bench.model.telemetry import ConnRecord, Failure, Member, RankRecord
from c4bench.wire.messages import (
    Empty,
    Exchange,
    Exchanged,
    Fail,
    Hello,
    JobSpec,
    LaunchJob,
    Meet,
    Meeting,
    QueryResults,
    RelayMessage,
    Result,
    Watch,
)
from c4bench.wire.rank import RankLink
from c4bench.wire.trust import Role
from c4bench.wire.window_codec import WindowEncoder
from tools.sim.windows import window_of

HOSTS = ("h0", "h1")
WITHIN_S = 30.0


@pytest.fixture(scope="module")
def trust(tmp_path_factory):
    """Certificates of one fabric, and of another with its own authority."""
    now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    places = [tmp_path_factory.mktemp(name) for name in ("ours", "theirs")]
    for place in places:
        authority.establish(place, [*HOSTS, "h9"], now)
    return places


@pytest.fixture(scope="module")
def scene(trust, tmp_path_factory):
    """A master on this machine."""
    made = Scene(trust[0], tmp_path_factory.mktemp("scene"))
    yield made
    made.stop()


@pytest.fixture
def mortal(trust, tmp_path):
    """A master for a test that kills it."""
    made = Scene(trust[0], tmp_path)
    yield made
    made.stop()


def hello(name):
    return Hello(name, "1", "", "no RDMA device")


def test_strangers_are_refused(scene, trust):
    """A certificate of another authority, no certificate, and another host's name are refused."""

    async def knock(tls):
        async with connect(f"wss://{scene.address}", ssl=tls, server_hostname=Role.MASTER) as line:
            await line.send(b"hello")
            await line.recv()

    bare = ssl.create_default_context(cafile=scene.trust / "ca.pem")
    for tls in (scene.tls("h0", trust[1]), bare):
        with pytest.raises((OSError, WebSocketException)):
            asyncio.run(knock(tls))

    async def pose():
        async with scene.agent("h0") as peer:
            await peer.call("hello", hello("h1"), Empty)

    with pytest.raises(UnhealthyError, match="the certificate says 'h0'"):
        asyncio.run(pose())
    assert not any(agent["connected"] for agent in scene.health()["agents"].values())


def test_a_refused_agent_is_logged_once(tmp_path):
    """An agent whose certificate states no role tries again and again: one warning says what to do about it."""
    authority.establish(tmp_path / "trust", [], datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1))
    forge(tmp_path / "trust", "old", [], [CLIENT])
    scene = Scene(tmp_path / "trust", tmp_path)

    async def knock():
        async with scene.agent("old"):
            pass

    for _ in range(3):
        with pytest.raises(UnhealthyError, match="the certificate of 'old' states no role"):
            asyncio.run(knock())
    lines = [line for line in scene.stop() if "refused" in line["message"]]
    assert [line["level"] for line in lines] == ["WARNING"]
    assert lines[0]["message"].startswith("127.0.0.1 refused: the certificate of 'old' states no role")
    assert "run c4bench prepare" in lines[0]["message"]


def test_an_observer_may_only_read(scene):
    """An observer cannot start jobs, and an operator cannot introduce itself as a host."""

    async def try_to_start():
        async with dial(scene.address, scene.trust, "observer") as master:
            await master.start(LaunchJob(JobSpec("j", "learning", (Member(0, "h0", ()),), ())))

    async def pose():
        async with scene.agent("operator") as peer:
            await peer.call("hello", hello("operator"), Empty)

    async def put_back():
        async with dial(scene.address, scene.trust, "operator") as master:
            await master.put_back("h0")

    with pytest.raises(UnhealthyError, match="no method 'launch'"):
        asyncio.run(try_to_start())
    with pytest.raises(UnhealthyError, match="no method 'hello'"):
        asyncio.run(pose())
    with pytest.raises(UnhealthyError, match="h0 is not out of service"):
        asyncio.run(put_back())
    with pytest.raises(urllib.error.HTTPError, match="404"):
        scene.page("/secrets")


def test_malformed_messages_and_foreign_windows_are_counted_by_host(scene):
    """Malformed messages and windows of other hosts are dropped and counted on the health page."""

    async def babble():
        async with scene.agent("h0") as peer:
            await peer.call("hello", hello("h0"), Empty)
            await peer.note("window", WindowEncoder().encode(window_of("h1", 1, 0.0, 1.0)))
            await peer.note("window", {"host": 7})
            await peer._channel.send(b"\xc1 noise")
            await peer.call("result", Result("nobody", 0, {}), Empty)

    asyncio.run(babble())
    deadline_s = time.monotonic() + 5
    while scene.health()["agents"]["h0"]["connected"] and time.monotonic() < deadline_s:
        time.sleep(0.05)
    seen = scene.health()["agents"]["h0"]
    assert (seen["dropped"], seen["refused"], seen["windows"]) == ({"foreign window": 1, "unreadable window": 1}, 1, 0)
    metrics = scene.page("/metrics")
    assert 'c4bench_dropped_total{host="h0",reason="foreign window"} 1.0' in metrics
    assert 'c4bench_refused_total{host="h0"} 1.0' in metrics


def test_an_agent_reports_its_own_ranks_only():
    """A window's records of other hosts' ranks and NICs are dropped, those of its own are kept, also of ended jobs."""
    members = tuple(Member(rank, host, ()) for rank, host in enumerate(HOSTS[:2]))
    jobs = {"j": Job(JobSpec("j", "none", members, ()))}

    def rank(number, job="j"):
        return RankRecord(job, number, "h0", 1, "exited", 0)

    def conn(source):
        return ConnRecord("c", 0, 1, source, "h2/0", 1, 49153, 1, 1, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0)

    ranks, conns = (rank(0), rank(1), rank(7, "ended")), (conn("h0/0"), conn("h1/0"))
    own, foreign = WindowParts(jobs).own(window_of("h0", 1, 0.0, 1.0, ranks=ranks, conns=conns))
    assert foreign == 2
    assert own.ranks == (rank(0), rank(7, "ended"))
    assert own.conns == (conn("h0/0"),)


def test_an_agent_speaks_for_its_own_ranks_only(scene):
    """Requests for jobs without ranks on its host, and results of other hosts' ranks, are refused; the line stays."""
    members = tuple(Member(rank, host, ()) for rank, host in enumerate(HOSTS))

    async def pose():
        refused = []
        async with scene.agent("h0") as own, scene.agent("h9") as stranger:
            await own.call("hello", hello("h0"), Empty)
            await stranger.call("hello", hello("h9"), Empty)
            async with scene.agent("h1") as other, dial(scene.address, scene.trust, "operator") as master:
                await other.call("hello", hello("h1"), Empty)
                await master.start(LaunchJob(JobSpec("posed", "none", members, ())))
            lie = RankRecord("posed", 1, "h0", 1, "killed")
            await own.note("window", WindowEncoder().encode(window_of("h0", 1, 0.0, 1.0, ranks=(lie,))))
            for peer, method, body in (
                (stranger, "fail", Fail("posed", "c", Failure(0, "a lie"))),
                (stranger, "watch", Watch("posed", "c")),
                (stranger, "exchange", Exchange("posed", "c", "k", 1, 2, b"x", WITHIN_S)),
                (stranger, "word", RelayMessage("posed", "c", 1, 0, b"x" * 1_000_000)),
                (own, "result", Result("posed", 1, {"kind": "done"}, 1)),
                (own, "watch", Watch("../../x", "c")),
                (stranger, "meet", Meet("posed", 1, "start")),
                (own, "meet", Meet("posed", 1, "start")),
                (own, "meet", Meet("posed", -1, "start")),
                (own, "meet", Meet("another", 0, "start")),
                (own, "exchange", Exchange("another", "", "k", 0, 2, b"x", WITHIN_S)),
            ):
                with pytest.raises(UnhealthyError, match=r"does not speak for these ranks|does not run"):
                    await peer.call(method, body, Empty)
                refused.append(method)
            await own.call("result", Result("posed", 0, {"kind": "done"}, 1), Empty)
        return refused

    assert len(asyncio.run(pose())) == 11
    assert scene.health()["agents"]["h0"]["dropped"]["foreign rank"] == 1


def test_jobs_meet_over_the_wire_and_a_rank_holds_one_moment(scene):
    """Ranks of two jobs meet through their agents; a rank that names more moments is refused, until it hangs up."""
    jobs = [JobSpec(f"meets-{host}", "none", (Member(0, host, ()),), (), meeting=Meeting("both", 2)) for host in HOSTS]

    async def meet():
        async with scene.agent("h0") as first, scene.agent("h1") as second:
            for name, peer in zip(HOSTS, (first, second), strict=True):
                await peer.call("hello", hello(name), Empty)
            async with dial(scene.address, scene.trust, "operator") as master:
                for spec in jobs:
                    await master.start(LaunchJob(spec))
            async with scene.agent("h0") as hostile:
                waiting = asyncio.create_task(hostile.call("meet", Meet(jobs[0].id, 0, "hold"), Empty))
                await asyncio.sleep(0.2)
                for number in range(50):
                    with pytest.raises(UnhealthyError, match="it can wait at one moment"):
                        await hostile.call("meet", Meet(jobs[0].id, 0, f"m{number}"), Empty)
                waiting.cancel()
            await asyncio.sleep(0.2)
            early = asyncio.create_task(first.call("meet", Meet(jobs[0].id, 0, "start"), Empty))
            await asyncio.sleep(0.2)
            assert not early.done()
            await second.call("meet", Meet(jobs[1].id, 0, "start"), Empty)
            await early
            async with dial(scene.address, scene.trust, "operator") as master:
                for spec in jobs:
                    await master.stop(spec.id)

    asyncio.run(asyncio.wait_for(meet(), WITHIN_S))


def test_status_and_job_list_say_how_things_stand(scene, capsys):
    """An observer sees which agents are connected and which jobs run, in lines or as JSON."""

    async def look():
        async with scene.agent("h0") as agent, dial(scene.address, scene.trust, "operator") as master:
            await agent.call("hello", hello("h0"), Empty)
            await master.start(LaunchJob(JobSpec("seen", "none", (Member(0, "h0", ()),), ())))
            for words in (["status"], ["job", "list"], ["job", "list", "--json"]):
                where = [f"--master={scene.address}", f"--trust={scene.trust}"]
                assert await asyncio.to_thread(main, [*words, *where]) == 0
            await master.stop("seen")

    asyncio.run(look())
    lines = capsys.readouterr().out.splitlines()
    seen = "  seen: 1 ranks, attempt seen, 0 restarts, 0 diagnoses"
    assert " agents connected" in lines[0]
    assert "nothing is named in these jobs" in lines
    assert lines.count(seen) == 2
    assert msgspec.json.decode(lines[-1])["seen"] == {"attempt": "seen", "ranks": 1, "restarts": 0}


def test_answers_outlive_the_master(mortal):
    """The next master knows completed exchanges, failures and results, so repeated requests are harmless."""
    members = tuple(Member(rank, host, ()) for rank, host in enumerate(HOSTS))
    spec = JobSpec("j", "none", members, ())

    def exchange(peer, rank):
        return peer.call("exchange", Exchange("j", "c", "k", rank, 2, b"%d" % rank, WITHIN_S), Exchanged)

    async def before():
        async with mortal.agent("h0") as first, mortal.agent("h1") as second:
            for name, peer in zip(HOSTS, (first, second), strict=True):
                await peer.call("hello", hello(name), Empty)
            async with dial(mortal.address, mortal.trust, "operator") as master:
                await master.start(LaunchJob(spec))
            answers = await asyncio.gather(exchange(first, 0), exchange(second, 1))
            await first.call("result", Result("j", 0, {"kind": "done"}, 1), Empty)
            await first.call("fail", Fail("j", "other", Failure(0, "why")), Empty)
        return answers

    async def after():
        async with (
            mortal.agent("h0") as first,
            mortal.agent("h1") as peer,
            dial(mortal.address, mortal.trust, "operator") as master,
        ):
            await first.call("result", Result("j", 0, {"kind": "done"}, 1), Empty)
            await peer.call("result", Result("j", 1, {"kind": "done"}, 1), Empty)
            results = await master.ask(QueryResults("j", "done", 5.0))
            failure = await peer.call("watch", Watch("j", "other"), Failure)
            return await exchange(peer, 1), results, failure

    answers = asyncio.run(before())
    mortal.kill()
    mortal.start()
    again, results, failure = asyncio.run(after())
    assert answers == [again, again]
    assert again.payloads == (b"0", b"1")
    assert len(results) == 2
    assert failure == Failure(0, "why")


def rank_main(config, go, job, rank):
    """A rank that meets the others twice, the second time on request, and reports the payloads."""
    link = RankLink(config.socket)

    def meet(key):
        request = Exchange(job.id, "c", key, rank, len(HOSTS), f"{key}{rank}".encode(), WITHIN_S)
        return link.call(request).payloads

    met = [meet("a")]
    link.call(Result(job.id, rank, {"kind": "met"}, 1))
    while rank == 1 and not go.exists():
        time.sleep(0.02)
    met.append(meet("b"))
    link.call(Result(job.id, rank, {"kind": "done", "met": msgspec.to_builtins(met)}, 2))
    time.sleep(WITHIN_S)
    return 0


def test_ranks_wait_for_a_master_that_was_killed(mortal):
    """A rank whose exchange was pending when the master was killed gets its answer from the next master."""
    go = mortal.folder / "go"
    configs = [mortal.config(name) for name in HOSTS]
    spawners = [start_spawner(lambda config=config: partial(rank_main, config, go)) for config in configs]
    agents = [
        Agent(config, mortal.tls(config.name), spawner) for config, spawner in zip(configs, spawners, strict=True)
    ]

    async def play():
        async with asyncio.TaskGroup() as tasks:
            serving = [tasks.create_task(agent.run()) for agent in agents]
            await asyncio.to_thread(wait_for, lambda: connected(mortal) == 2)
            async with dial(mortal.address, mortal.trust, "operator") as master:
                members = tuple(Member(rank, host, ()) for rank, host in enumerate(HOSTS))
                await master.start(LaunchJob(JobSpec("j", "none", members, ())))
                await master.ask(QueryResults("j", "met", WITHIN_S))
            await asyncio.to_thread(mortal.kill)
            go.touch()
            await asyncio.sleep(0.7)
            await asyncio.to_thread(mortal.start)
            async with dial(mortal.address, mortal.trust, "operator") as master:
                results = await master.ask(QueryResults("j", "done", WITHIN_S))
                await master.stop("j")
            for task in serving:
                task.cancel()
        return results

    try:
        results = asyncio.run(asyncio.wait_for(play(), 60))
    finally:
        for spawner in spawners:
            spawner.close()
    assert results[0]["met"] == results[1]["met"]
    assert mortal.health()["jobs"] == {}


def connected(scene):
    return sum(agent["connected"] for agent in scene.health()["agents"].values())


def wait_for(holds):
    deadline_s = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_two_masters_do_not_share_a_state_folder(scene):
    """A second master with the same folder is refused in one line, and the first continues."""
    words = ["master", f"--trust={scene.trust}", "--listen=127.0.0.1:0", f"--state={scene.folder / 'state'}"]
    done = subprocess.run(
        [sys.executable, "-m", "c4bench.cli.main", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "another master uses" in done.stderr
    assert connected(scene) == 0
