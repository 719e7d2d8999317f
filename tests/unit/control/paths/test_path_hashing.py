"""What switches hash, found out by packets, and paths on fabrics that hash queue pairs or route adaptively."""

import asyncio
from hashlib import sha256
from itertools import count

import pytest
from path_scene import HOSTS, PORTS, Agent, Scene, flow, run

from c4bench.c4p.knowledge.hash_inquiry import QP
from c4bench.control.paths.learning import PlannedFabric
from c4bench.errors import PathsRefusedError, UnhealthyError, UsageError
from c4bench.model.fabric import ADAPTIVE, ASK_QPS, DEST_QP, FIVE_TUPLE, HopAnswer
from c4bench.wire.messages import Empty, FollowGuidance, Route
from c4bench.wire.probes import ProbeAnswer

# The destination QP that a packet has which does not try to look like RDMA's.
PLAIN = 0x636820


def mixed(*values):
    return sha256(repr(values).encode()).digest()[0]


def by_ports(port, _qp, _moment, _real):
    return port


def by_queue_pair(port, qp, _moment, _real):
    return mixed(port, qp)


def by_moment(port, qp, moment, _real):
    return mixed(port, qp, moment)


def by_sender(port, _qp, _moment, real):
    return port + real


def otherwise(port, qp, _moment, _real):
    return mixed(port, "other", qp)


class Switches(Agent):
    """An agent whose switches choose spines by `rule`; `real` if it can send packets of queue pairs."""

    def __init__(self, host, spines, rule, *, real=True):
        super().__init__(host, spines)
        self.rule, self.real = rule, real
        self.moments = count()

    def spine(self, port, qp=PLAIN, real=False):
        return self.spines[self.rule(port, qp, next(self.moments), real) % len(self.spines)]

    async def call(self, method, body, _answer):
        if method == "burst":
            if body.qp and not self.real:
                raise UnhealthyError(f"{self.host}: no pyverbs")
            for burst in body.bursts:
                spine = self.spine(burst.source_port, body.qp or PLAIN, bool(body.qp))
                self.counts.update(dict.fromkeys((self.leaf, spine, f"{spine}-{body.destination}"), burst.count))
            return Empty()
        self.probes += 1
        qps = body.qps or [PLAIN] * len(body.probes)
        return ProbeAnswer(tuple(self.of(*both) for both in zip(body.probes, qps, strict=True)))

    def of(self, probe, qp):
        spine = self.spine(probe.source_port, qp)
        path = (self.leaf, spine, f"{spine}-{probe.destination}", probe.destination)
        return HopAnswer() if self.mute else HopAnswer(path[min(probe.ttl, len(path)) - 1], 61)


def scene_of(rule, stated=None, **options):
    scene = Scene()
    scene.agents = {host.name: Switches(host.name, scene.spines, rule, **options) for host in HOSTS}
    scene.paths.plan(PlannedFabric(HOSTS, PORTS, scene.read, hash=stated))
    return scene


async def find(scene):
    await scene.paths.route(Route("j", (flow(0, 2),)))
    return scene.paths._learner.hash


@pytest.mark.parametrize("real", [True, False])
@pytest.mark.parametrize(("rule", "found"), [(by_ports, FIVE_TUPLE), (by_queue_pair, DEST_QP), (by_moment, ADAPTIVE)])
def test_what_switches_hash_is_found_out(rule, found, real):
    """By which packets part, also where agents cannot send with queue pairs."""

    async def play():
        return (await find(scene_of(rule, real=real)))._finding

    assert run(play()).hash == found


def test_what_is_stated_is_not_asked():
    """Where the inventory states the hash, paths are learnt by as few probes as ever."""

    async def probes(**stated):
        scene = scene_of(by_ports, **stated)
        await find(scene)
        return sum(agent.probes for agent in scene.agents.values())

    plain = Scene()

    async def as_ever():
        plain.paths.plan(PlannedFabric(HOSTS, PORTS))
        await plain.paths.route(Route("j", (flow(0, 2),)))
        return sum(agent.probes for agent in plain.agents.values())

    assert run(probes(stated=FIVE_TUPLE)) == run(as_ever()) < run(probes())


