"""Processes that nobody of us has started, on two hosts, with their agents and a master: all real but the device."""

import asyncio
import datetime
import json
import shutil
import socket
import threading
import time
from pathlib import Path

import pytest
from foreign import foreign

from c4bench.agent.agent import Agent
from c4bench.control.cluster import Cluster
from c4bench.deploy import authority
from c4bench.errors import UsageError
from c4bench.model.agent import AgentConfig
from c4bench.model.fabric import Host, Nic
from c4bench.wire.messages import JobSpec, LaunchJob
from c4bench.wire.trust import client_context

HOSTS = tuple(
    Host(name, "", (Nic(name, 0, "none", "lo", f"10.{at}.0.1", 1e10),)) for at, name in enumerate(("h0", "h1"))
)
ADDRESSES = ("10.0.0.1", "10.1.0.1")
WITHIN_S = 20.0


def wait_for(holds):
    until_s = time.monotonic() + WITHIN_S
    while not (found := holds()):
        assert time.monotonic() < until_s
        time.sleep(0.02)
    return found


class Scene:
    """A master, and the agents of two hosts."""

    def __init__(self, trust, folder, cluster, port):
        self.cluster, self._trust, self._folder, self._port = cluster, trust, folder, port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._agents, self._serving, self._sockets = {}, {}, []
        self.configs = [self._config(host) for host in HOSTS]
        for at in range(len(HOSTS)):
            self.start(at)

    def _config(self, host):
        home = self._folder / host.name
        home.mkdir()
        for target, source in (("ca.pem", "ca.pem"), ("cert.pem", f"{host.name}.pem"), ("key.pem", f"{host.name}.key")):
            shutil.copy(self._trust / source, home / target)
        places = {"state": str(home), "rings": str(home / "rings"), "attach_records": str(home / "records")}
        return AgentConfig(host.name, "127.0.0.1", str(home), host.nics, self._port, **places)

    def start(self, at):
        """Start the agent of a host."""
        config, (ours, theirs) = self.configs[at], socket.socketpair()
        self._sockets += [ours, theirs]
        tls = client_context(*(f"{config.trust}/{name}.pem" for name in ("ca", "cert", "key")))
        self._agents[at] = agent = Agent(config, tls, ours)
        self._serving[at] = asyncio.run_coroutine_threadsafe(agent.run(), self._loop)
        wait_for(lambda: Path(config.attach_socket).exists())
        self.cluster.wait_hosts([config.name], WITHIN_S)

    def stop(self, at):
        """End the agent of a host."""
        self._serving[at].cancel()
        wait_for(lambda: self.configs[at].name not in self.cluster.parts.agents.by_host)

    def close(self):
        for at in self._serving:
            self.stop(at)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for end in self._sockets:
            end.close()

    def rank(self, at, rank, job="ring", **variables):
        """A process of a job on a host, with a queue pair to the other host."""
        variables |= {"C4BENCH_JOB": job, "C4BENCH_RANK": rank}
        return foreign(self.configs[at], ADDRESSES[at], ADDRESSES[1 - at], **variables)

    @property
    def refused(self):
        """Why processes are not followed, by PID."""
        return {pid: why for agent in self._agents.values() for pid, why in agent._ranks.attached._refused.items()}

    def words(self, at):
        """The ends that libraries of a host have named."""
        return self._agents[at]._words._ends

    def job(self, name="ring"):
        return self.cluster.parts.registry.jobs().get(name)

    def states(self, name="ring"):
        """State and exit code of each rank, as the newest windows have them."""
        found = {}
        for window in self.cluster.windows(name) if name in self.cluster.parts.telemetry._jobs else ():
            found |= {one.rank: (one.state, one.exit_code) for one in window.ranks if one.job == name}
        return found


@pytest.fixture(scope="module")
def trust(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trust")
    authority.establish(folder, ("h0", "h1"), datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1))
    return folder


