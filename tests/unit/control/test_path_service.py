"""The path service, with agents that only answer probes."""

import asyncio
from collections import Counter

import pytest

from c4bench.c4p.policy import PathPolicy
from c4bench.control.path_service import PathService
from c4bench.control.path_survey import counted_hops
from c4bench.control.switches import PortCount
from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.diagnosis import Component, Diagnosis, Syndrome
from c4bench.model.fabric import Flow, Host, Nic
from c4bench.wire.messages import Empty, FollowGuidance, ProbeAnswer, Release, Route

PORTS = range(50001, 50009)
HOSTS = tuple(Host(f"h{n}", "", (Nic(f"h{n}", 0, "", "", f"10.0.{n}.1", 1e10),)) for n in range(4))


class Agent:
    """An agent whose probes take the spine that the source port's remainder selects; spines can be removed."""

    def __init__(self, host, spines):
        self.host, self.spines, self.probes = host, spines, 0
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
        self.probes += 1
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
        self.paths = PathService({}, self.agent)

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


def test_a_pair_is_learnt_when_a_flow_needs_it():
    """The first flow of a pair causes probes and gets a port; the next one of that pair causes none."""

    async def play():
        scene = Scene()
        scene.paths.plan(HOSTS, PORTS)
        first = await scene.paths.route(Route("j", (flow(0, 2),)))
        probes = scene.agents["h0"].probes
        second = await scene.paths.route(Route("j", (flow(0, 2, qp=1),)))
        assert scene.agents["h0"].probes == probes
        return (
            first,
            second,
            [scene.paths.controller.path(wanted.id).hops[1] for wanted in (flow(0, 2), flow(0, 2, qp=1))],
        )

    first, second, spines = run(play())
    assert set(first + second) <= set(PORTS)
    assert sorted(spines) == ["s0", "s1"]


def test_plans_and_replans_are_logged_with_their_reasons(caplog):
    """The log has the learnt pairs, the job whose flows were placed, and why a flow was moved later."""

    async def play():
        scene = Scene()
        scene.paths.plan(HOSTS, PORTS)
        await scene.paths.route(Route("j", (flow(0, 2), flow(0, 2, qp=1))))
        running = asyncio.create_task(scene.paths.run())
        await scene.paths.apply_diagnosis(blamed)
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


def test_ports_that_do_not_reach_all_paths_cause_one_remark():
    """A pair whose ports all miss a spine that another pair reaches is named once, with the QPs it can still use."""

    async def play():
        scene = Scene()
        scene.agents["h1"].spines = ["s0"]
        scene.agents["h0"].leaf = scene.agents["h1"].leaf = "leaf-a"
        scene.paths.plan(HOSTS, PORTS)
        for start in (0, 1, 1):
            await scene.paths.route(Route("j", (flow(start, 2, qp=len(scene.paths.controller.remarks)),)))
        return scene.paths.controller.remarks

    (remark,) = run(play())
    assert remark.startswith("h1/0 > h2/0: the probed source ports reach 1 of 2 paths, none leads over s1")
    assert "up to 1 QPs" in remark


def test_without_agents_flows_start_on_ecmp_and_are_placed_later():
    """A flow that cannot be probed is left to ECMP, and its rank gets guidance once the atlas is learnt."""

    async def play():
        scene = Scene(reachable=False)
        scene.paths.plan(HOSTS, PORTS)
        assert await scene.paths.route(Route("j", (flow(0, 2),))) == (0,)
        guidance = asyncio.create_task(scene.paths.follow(FollowGuidance("j", (flow(0, 2),), (0,), (1.0,))))
        await asyncio.sleep(0)
        scene.reachable = True
        await scene.paths.learn(HOSTS, PORTS)
        return await guidance

    assert set(run(play()).ports.values()) <= set(PORTS)