@pytest.mark.parametrize("rule", [by_moment, by_sender])
def test_no_path_is_planned_where_none_can_be_chosen(rule):
    """Flows are left to the fabric, with one line that says why; nobody gets an atlas."""

    async def play():
        scene = scene_of(rule)
        scene.paths.controller.knowledge.learn({("h0/0", "h2/0", 50001): ("leaf-h0", "s0", "x", "10.0.2.1")}, 0.0)
        ports = await scene.paths.route(Route("j", (flow(0, 2), flow(0, 2, qp=1))))
        with pytest.raises(PathsRefusedError, match="cannot be chosen") as refused:
            await scene.paths.learn_between(["h0", "h2"])
        reason = scene.paths.unplanned()["j"].reason
        assert scene.paths.controller.remarks == [str(refused.value)] == [reason]
        return ports, scene.paths.controller.knowledge.pairs, scene.paths.controller.atlas

    assert run(play()) == ((0, 0), (), None)


def test_silence_about_the_hash_is_said_and_planned_by_the_five_tuple(monkeypatch):
    """Switches that answer no packets of queue pairs leave the hash open, which a remark says."""
    monkeypatch.setattr("c4bench.control.paths.hashing._AGAIN_S", 0.0)

    async def play():
        scene = scene_of(by_ports)
        for agent in scene.agents.values():
            answers = agent.of
            agent.of = lambda probe, qp, answers=answers: HopAnswer() if qp != PLAIN else answers(probe, qp)
        ports = await scene.paths.route(Route("j", (flow(0, 2),)))
        return ports[0] in PORTS, scene.paths.controller.remarks

    planned, (remark,) = run(play())
    assert planned
    assert remark.startswith("what the switches hash is not known")
    assert "c4.hash" in remark


def taken(scene, flows, qps, ports):
    """The spines that the packets of these flows cross, by the fabric itself."""
    return [scene.agents[one.source[:2]].spine(port, qp) for one, qp, port in zip(flows, qps, ports, strict=True)]


def test_each_queue_pair_gets_a_port_that_takes_its_planned_path():
    """C4P asks for the queue pairs first; then the flows share the spines evenly, each on a port of its own."""

    async def play():
        scene = scene_of(by_queue_pair)
        flows, qps = [flow(source, source + 2, qp) for source in (0, 1) for qp in (0, 1)], (17, 18, 17, 19)
        asked = await scene.paths.route(Route("j", tuple(flows)))
        ports = await scene.paths.route(Route("j", tuple(flows), qps))
        planned = [scene.paths.controller.path(one.id).hops[1] for one in flows]
        return asked, ports, planned, taken(scene, flows, qps, ports)

    asked, ports, planned, crossed = run(play())
    assert asked == (ASK_QPS,) * 4
    assert len(set(ports[:2])) == len(set(ports[2:])) == 2
    assert crossed == planned
    assert sorted(crossed) == ["s0", "s0", "s1", "s1"]


