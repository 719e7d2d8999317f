"""C4P's part of the master, with agents that only answer probes."""

import asyncio
from collections import Counter

import pytest

from c4bench.c4p.policy import PathPolicy
from c4bench.control.counted_paths import in_order
from c4bench.control.path_service import PathService
from c4bench.control.switches import PortCount
from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.diagnosis import Component, Diagnosis, Syndrome
from c4bench.model.fabric import Flow, Host, Nic
from c4bench.wire.messages import Empty, FollowGuidance, ProbeAnswer, Release, Route

PORTS = range(50001, 50009)
HOSTS = tuple(Host(f"h{n}", "", (Nic(f"h{n}", 0, "", "", f"10.0.{n}.1", 1e10),)) for n in range(4))


class Agent:
    """An agent's line: a port's spine is its remainder, and a spine can be taken away."""

    def __init__(self, host, spines):
        self.host, self.spines, self.asked = host, spines, 0
        self.leaf = f"leaf-{host}"
        self.mute = False
        self.counts = Counter()

    async def call(self, method, body, answer):
        if method == "burst":
            for burst in body.bursts:
                spine = self.spines[burst.source_port % len(self.spines)]
                self.counts.update(
                    dict.fromkeys((self.leaf, spine, f"{spine}-{body.destination}")[: burst.hops], burst.count)
                )
            return Empty()
        assert (method, answer) == ("probe", ProbeAnswer)
        self.asked += 1
        if self.mute:
            return ProbeAnswer(dict.fromkeys(body.source_ports, ("",) * min(body.max_hops, 2)))
        hops = {}
        for port in body.source_ports:
            spine = self.spines[port % len(self.spines)]
            hops[port] = (self.leaf, spine, f"{spine}-{body.destination}", "")[: body.max_hops]
        return ProbeAnswer(hops)


class Scene:
    def __init__(self, reachable=True):
        self.spines = ["s0", "s1"]
        self.agents = {host.name: Agent(host.name, self.spines) for host in HOSTS}
        self.reachable = reachable
        self.routing = PathService({}, self.agent)

    def agent(self, host):
        if not self.reachable:
            raise UnhealthyError(f"{host}: no agent is connected")
        return self.agents[host]

    def read(self):
        """The switches' ports as `Switches.ports` has them."""
        counts = sum((agent.counts for agent in self.agents.values()), Counter())
        hops = [f"leaf-{name}" for name in self.agents] + [
            end for spine in self.spines for end in (spine, *(f"{spine}-10.0.{n}.1" for n in range(len(HOSTS))))
        ]
        return {hop: PortCount("switch", hop, counts[hop] * 60, counts[hop]) for hop in hops}


def flow(number, to, qp=0):
    return Flow(f"j/j:data/{number}>{to}/0.{qp}", "j", f"h{number}/0", f"h{to}/0", 1e10)


def run(play):
    return asyncio.run(asyncio.wait_for(play, 20))


def test_a_pair_is_learnt_when_a_flow_asks_for_it():
    """Nothing is probed before; then the flow gets a port, and the next one of that pair costs no probe."""

    async def play():
        scene = Scene()
        scene.routing.plan(HOSTS, PORTS)
        first = await scene.routing.route(Route("j", (flow(0, 2),)))
        asked = scene.agents["h0"].asked
        second = await scene.routing.route(Route("j", (flow(0, 2, qp=1),)))
        assert scene.agents["h0"].asked == asked
        return first, second, [scene.routing.controller.path(one.id).hops[1] for one in (flow(0, 2), flow(0, 2, qp=1))]

    first, second, spines = run(play())
    assert set(first + second) <= set(PORTS)
    assert sorted(spines) == ["s0", "s1"]


def test_plans_and_replans_are_logged_with_their_reasons(caplog):
    """The log names what was learnt, the job whose flows were placed, and why a flow was moved later."""

    async def play():
        scene = Scene()
        scene.routing.plan(HOSTS, PORTS)
        await scene.routing.route(Route("j", (flow(0, 2), flow(0, 2, qp=1))))
        running = asyncio.create_task(scene.routing.run())
        await scene.routing.apply_diagnosis(blamed)
        while "diagnosis" not in caplog.text:
            await asyncio.sleep(0.05)
        running.cancel()

    link = Component("link", "s0")
    blamed = Diagnosis("j", Syndrome.COMMUNICATION_HANG, link, 0.0, 0.0, 0.0, 1.0, (), "")
    caplog.set_level("INFO", "c4bench")
    run(play())
    assert [f"{record.levelname} {record.getMessage()}" for record in caplog.records] == [
        "INFO planning paths between 4 NICs, by 8 source ports",
        "INFO learnt the paths of 1 pairs of NICs from 8 traces",
        "INFO 2 changes of paths or weights: new flows of j",
        "INFO 1 changes of paths or weights: diagnosis of link s0",
    ]


def test_ports_that_miss_a_way_are_told_of_once():
    """A pair whose ports all hash past a spine that another pair reaches is named, with what is still possible."""

    async def play():
        scene = Scene()
        scene.agents["h1"].spines = ["s0"]
        scene.agents["h0"].leaf = scene.agents["h1"].leaf = "leaf-a"
        scene.routing.plan(HOSTS, PORTS)
        for start in (0, 1, 1):
            await scene.routing.route(Route("j", (flow(start, 2, qp=len(scene.routing.controller.remarks)),)))
        return scene.routing.controller.remarks

    (remark,) = run(play())
    assert remark.startswith("h1/0 > h2/0: the probed source ports reach 1 of 2 ways, none leads over s1")
    assert "up to 1 QPs" in remark


