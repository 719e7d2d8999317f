"""What the records of attached processes stand for, and which paths their queue pairs get."""

import asyncio
from types import SimpleNamespace

import msgspec
import path_scene
import pytest

from c4bench.control.agents import AgentConnections
from c4bench.control.jobs import attached_names
from c4bench.control.jobs.attached import AttachedJobs
from c4bench.control.jobs.job import Job
from c4bench.control.paths.learning import PlannedFabric
from c4bench.errors import UnhealthyError
from c4bench.model.fabric import ASK_QPS, DEST_QP, Nic
from c4bench.model.telemetry import CommRecord, Member
from c4bench.model.window import Caller, EndName, HostNames, Window
from c4bench.wire.messages import Attached, AttachedMoves, AttachedPath, AttachedRank, Guidance

NICS = {host: Nic(host, 0, "r", "n", f"10.{at}.0.1", 1e10) for at, host in enumerate(("h0", "h1", "h2"))}

OWN = (CommRecord("j/verbs", "j", ()),)


class Planner:
    """Answers with a port after a while; notes which flows were placed and released."""

    def __init__(self, after_s=0.0):
        self.after_s, self.placed, self.released = after_s, [], []

    def nic(self, name):
        return next((nic for nic in NICS.values() if nic.name == name), None)

    def nic_at(self, address):
        return next((nic for nic in NICS.values() if nic.address == address), None)

    async def route(self, request):
        await asyncio.sleep(self.after_s)
        self.placed += [(flow.job, flow.source, flow.destination, flow.demand_bps) for flow in request.flows]
        return (50_005,)

    async def release(self, request):
        self.released += request.flows

    async def follow(self, request):
        self.followed = request
        return Guidance({flow.id: port + 1 for flow, port in zip(request.flows, request.ports, strict=True)})


class Scene:
    """The jobs of three hosts' agents, with one process of job `j` on each."""

    def __init__(self, planner=None):
        self.jobs, self.running = {}, {}
        self.agents = AgentConnections()
        self.agents.by_host.update(dict.fromkeys(NICS))
        registry = SimpleNamespace(jobs=lambda: self.running, follow=self._follow, remove=self.running.pop)
        attempts = SimpleNamespace(admit=self._admit, end=self._end)
        self.planner = planner or Planner()
        self.attached = AttachedJobs(self.jobs, registry, attempts, self.agents, self.planner)

    def _follow(self, spec):
        self.running[spec.id] = SimpleNamespace(spec=spec, attached=True)

    def _admit(self, spec, *, followed):
        assert followed
        return self.jobs.setdefault(spec.id, Job(spec))

    async def _end(self, attempt):
        del self.jobs[attempt]

    def report(self, host, *processes, nics=None):
        return asyncio.run(self.attached.report(host, Attached(nics or (NICS[host],), processes)))


@pytest.fixture
def scene(monkeypatch):
    monkeypatch.setattr(attached_names, "_SETTLED_S", 0.0)
    made = Scene()
    for rank, host in enumerate(NICS):
        made.report(host, AttachedRank(100 + rank, "j", rank))
    return made


def window(host, sends=(), receives=(), comms=OWN, rank=0):
    callers = tuple(Caller(record.comm, rank) for record in comms)
    return Window(host, 1, 0.0, 0.1, HostNames(comms, callers, sends, receives))


def end(source, destination, rank, qp=17):
    return EndName("j/verbs", rank, -1, NICS[source].address, NICS[destination].address, qp)


def test_both_ends_of_a_connection_name_each_other(scene):
    """An end has the peer that recorded the other end; one without is left out, and so is one of another host's NIC."""
    near = window("h0", sends=(end("h0", "h1", 0), end("h0", "h2", 0), end("h1", "h2", 0, qp=5)))
    far = window("h1", receives=(end("h0", "h1", 1),), rank=1)
    beside = window("h2", receives=(end("h1", "h2", 2, qp=5),), rank=2)
    for one in (near, beside, far, near, far):
        names = scene.attached.translate(one).names
        if one is near:
            sends, comm = names.sends, names.comms[0]
    assert sends == (EndName(comm.comm, 0, 1, "h0/0", "h1/0", 17), None, None)
    assert comm.members == (Member(0, "h0", ("h0/0",), 0), Member(1, "h1", ("h1/0",), 1))
    assert names.receives == (EndName(comm.comm, 1, 0, "h0/0", "h1/0", 17),)