def test_ports_follow_a_fabric_that_has_changed():
    """After ports lead elsewhere, guidance gives each queue pair one that takes its path again."""

    async def play():
        scene = scene_of(by_queue_pair)
        flows, qps = [flow(source, source + 2) for source in (0, 1)], (17, 18)
        await scene.paths.route(Route("j", tuple(flows)))
        ports = await scene.paths.route(Route("j", tuple(flows), qps))
        for agent in scene.agents.values():
            agent.rule = otherwise
        await scene.paths._learn(scene.paths.controller.pairs(), changed=True, wait=True)
        await scene.paths._apply_changes("changed")
        request = FollowGuidance("j", tuple(flows), ports, (1.0, 1.0), {}, qps)
        moved = {}
        if [scene.paths._port(one.id) for one in flows] != list(ports):
            moved = (await asyncio.wait_for(scene.paths.follow(request), 5)).ports
        now = [moved.get(one.id, port) for one, port in zip(flows, ports, strict=True)]
        planned = [scene.paths.controller.path(one.id).hops[1] for one in flows]
        return planned, taken(scene, flows, qps, now), [scene.paths._port(one.id) for one in flows] == now

    planned, crossed, told = run(play())
    assert crossed == planned
    assert sorted(crossed) == ["s0", "s1"]
    assert told


def test_a_flow_that_no_port_leads_where_it_should_is_left_to_the_fabric():
    """It has no planned path from then on, and a remark names it."""

    async def play():
        scene = scene_of(by_queue_pair)
        await find(scene)
        for agent in scene.agents.values():
            agent.rule = lambda port, qp, _moment, _real: 0 if qp in {17, 18} else port
        flows = flow(0, 2), flow(1, 3)
        ports = await scene.paths.route(Route("j", flows, (17, 18)))
        return ports, scene.paths.controller.remarks, [scene.paths.controller.path(one.id).hops for one in flows]

    ports, remarks, paths = run(play())
    assert sorted(map(bool, ports)) == [False, True]
    assert "no source port was found by which packets to queue pair" in remarks[-1]
    assert [bool(hops) for hops in paths] == [bool(port) for port in ports]


@pytest.mark.parametrize("qps", [(17,), (17, 1 << 24)])
def test_queue_pairs_that_are_none_are_refused(qps):
    """One for each flow, of 24 bits; nothing is placed otherwise."""

    async def play():
        scene = scene_of(by_queue_pair)
        with pytest.raises(UsageError, match="24 bits"):
            await scene.paths.route(Route("j", (flow(0, 2), flow(0, 2, qp=1)), qps))
        return scene.paths.controller.pairs()

    assert run(play()) == ()


@pytest.mark.parametrize(
    ("burst", "every", "limits"),
    [(6, 1, (6, 1)), (2, 1, (2, 1)), (6, 4, (6, 0.25)), (1, 99, (1, 0.5 / 8)), (9, 1, (6, 1))],
)
def test_what_a_switch_answers_is_learnt(burst, every, limits, monkeypatch):
    """Fewer answers at once or a second than Linux gives are counted with from then on; more are not."""
    monkeypatch.setattr("c4bench.control.paths.hashing._EACH_S", 0.0)

    async def play():
        scene = scene_of(by_ports)
        for agent in scene.agents.values():
            asked = count(1)

            def of(probe, qp, answers=agent.of, asked=asked):
                number = next(asked) if (probe.ttl, qp) == (1, QP) else 0
                late = number - 8
                silent = (number > burst and late <= 0) or (late > 0 and late % every)
                return HopAnswer() if silent else answers(probe, qp)

            agent.of = of
        found = await find(scene)
        if found._measuring:
            await found._measuring
        return scene.paths.controller._checks._budget.limits

    assert run(play()) == pytest.approx(limits)


def test_nics_at_one_switch_leave_the_hash_open():
    """Their paths have no choice: nothing is remarked, nobody is asked twice, and other NICs are asked about later."""

    async def play():
        scene = scene_of(by_queue_pair)
        for agent in scene.agents.values():
            agent.of = lambda probe, _qp, agent=agent: HopAnswer(
                (agent.leaf, probe.destination)[min(probe.ttl, 2) - 1], 63
            )
        found = await find(scene)
        probes = sum(agent.probes for agent in scene.agents.values())
        await found.find([("h0/0", "h2/0")])
        again = sum(agent.probes for agent in scene.agents.values()) - probes
        return found._finding, scene.paths.controller.remarks, again

    assert run(play()) == (None, [], 0)