@pytest.fixture
def scene(trust, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Cluster(HOSTS, trust, "127.0.0.1", port) as cluster:
        made = Scene(trust, tmp_path, cluster, port)
        try:
            yield made
        finally:
            made.close()


def test_a_job_is_followed_from_its_first_process_to_its_last(scene):
    """Its connections have the names of NICs and ranks, it is only observed, and it ends with its processes."""
    with scene.rank(0, 0) as one, scene.rank(1, 1) as other:
        assert [one.ask("connect"), other.ask("connect")] == [{}, {}]
        wait_for(lambda: scene.job() and len(scene.job().spec.members) == 2)
        assert (scene.job().policy.hang, scene.job().policy.slow) == ("observe", "observe")
        for process in (one, other):
            process.ask("work", 7)
        conns = wait_for(lambda: [conn for window in scene.cluster.windows("ring") for conn in window.conns])
        ends = {(conn.source, conn.destination, conn.rank, conn.peer, conn.qp) for conn in conns}
        wait_for(lambda: {c.source for w in scene.cluster.windows("ring")[-9:] for c in w.conns} == {"h0/0", "h1/0"})
        ends |= {
            (c.source, c.destination, c.rank, c.peer, c.qp) for w in scene.cluster.windows("ring") for c in w.conns
        }
        assert ends == {("h0/0", "h1/0", 0, 1, 17), ("h1/0", "h0/0", 1, 0, 17)}
        wait_for(lambda: scene.cluster.windows("ring")[-1].conns[0].messages == 7)
        comm = scene.cluster.windows("ring")[-1].comms[0]
        assert [(m.rank, m.host, m.nics, m.seat) for m in comm.members] == [
            (0, "h0", ("h0/0",), 0),
            (1, "h1", ("h1/0",), 1),
        ]
        assert scene.cluster.parts.health.read().jobs["ring"].ranks == 2
        with pytest.raises(UsageError, match="was not started by c4bench"):
            scene.cluster.parts.jobs.check_running("ring")
        one.end("0")
        wait_for(lambda: scene.states().get(0) == ("exited", 0))
        other.end("0")
    wait_for(lambda: scene.job() is None)
    assert not scene.cluster.diagnoses("ring")


def test_a_killed_process_is_reported_with_its_signal_and_its_files_go(scene):
    """The kernel says how a process ended; one that has failed is found by C4D, and its job goes on without it."""
    with scene.rank(0, 0) as one, scene.rank(1, 1) as other:
        one.ask("connect"), other.ask("connect")
        wait_for(lambda: scene.states().keys() == {0, 1})
        other.end()
        wait_for(lambda: scene.states()[1] == ("killed", -9))
        found = scene.cluster.wait_diagnosis("ring", WITHIN_S)
        assert (found.component.name, found.cause) == ("ring:1", "process_ended")
        wait_for(lambda: not any((scene._folder / "h1" / "records").iterdir()))
        assert one.process.poll() is None


def test_a_job_that_dies_at_once_is_judged_before_it_is_forgotten(scene):
    """A program that ends because its peer was killed does not hide who was."""
    with scene.rank(0, 0) as one, scene.rank(1, 1) as other:
        one.ask("connect"), other.ask("connect")
        wait_for(lambda: scene.states().keys() == {0, 1})
        other.end()
        one.end("3")
        found = scene.cluster.wait_diagnosis("ring", WITHIN_S)
        assert (found.component.name, found.cause) == ("ring:1", "process_ended")
    wait_for(lambda: scene.job() is None)


def test_names_and_ranks_that_are_taken_are_refused(scene):
    """A rank has one process at a time, and no job the name of one that c4bench has started; the programs run on."""
    started = LaunchJob(JobSpec("mine", "pulse", (), ()))
    scene.cluster._call_soon(lambda: scene.cluster.parts.registry.add(started))
    with scene.rank(0, 0) as first, scene.rank(1, 0) as second, scene.rank(1, 0, job="mine") as third:
        first.ask("connect")
        wait_for(scene.job)
        second.ask("connect"), third.ask("connect")
        wait_for(lambda: len(scene.refused) == 2)
        assert scene.refused == {
            second.pid: "ring has a rank 0 on h0 already",
            third.pid: "a job 'mine' runs that c4bench has started; set another C4BENCH_JOB",
        }
        assert [member.host for member in scene.job().spec.members] == ["h0"]
        assert scene.job("mine").spec == started.job
        first.end("0")
        wait_for(lambda: scene.job() is None)
        assert [second.process.poll(), third.process.poll()] == [None, None]


def test_an_agent_that_restarts_finds_processes_that_connect_again(scene):
    """The job goes on under its name while an agent restarts."""
    with scene.rank(0, 0) as one, scene.rank(1, 1) as other:
        one.ask("connect"), other.ask("connect")
        wait_for(lambda: scene.states().keys() == {0, 1})
        scene.stop(1)
        scene.start(1)
        assert other.ask("connect") == {}
        before = len(scene.cluster.windows("ring"))
        wait_for(lambda: any(w.host == "h1" and w.ranks for w in scene.cluster.windows("ring")[before:]))
        assert scene.job().spec.id == "ring"


def test_a_program_without_a_job_is_sent_away(scene):
    """A process of which nobody says what job it is of gets the reason in its answer."""
    with scene.rank(0, "", job="") as alone:
        assert "set C4BENCH_JOB" in alone.ask("connect")["error"]


def test_a_job_of_which_not_all_ranks_are_followed(scene):
    """What is done about a rank is done to its own host; its queue pair goes its own way where no paths are planned."""
    with scene.rank(0, 1) as one:
        one.ask("connect")
        wait_for(scene.job)
        assert scene.cluster.parts.registry.hosts_of("ring") == ("", "h0")
        assert one.ask("path") == {"label": 0, "timeout": -1, "retries": -1}


def test_libraries_at_both_ends_of_a_connection_speak_to_each_other(scene):
    """By their agents and the master; who has no such end is absent, and nobody speaks for another's."""
    word = {"source": ADDRESSES[0], "qp": 17, "destination": ADDRESSES[1], "remote_qp": 18, "word": "hello 1"}
    with scene.rank(0, 0) as one, scene.rank(1, 1) as other, speaker(scene, 0) as near, speaker(scene, 1) as far:
        assert [one.ask("connect"), other.ask("connect")] == [{}, {}]
        wait_for(lambda: scene.job() and len(scene.job().spec.members) == 2)
        time.sleep(1.1)  # an agent that has just begun does not say who is absent
        near.send({"have": ADDRESSES[0], "qp": 17}, word)
        absent = {"source": ADDRESSES[1], "qp": 18, "destination": ADDRESSES[0], "remote_qp": 17, "word": "absent"}
        assert near.line() == absent
        far.send({"have": ADDRESSES[1], "qp": 18})
        wait_for(lambda: (ADDRESSES[1], 18) in scene.words(1))
        near.send(word)
        assert far.line() == word
        back = {"source": ADDRESSES[1], "destination": ADDRESSES[0], "remote_qp": 17}
        far.send(word | back, word | back | {"qp": 18, "word": "of its own"})
        assert near.line()["word"] == "of its own"
        near.send({"have": "10.9.9.9", "qp": 17})
        assert "no address of this host" in near.line()["error"]


class Speaker:
    """A library's connection to its agent, about its ends."""

    def __init__(self, path):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._lines = self._socket.makefile("r")

    def __enter__(self):
        self.send({"failover": 1})
        assert self.line() == {"twins": ""}  # hosts with one NIC
        return self

    def __exit__(self, *_):
        self._lines.close()
        self._socket.close()

    def send(self, *lines):
        self._socket.sendall("".join(json.dumps(line) + "\n" for line in lines).encode())

    def line(self):
        self._socket.settimeout(WITHIN_S)
        return json.loads(self._lines.readline())


def speaker(scene, at):
    return Speaker(scene.configs[at].attach_socket)