def test_without_agents_flows_come_up_on_ecmp_and_are_adopted():
    """Where nobody can probe, a flow is left to ECMP; once the atlas is learnt its rank is told where to go."""

    async def play():
        scene = Scene(reachable=False)
        scene.routing.plan(HOSTS, PORTS)
        assert await scene.routing.route(Route("j", (flow(0, 2),))) == (0,)
        asked = asyncio.create_task(scene.routing.follow(FollowGuidance("j", (flow(0, 2),), (0,), (1.0,))))
        await asyncio.sleep(0)
        scene.reachable = True
        await scene.routing.learn(HOSTS, PORTS)
        return await asked

    assert set(run(play()).ports.values()) <= set(PORTS)


def test_where_icmp_is_filtered_the_switches_count():
    """Probes that nobody answers: packets are sent and counted, flows are planned all the same, a remark says so."""

    async def play():
        scene = Scene()
        for agent in scene.agents.values():
            agent.mute = True
        scene.routing.count_by(scene.read)
        scene.routing.plan(HOSTS, PORTS)
        flows = (flow(0, 2), flow(0, 2, qp=1))
        ports = await scene.routing.route(Route("j", flows))
        paths = [scene.routing.controller.path(one.id).hops for one in flows]
        how = {entry.how for entry in scene.routing.controller.knowledge.entries(("h0/0", "h2/0")).values()}
        # Silence says nothing of links that only counters know.
        scene.routing.controller.looked({("h0/0", "h2/0", port): (None,) for port in ports}, 1.0)
        return paths, how, scene.routing.controller.remarks, scene.routing.controller.health.closed

    paths, how, remarks, closed = run(play())
    assert sorted(paths) == [("leaf-h0", f"s{n}", f"s{n}-10.0.2.1", "10.0.2.1") for n in range(2)]
    assert how == {"counters"}
    assert closed == frozenset()
    assert "1 pairs of NICs answer no probes" in remarks[0]
    assert "known by the switches' counters" in remarks[0]


def test_counts_that_fit_no_path_are_not_believed():
    """The first link has carried all packets, each further one a share less; anything else is other traffic."""
    assert in_order({"a": 6 * 32, "b": 5 * 32 + 2, "c": 4 * 32, "d": 3}) == ("a", "b", "c")
    assert in_order({"a": 6 * 32, "b": 4 * 32}) == ()
    assert in_order({"a": 6 * 32, "b": 5 * 32, "c": 5 * 32}) == ()
    assert in_order({"a": 9999, "b": 6 * 32, "c": 5 * 32}) == ()


def test_a_master_that_starts_afresh_learns_of_flows_from_their_ranks():
    """A question about a flow that this master never routed makes it one of its flows."""

    async def play():
        scene = Scene()
        await scene.routing.learn(HOSTS, PORTS)
        return await scene.routing.follow(FollowGuidance("j", (flow(1, 3),), (0,), (1.0,)))

    assert run(play()).ports


def test_a_rank_is_told_when_its_path_has_gone():
    """A spine that is not there any more: the next look finds out, and the waiting rank gets another port."""

    async def play():
        scene = Scene()
        await scene.routing.learn(HOSTS, PORTS)
        (port,) = await scene.routing.route(Route("j", (flow(0, 2),)))
        gone = scene.routing.controller.path(flow(0, 2).id).hops[1]
        question = asyncio.create_task(scene.routing.follow(FollowGuidance("j", (flow(0, 2),), (port,), (1.0,))))
        looking = asyncio.create_task(scene.routing.run())
        await asyncio.sleep(0.05)
        # One spine more than before, and the old one gone: no port leads where it did.
        scene.spines[:] = [spine for spine in ("s0", "s1") if spine != gone] + ["s2", "s3"]
        await asyncio.wait([question], timeout=5)
        looking.cancel()
        return gone, scene.routing.controller.path(flow(0, 2).id).hops[1]

    gone, now = run(play())
    assert now != gone


def test_a_question_about_released_flows_is_answered():
    """Nobody waits for ever: a communicator that is closed meanwhile hears so."""

    async def play():
        scene = Scene()
        await scene.routing.learn(HOSTS, PORTS)
        (port,) = await scene.routing.route(Route("j", (flow(0, 2),)))
        question = asyncio.create_task(scene.routing.follow(FollowGuidance("j", (flow(0, 2),), (port,), (1.0,))))
        await asyncio.sleep(0)
        await scene.routing.release(Release("j", (flow(0, 2).id,)))
        await question

    with pytest.raises(UnhealthyError, match="released"):
        run(play())


def test_the_policy_is_not_changed_under_live_flows():
    """Another policy begins anew, which planned connections would not survive."""

    async def play():
        scene = Scene()
        await scene.routing.learn(HOSTS, PORTS)
        scene.routing.plan_by(PathPolicy(scope="job"))
        await scene.routing.route(Route("j", (flow(0, 2),)))
        scene.routing.plan_by(PathPolicy())

    with pytest.raises(UsageError, match="close them first"):
        run(play())