def test_where_icmp_is_filtered_paths_are_counted():
    """If no switch answers probes, paths are learnt by the switches' counters, and a remark says so."""

    async def play():
        scene = Scene()
        for agent in scene.agents.values():
            agent.mute = True
        scene.paths.count_by(scene.read)
        scene.paths.plan(HOSTS, PORTS)
        flows = (flow(0, 2), flow(0, 2, qp=1))
        ports = await scene.paths.route(Route("j", flows))
        paths = [scene.paths.controller.path(wanted.id).hops for wanted in flows]
        how = {entry.how for entry in scene.paths.controller.knowledge.entries(("h0/0", "h2/0")).values()}
        # A missing answer says nothing about links that only counters know.
        scene.paths.controller.check_traces({("h0/0", "h2/0", port): (None,) for port in ports}, 1.0)
        return paths, how, scene.paths.controller.remarks, scene.paths.controller.health.closed

    paths, how, remarks, closed = run(play())
    assert sorted(paths) == [("leaf-h0", f"s{n}", f"s{n}-10.0.2.1", "10.0.2.1") for n in range(2)]
    assert how == {"counters"}
    assert closed == frozenset()
    assert "1 pairs of NICs answer no probes" in remarks[0]
    assert "known by the switches' counters" in remarks[0]


def test_counts_that_fit_no_path_are_rejected():
    """Counts are a path only if the first link has carried all packets and each further link one share less."""
    assert counted_hops({"a": 6 * 32, "b": 5 * 32 + 2, "c": 4 * 32, "d": 3}) == ("a", "b", "c")
    assert counted_hops({"a": 6 * 32, "b": 4 * 32}) == ()
    assert counted_hops({"a": 6 * 32, "b": 5 * 32, "c": 5 * 32}) == ()
    assert counted_hops({"a": 9999, "b": 6 * 32, "c": 5 * 32}) == ()


def test_a_new_master_learns_flows_from_their_ranks():
    """A request for guidance on an unknown flow adds it to the master's flows."""

    async def play():
        scene = Scene()
        await scene.paths.learn(HOSTS, PORTS)
        return await scene.paths.follow(FollowGuidance("j", (flow(1, 3),), (0,), (1.0,)))

    assert run(play()).ports


def test_a_rank_gets_guidance_when_its_path_is_gone():
    """When a spine disappears, the next retrace notices, and the waiting rank gets another port."""

    async def play():
        scene = Scene()
        await scene.paths.learn(HOSTS, PORTS)
        (port,) = await scene.paths.route(Route("j", (flow(0, 2),)))
        gone = scene.paths.controller.path(flow(0, 2).id).hops[1]
        request = asyncio.create_task(scene.paths.follow(FollowGuidance("j", (flow(0, 2),), (port,), (1.0,))))
        retracing = asyncio.create_task(scene.paths.run())
        await asyncio.sleep(0.05)
        # One spine more than before, and the old one gone: no port leads where it did.
        scene.spines[:] = [spine for spine in ("s0", "s1") if spine != gone] + ["s2", "s3"]
        await asyncio.wait([request], timeout=5)
        retracing.cancel()
        return gone, scene.paths.controller.path(flow(0, 2).id).hops[1]

    gone, now = run(play())
    assert now != gone


def test_a_request_about_released_flows_ends():
    """A request for guidance ends with an error when its flows are released."""

    async def play():
        scene = Scene()
        await scene.paths.learn(HOSTS, PORTS)
        (port,) = await scene.paths.route(Route("j", (flow(0, 2),)))
        request = asyncio.create_task(scene.paths.follow(FollowGuidance("j", (flow(0, 2),), (port,), (1.0,))))
        await asyncio.sleep(0)
        await scene.paths.release(Release("j", (flow(0, 2).id,)))
        await request

    with pytest.raises(UnhealthyError, match="released"):
        run(play())


def test_the_policy_is_not_changed_under_live_flows():
    """The policy cannot change while flows are live."""

    async def play():
        scene = Scene()
        await scene.paths.learn(HOSTS, PORTS)
        scene.paths.plan_by(PathPolicy(scope="job"))
        await scene.paths.route(Route("j", (flow(0, 2),)))
        scene.paths.plan_by(PathPolicy())

    with pytest.raises(UsageError, match="close them first"):
        run(play())