def test_a_host_speaks_for_itself_only(scene):
    """NICs in another host's name, and addresses that another host has, are not taken from it."""
    stolen = Nic("h0", 1, "r", "n", NICS["h1"].address, 1e10)
    scene.report("h0", AttachedRank(100, "j", 0), nics=(NICS["h2"], stolen))
    assert {nic.name for nic in scene.jobs["j"].spec.nics} == {"h1/0", "h2/0"}
    windows = window("h0", receives=(end("h0", "h1", 0),)), window("h1", receives=(end("h0", "h1", 0),), rank=0)
    assert [scene.attached.translate(one).names.receives for one in windows] == [(None,), (None,)]


def test_ranks_are_given_once_and_kept(scene):
    """A process without a rank gets the lowest free one and keeps it; one that has ended leaves its rank to others."""
    said = scene.report("h0", AttachedRank(100, "j", 0), AttachedRank(200, "j"), AttachedRank(201, "j", 1))
    assert said.ranks == {100: 0, 200: 3}
    assert said.refused == {201: "j has a rank 1 on h1 already"}
    again = scene.report("h0", AttachedRank(201, "j", 1), AttachedRank(200, "j"), AttachedRank(100, "j", 0, ended=True))
    assert (again.ranks, again.refused.keys()) == ({200: 3, 100: 0}, {201})
    assert scene.report("h1", AttachedRank(300, "j", 0)).ranks == {300: 0}
    assert [(member.rank, member.host) for member in scene.jobs["j"].spec.members] == [(0, "h1"), (2, "h2"), (3, "h0")]


@pytest.mark.parametrize("name", ["", "a/b", "check~x", "j~2", "x" * 200])
def test_what_can_be_no_job_is_refused(scene, name):
    """Names that files cannot have, and those of the master's own jobs and attempts."""
    assert scene.report("h0", AttachedRank(100, name, 0)).ranks == {}


def ask(planner, qps):
    """The ports that a process of h0 gets for queue pairs to h1, one after the other."""
    scene = Scene(planner)

    async def play():
        for rank, host in enumerate(NICS):
            await scene.attached.report(host, Attached((NICS[host],), (AttachedRank(100 + rank, "j", rank),)))
        paths = [AttachedPath(100, NICS["h0"].address, NICS["h1"].address, qp) for qp in range(qps)]
        ports = [await scene.attached.route("h0", path) for path in paths]
        elsewhere = [AttachedPath(100, NICS["h1"].address, NICS["h0"].address, 1), AttachedPath(9, "", "", 1)]
        ports += [await scene.attached.route("h0", path) for path in elsewhere]
        return ports

    return asyncio.run(play())


def test_a_queue_pair_gets_a_planned_port():
    """The flow is of the process's own NIC; a stranger's NIC or process gets none."""
    planner = Planner()
    assert ask(planner, 1) == [50_005, 0, 0]
    assert planner.placed == [("j", "h0/0", "h1/0", 1e10)]
    assert planner.released == []


class PlannerByQp(Planner):
    """One whose switches hash the queue pair that packets are for."""

    async def route(self, request):
        ports = await super().route(request)
        return ports if request.qps == (77,) else (ASK_QPS,)


def test_a_planner_by_queue_pairs_is_told_that_at_the_far_end():
    """Without its number the agent is asked for it, and nothing is planned; with it the port is that of the pair."""
    path = AttachedPath(100, NICS["h0"].address, NICS["h1"].address, 1)
    scene = Scene(PlannerByQp())

    async def play():
        await scene.attached.report("h0", Attached((NICS["h0"],), (AttachedRank(100, "j", 0),)))
        return [await scene.attached.route("h0", one) for one in (path, msgspec.structs.replace(path, remote_qp=77))]

    assert asyncio.run(play()) == [ASK_QPS, 50_005]


def test_c4p_finds_the_port_of_a_programs_queue_pair():
    """With C4P itself, by the agents' probes: the port that it plans the flow by, once the far end's number is said.

    A queue pair that has gone its own way meanwhile is moved there.
    """
    fabric = path_scene.Scene()
    fabric.paths.plan(PlannedFabric(path_scene.HOSTS, path_scene.PORTS, hash=DEST_QP))
    scene = Scene(fabric.paths)
    source, destination = (path_scene.HOSTS[number].nics[0] for number in (0, 2))
    path = AttachedPath(100, source.address, destination.address, 1)

    async def play():
        await scene.attached.report("h0", Attached((source,), (AttachedRank(100, "j", 0),)))
        asked = [await scene.attached.route("h0", one) for one in (path, msgspec.structs.replace(path, remote_qp=77))]
        moves = await scene.attached.moves("h0", AttachedMoves((path,), (0,)))
        return asked, [fabric.paths._port(live.flow.id) for live in fabric.paths.controller.live_flows], moves

    (first, second), planned, moves = path_scene.run(play())
    assert (first, planned, moves) == (ASK_QPS, [second], {0: second})
    assert second in path_scene.PORTS


def test_a_plan_that_a_process_does_not_live_to_see_is_given_back():
    """It has ended while its path was looked for."""
    planner = Planner(0.05)
    scene = Scene(planner)
    path = AttachedPath(100, NICS["h0"].address, NICS["h1"].address, 1)

    async def play():
        await scene.attached.report("h0", Attached((NICS["h0"],), (AttachedRank(100, "j", 0),)))
        routing = asyncio.create_task(scene.attached.route("h0", path))
        await asyncio.sleep(0)
        await scene.attached.report("h0", Attached((NICS["h0"],), (AttachedRank(100, "j", 0, ended=True),)))
        return await routing

    assert asyncio.run(play()) == 0
    assert len(planner.released) == len(planner.placed) == 1


def test_a_plan_that_fails_is_none():
    """An error of the planner is the agent's to report; it goes to nobody else."""

    class Broken(Planner):
        async def route(self, _request):
            raise UnhealthyError("no paths")

    with pytest.raises(UnhealthyError, match="no paths"):
        ask(Broken(), 1)


def test_queue_pairs_get_other_ports_by_their_places(scene):
    """Of a host's own processes; one that cannot move is named to the planner, and one that is gone is released."""
    here, there = NICS["h0"].address, NICS["h1"].address
    paths = AttachedPath(100, here, there, 1), AttachedPath(9, here, there, 2), AttachedPath(100, here, there, 3)
    gone = AttachedPath(100, here, there, 4)
    wanted = asyncio.run(scene.attached.moves("h0", AttachedMoves(paths, (5, 6, 7), (2,), (gone,))))
    assert wanted == {0: 6, 2: 8}
    followed = scene.planner.followed
    first, third = (flow.id for flow in followed.flows)
    assert (followed.ports, followed.weights, list(followed.refused)) == ((5, 7), (1.0, 1.0), [third])
    assert first.endswith("/1.0")
    assert [flow.rpartition("/")[2] for flow in scene.planner.released] == ["4.0"]


def test_queue_pairs_of_nobody_are_not_followed(scene):
    """A host that asks for those of another one, or names fewer ports than queue pairs, or none, is refused."""
    foreign = AttachedPath(101, NICS["h1"].address, NICS["h0"].address, 1)
    own = AttachedPath(100, NICS["h0"].address, NICS["h1"].address, 1)
    for asked in (AttachedMoves((foreign,), (5,)), AttachedMoves((own,), ()), AttachedMoves((own,), (1 << 16,))):
        with pytest.raises(UnhealthyError):
            asyncio.run(scene.attached.moves("h0", asked))


@pytest.mark.parametrize("restarted", [False, True])
def test_paths_of_a_process_that_has_ended_are_given_back(restarted):
    """Once, when its host reports its end; what others have stays. A master that has restarted knows them too."""
    scene = Scene()

    async def play():
        await scene.attached.report(
            "h0", Attached((NICS["h0"],), (AttachedRank(100, "j", 0), AttachedRank(101, "j", 1)))
        )
        await scene.attached.report("h1", Attached((NICS["h1"],), (AttachedRank(102, "j", 2),)))
        for pid in (100, 101):
            path = AttachedPath(pid, NICS["h0"].address, NICS["h1"].address, pid)
            if restarted:
                await scene.attached.moves("h0", AttachedMoves((path,), (50_005,)))
            else:
                await scene.attached.route("h0", path)
        for ended in ((AttachedRank(100, "j", 0, ended=True), AttachedRank(101, "j", 1)), (AttachedRank(101, "j", 1),)):
            await scene.attached.report("h0", Attached((NICS["h0"],), ended))

    asyncio.run(play())
    assert [flow.rpartition("/")[2] for flow in scene.planner.released] == ["100.0"]
