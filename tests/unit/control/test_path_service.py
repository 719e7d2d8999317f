"""The path service, with agents that only answer probes."""

import asyncio
import time
from collections import Counter

import pytest
from msgspec.structs import replace

from c4bench.c4p.controller import PathController
from c4bench.c4p.knowledge.path_checks import Check
from c4bench.c4p.knowledge.path_search import MAX_SWITCHES
from c4bench.c4p.policy import PathPolicy
from c4bench.control.health import UnplannedFlows
from c4bench.control.path_counting import PathCounter, counted_hops
from c4bench.control.path_learning import PathLearner, PlannedFabric
from c4bench.control.path_service import NO_INVENTORY, PathService
from c4bench.control.path_survey import PathSurvey
from c4bench.control.switches import PortCount
from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.diagnosis import Component, Diagnosis, Syndrome
from c4bench.model.fabric import USUAL_QPS, Flow, HopAnswer, Host, Nic
from c4bench.model.graph import FabricGraph, HostPort, Trunk
from c4bench.wire.messages import ChooseQps, Empty, FollowGuidance, ProbeAnswer, Release, Route

PORTS = range(50001, 50009)
HOSTS = tuple(Host(f"h{n}", "", (Nic(f"h{n}", 0, "", "", f"10.0.{n}.1", 1e10),)) for n in range(4))


class Agent:
    """An agent whose probes take the spine that the source port's remainder selects; spines can be removed."""

    def __init__(self, host, spines):
        self.host, self.spines, self.probes = host, spines, 0
        self.leaf = f"leaf-{host}"
        self.mute = False
        self.sent = lambda: None
        self.counts = Counter()

    async def call(self, method, body, answer):
        if method == "burst":
            self.sent()
            for burst in body.bursts:
                spine = self.spines[burst.source_port % len(self.spines)]
                self.counts.update(
                    dict.fromkeys((self.leaf, spine, f"{spine}-{body.destination}")[: burst.hops], burst.count)
                )
            return Empty()
        assert (method, answer) == ("probe", ProbeAnswer)
        self.probes += 1
        return ProbeAnswer(tuple(self.answer(probe) for probe in body.probes))

    def answer(self, probe):
        """What answers, three switches before the destination; nothing if the agent is mute."""
        if self.mute:
            return HopAnswer()
        spine = self.spines[probe.source_port % len(self.spines)]
        path = (self.leaf, spine, f"{spine}-{probe.destination}", probe.destination)
        return HopAnswer(path[min(probe.ttl, len(path)) - 1], 61)


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
        scene.paths.plan(PlannedFabric(HOSTS, PORTS))
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


@pytest.mark.parametrize(("uplink_bps", "qps"), [(0.0, 4), (1e10, 4), (5e9, 8), (1e9, 16)])
def test_thin_links_of_a_pair_ask_for_more_qps(uplink_bps, qps):
    """A pair's paths are learnt before the answer; it is the usual number without rates, and more on a thin uplink."""

    async def play():
        scene = Scene()

        def read():
            ports = {hop: replace(port, rate_bps=1e10) for hop, port in scene.read().items()} if uplink_bps else {}
            return ports | ({"s1": PortCount("switch", "s1", 0, 0, uplink_bps)} if uplink_bps else {})

        scene.paths.plan(PlannedFabric(HOSTS, PORTS, read))
        answer = await scene.paths.choose_qps(ChooseQps("j", (("h0/0", "h2/0"), ("h0/0", "h3/0"))))
        return answer, scene.paths.controller.knowledge.pairs

    assert run(play()) == (qps, (("h0/0", "h2/0"), ("h0/0", "h3/0")))


def test_the_pair_that_needs_most_decides():
    """Of two pairs only one crosses the thin link, and both are given its number."""

    async def play():
        scene = Scene()
        thin = {"s1-10.0.3.1": PortCount("switch", "s1", 0, 0, 5e9)}
        scene.paths.plan(PlannedFabric(HOSTS, PORTS, lambda: thin))
        wide, narrow = ("h0/0", "h2/0"), ("h0/0", "h3/0")
        return [await scene.paths.choose_qps(ChooseQps("j", pairs)) for pairs in ((wide,), (narrow,), (wide, narrow))]

    assert run(play()) == [4, 8, 8]


def test_the_answer_waits_for_the_rates():
    """Two ranks that ask at once are both answered by the rates, also by a new master that knows all paths."""

    async def play():
        old = Scene()
        await old.paths.learn(PlannedFabric(HOSTS, PORTS))
        new = Scene()
        new.paths.controller.recall(old.paths.controller.knowledge, time.time())

        def read():
            time.sleep(0.1)
            return {"s1": PortCount("switch", "s1", 0, 0, 5e9)}

        new.paths.plan(PlannedFabric(HOSTS, PORTS, read))
        requests = (ChooseQps("j", ((f"h{rank}/0", f"h{3 - rank}/0"),)) for rank in (0, 1))
        answers = await asyncio.gather(*map(new.paths.choose_qps, requests))
        return answers, sum(agent.probes for agent in new.agents.values())

    assert run(play()) == ([8, 8], 0)


def test_a_master_that_plans_no_paths_gives_the_usual_qps():
    """Without an inventory, for NICs that are not in it, and for no pairs, the answer is the usual number."""

    async def play(pairs, hosts=()):
        scene = Scene()
        if hosts:
            scene.paths.plan(PlannedFabric(hosts, PORTS))
        return await scene.paths.choose_qps(ChooseQps("j", pairs))

    assert run(play((("h0/0", "h2/0"),))) == USUAL_QPS
    assert run(play((("h0/0", "h2/0"),), HOSTS[:2])) == USUAL_QPS
    assert run(play((), HOSTS)) == USUAL_QPS


def test_plans_and_replans_are_logged_with_their_reasons(caplog):
    """The log has the learnt pairs, the job whose flows were placed, and why a flow was moved later."""

    async def play():
        scene = Scene()
        scene.paths.plan(PlannedFabric(HOSTS, PORTS))
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
        "INFO learnt 8 paths of 1 pairs of NICs",
        "INFO 2 changes of paths or weights: new flows of j",
        "INFO 1 changes of paths or weights: diagnosis of link s0",
    ]


def test_ports_that_do_not_reach_all_paths_cause_one_remark():
    """A pair whose ports all miss a spine that another pair reaches is named once, with the QPs it can still use."""

    async def play():
        scene = Scene()
        scene.agents["h1"].spines = ["s0"]
        scene.agents["h0"].leaf = scene.agents["h1"].leaf = "leaf-a"
        scene.paths.plan(PlannedFabric(HOSTS, PORTS))
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
        scene.paths.plan(PlannedFabric(HOSTS, PORTS))
        assert await scene.paths.route(Route("j", (flow(0, 2),))) == (0,)
        guidance = asyncio.create_task(scene.paths.follow(FollowGuidance("j", (flow(0, 2),), (0,), (1.0,))))
        await asyncio.sleep(0)
        scene.reachable = True
        await scene.paths.learn(PlannedFabric(HOSTS, PORTS))
        return await guidance

    assert set(run(play()).ports.values()) <= set(PORTS)


def test_where_icmp_is_filtered_paths_are_counted():
    """If no switch answers probes, paths are learnt by the switches' counters, and a remark says so."""

    async def play():
        scene = Scene()
        for agent in scene.agents.values():
            agent.mute = True
        scene.paths.plan(PlannedFabric(HOSTS, PORTS, scene.read))
        flows = (flow(0, 2), flow(0, 2, qp=1))
        assert await scene.paths.route(Route("j", flows)) == (0, 0)
        await scene.paths.learn_between(["h0", "h2"])
        paths = [scene.paths.controller.path(wanted.id).hops for wanted in flows]
        how = {entry.how for entry in scene.paths.controller.knowledge.entries(("h0/0", "h2/0")).values()}
        # A missing answer says nothing about links that only counters know.
        port = scene.paths.controller.port(flows[0].id)
        scene.paths.controller.evaluate_traces({("h0/0", "h2/0", port): (None,)}, 1.0)
        return paths, how, scene.paths.controller.remarks, scene.paths.controller.health.closed

    paths, how, remarks, closed = run(play())
    assert sorted(paths) == [("leaf-h0", f"s{n}", f"s{n}-10.0.2.1", "10.0.2.1") for n in range(2)]
    assert how == {"counters"}
    assert closed == frozenset()
    assert "2 pairs of NICs answer no probes" in remarks[0]
    assert "known by the switches' counters" in remarks[0]


@pytest.mark.parametrize(
    ("traffic", "links"), [(3, {"leaf-h0", "s1", "s1-10.0.2.1"}), (200, {"leaf-h0", "s1-10.0.2.1"})]
)
def test_packets_that_do_not_expire_show_a_path(traffic, links):
    """The links of a source port are those that count its packets; one with other traffic is not among them."""

    async def play():
        scene = Scene()
        counter = PathCounter(scene.paths.survey, scene.read, PlannedFabric(HOSTS).nics)
        found = await counter.links(("h0/0", "h2/0"), 50001)
        assert found == {"leaf-h0", "s1", "s1-10.0.2.1"}
        # What others send between two counts does not count once the reading is forgotten.
        scene.agents["h1"].counts["s1"] += 500
        counter.forget_reading()
        busy = scene.agents["h1"].counts
        scene.agents["h0"].sent = lambda: busy.update({"s1": traffic})
        return await counter.links(("h0/0", "h2/0"), 50001)

    assert run(play()) == links


def test_counts_that_fit_no_path_are_rejected():
    """Counts are a path only if the first link has carried all packets and each further link one share less."""
    first, second, third = (32 * (MAX_SWITCHES - place) for place in range(3))
    assert counted_hops({"a": first, "b": second + 2, "c": third, "d": 3}) == ("a", "b", "c")
    assert counted_hops({"a": first, "b": third}) == ()
    assert counted_hops({"a": first, "b": second, "c": second}) == ()
    assert counted_hops({"a": 9999, "b": first, "c": second}) == ()


def test_a_new_master_learns_flows_from_their_ranks():
    """A request for guidance on an unknown flow adds it to the master's flows."""

    async def play():
        scene = Scene()
        await scene.paths.learn(PlannedFabric(HOSTS, PORTS))
        return await scene.paths.follow(FollowGuidance("j", (flow(1, 3),), (0,), (1.0,)))

    assert run(play()).ports


def test_flows_keep_their_paths_when_the_master_is_new():
    """A master that has recalled the paths leaves running flows where they are, whatever it would choose itself."""

    async def play():
        old = Scene()
        await old.paths.learn(PlannedFabric(HOSTS, PORTS))
        flows = tuple(flow(start, 3 - start, qp) for start in (0, 1) for qp in range(2))
        ports = await old.paths.route(Route("j", flows))
        # The other two QPs of each connection would do as well, so a new plan may exchange them.
        swapped = (ports[1], ports[0], ports[3], ports[2])
        new = Scene()
        new.paths.controller.recall(old.paths.controller.knowledge, time.time())
        new.paths.plan(PlannedFabric(HOSTS, PORTS))
        for part in (slice(0, 2), slice(2, 4)):
            request = FollowGuidance("j", flows[part], swapped[part], (0.5, 0.5))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(new.paths.follow(request), 0.2)
        return swapped, tuple(new.paths.controller.port(one.id) for one in flows), new.paths.controller.changes

    was, now, changes = run(play())
    assert now == was
    assert changes == 0


def test_flows_without_a_plan_are_named_with_the_reason(caplog):
    """A flow that asked for a path and runs on ECMP is a warning, once a job, and counted until it is planned."""

    async def play():
        scene = Scene()
        await scene.paths.route(Route("j", (flow(0, 2), flow(0, 3))))
        await scene.paths.route(Route("j", (flow(1, 2),)))
        without_inventory = scene.paths.unplanned()
        scene.paths.plan(PlannedFabric(HOSTS[:2], PORTS))
        foreign = scene.paths.unplanned()
        scene.paths.plan(PlannedFabric(HOSTS, PORTS))
        scene.agents["h3"].mute = True
        await scene.paths.route(Route("k", (Flow("k/k:data/3>0/0.0", "k", "h3/0", "h0/0", 1e10),)))
        silent = scene.paths.unplanned()["k"]
        await scene.paths.learn_between(["h0", "h1", "h2", "h3"])
        return without_inventory, foreign, silent, scene.paths.unplanned()

    without_inventory, foreign, silent, at_last = run(play())
    assert without_inventory == {"j": UnplannedFlows(3, NO_INVENTORY)}
    assert foreign["j"].reason == "the master's inventory has no NIC h2/0"
    assert silent.reason.startswith("no path of h3/0 > h0/0 is known")
    assert set(at_last) == {"k"}
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [
        f"j: 2 flows asked for a path and run on ECMP: {NO_INVENTORY}",
        f"k: 1 flows asked for a path and run on ECMP: {silent.reason}",
    ]


def test_a_request_about_flows_of_another_job_is_refused():
    """Whoever speaks for a job may not have flows of another one planned."""
    with pytest.raises(UnhealthyError, match="is of j, and the request is of k"):
        run(Scene().paths.route(Route("k", (flow(0, 2),))))


def test_paths_are_learnt_between_hosts_that_an_operator_names():
    """The pairs of these hosts are probed and returned; a host without a NIC here is refused, so is a bare master."""

    async def play(*hosts):
        scene = Scene()
        scene.paths.plan(PlannedFabric(HOSTS, PORTS))
        return (await scene.paths.learn_between(hosts)).pairs

    assert run(play("h0", "h3")) == (("h0/0", "h3/0"), ("h3/0", "h0/0"))
    with pytest.raises(UsageError, match="h9 has no NIC in the master's inventory"):
        run(play("h0", "h9"))
    with pytest.raises(UnhealthyError, match="start it with --hosts"):
        run(Scene().paths.learn_between(["h0", "h1"]))


def test_a_rank_gets_guidance_when_its_path_is_gone():
    """When a spine disappears, the next retrace notices, and the waiting rank gets another port."""

    async def play():
        scene = Scene()
        await scene.paths.learn(PlannedFabric(HOSTS, PORTS))
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


@pytest.mark.parametrize("changed", [False, True])
def test_a_search_that_meets_a_link_again_begins_anew(changed):
    """When a spine that was gone answers, ports of earlier rounds may take other paths: all are traced again."""

    async def play():
        scene, pair = Scene(), ("h0/0", "h2/0")
        controller, survey = PathController(), PathSurvey(scene.agent)
        learner = PathLearner(controller, survey, PlannedFabric(HOSTS, PORTS))
        await learner.learn([pair], wait=True)
        scene.spines.remove("s1")
        await learner.learn([pair], changed=True, wait=True)
        missing = controller.health.missing
        scene.spines.append("s1")
        await learner.learn([pair], changed=changed)
        return missing, controller.health.missing, await learner.proceed()

    missing, then, traced_again = run(play())
    assert missing == {"s1", "s1-10.0.2.1"}
    assert then == set()
    # After a change that is known nothing of earlier rounds counts anyway.
    assert traced_again == (not changed)


def test_a_request_about_released_flows_ends():
    """A request for guidance ends with an error when its flows are released."""

    async def play():
        scene = Scene()
        await scene.paths.learn(PlannedFabric(HOSTS, PORTS))
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
        await scene.paths.learn(PlannedFabric(HOSTS, PORTS))
        scene.paths.plan_by(PathPolicy(scope="job"))
        await scene.paths.route(Route("j", (flow(0, 2),)))
        scene.paths.plan_by(PathPolicy())

    with pytest.raises(UsageError, match="close them first"):
        run(play())


def test_paths_are_compared_with_the_stated_graph():
    """The graph's rates are planned with, and a stated link that no path crosses is a remark, once."""
    leaves, spines = [f"l{number}" for number in range(4)], ["s0", "s1", "s2"]
    ports = tuple(HostPort(host.name, leaf, 1e10, nic=0) for host, leaf in zip(HOSTS, leaves, strict=True))
    trunks = tuple(Trunk(leaf, spine, 5e9) for leaf in leaves for spine in spines)
    graph = FabricGraph((*leaves, *spines), tuple(host.name for host in HOSTS), ports, trunks)
    # The rate of h2's NIC is in the graph only.
    bare = replace(HOSTS[2], nics=(replace(HOSTS[2].nics[0], rate_bps=0.0),))
    hosts = (*HOSTS[:2], bare, *HOSTS[3:])

    async def play():
        scene = Scene()
        rates = []
        scene.paths.controller.set_capacities = rates.append
        scene.paths.plan(PlannedFabric(hosts, PORTS, graph=graph))
        await scene.paths.route(Route("j", (flow(0, 2),)))
        running = asyncio.create_task(scene.paths.run())
        while not scene.paths.controller.remarks:
            await asyncio.sleep(0.05)
        running.cancel()
        return scene.paths.controller.remarks, rates

    remarks, rates = run(play())
    assert rates[-1]["s0"] == rates[-1]["s1-10.0.2.1"] == 5e9
    assert rates[-1]["10.0.2.1"] == 1e10
    assert [line for line in remarks if "stated link" in line] == [
        "l0 to s2 by paths: the stated link is not found; is it up?",
        "l2 to s2 by paths: the stated link is not found; is it up?",
    ]


def test_traffic_of_others_is_seen_in_the_switches_counters(caplog):
    """The difference of two readings is planned around; a reading that fails is a warning, and the next ones count."""

    async def play():
        scene, seen, readings = Scene(), [], []
        loop = asyncio.get_running_loop()

        def read():
            readings.append(loop.time())
            if len(readings) == 3:
                raise UnhealthyError("leaf0 does not answer")
            for agent in scene.agents.values():
                agent.counts.update({agent.leaf: 1000})
            return scene.read()

        scene.paths.plan(PlannedFabric(HOSTS, PORTS, read=read, background_s=0.05))
        scene.paths.controller.ingest_counters = lambda received, over_s: seen.append((received, over_s))
        running = asyncio.create_task(scene.paths.run())
        while len(seen) < 3:
            await asyncio.sleep(0.01)
        running.cancel()
        return seen, readings

    seen, readings = run(play())
    assert {received["leaf-h0"] for received, _ in seen} == {60_000}
    assert {received["s0"] for received, _ in seen} == {0}
    # Readings 1 and 2, then after the failed one 4 and 5, and 5 and 6.
    taken_s = [readings[1] - readings[0], readings[4] - readings[3], readings[5] - readings[4]]
    assert [over_s for _, over_s in seen] == pytest.approx(taken_s, abs=0.04)
    assert min(over_s for _, over_s in seen) >= 0.05
    assert ["leaf0 does not answer" in record.getMessage() for record in caplog.records].count(True) == 1


def test_link_loads_have_what_the_switches_counted():
    """Beside the planned load of each link stands all traffic that its switch counted; a failed reading ends that."""

    async def play():
        scene, readings, other = Scene(), [], "s0-10.0.3.1"

        def read():
            readings.append(1)
            if len(readings) == 4:
                raise UnhealthyError("leaf0 does not answer")
            scene.agents["h0"].counts.update({"leaf-h0": 1000, other: 500, "ssh": 500})
            ports = scene.read()
            return ports | {other: replace(ports[other], rate_bps=1e10), "ssh": replace(ports[other], interface="ssh")}

        scene.paths.plan(PlannedFabric(HOSTS, PORTS, read=read, background_s=0.2))
        await scene.paths.choose_qps(ChooseQps("j", (("h0/0", "h2/0"),)))  # reads which rates are known
        await scene.paths.route(Route("j", (flow(0, 2),)))
        before, loads = scene.paths.link_loads(), []
        readings.clear()
        running = asyncio.create_task(scene.paths.run())
        while len(readings) < 5:
            if len(readings) != len(loads):
                await asyncio.sleep(0.1)
                loads.append(scene.paths.link_loads())
            await asyncio.sleep(0.01)
        running.cancel()
        return before, loads

    before, loads = run(play())
    assert {load.carried_bps for load in before.values()} == {None}
    assert loads[2]["leaf-h0"].carried_bps == pytest.approx(1000 * 60 * 8 / 0.2, rel=0.3)
    assert loads[2]["leaf-h0"].offered_bps == 1e10
    assert loads[2]["s0-10.0.3.1"].offered_bps == 0
    assert loads[2]["s0-10.0.3.1"].carried_bps == pytest.approx(500 * 60 * 8 / 0.2, rel=0.3)
    assert "ssh" not in loads[2]  # no rate is known of it, and no flow crosses it
    assert {load.carried_bps for load in loads[3].values()} == {None}


@pytest.mark.parametrize("changed", [{"read": None}, {"background_s": 0.0}])
def test_without_switches_or_period_no_counters_are_read(changed):
    """Both are needed to see the traffic of others."""

    async def play():
        scene, readings = Scene(), []
        given = {"read": lambda: readings.append(1) or {}, "background_s": 0.01} | changed
        scene.paths.plan(PlannedFabric(HOSTS, PORTS, **given))
        running = asyncio.create_task(scene.paths.run())
        await asyncio.sleep(0.1)
        running.cancel()
        return readings

    assert run(play()) == []


def test_source_ports_are_traced_as_far_as_switches_answer():
    """Each probe names its switches in order; a switch that is silent ends the trace."""

    async def play():
        scene = Scene()
        nics = {nic.name: nic for host in HOSTS for nic in host.nics}
        silent = scene.agents["h1"]
        usual = silent.answer
        silent.answer = lambda probe: HopAnswer() if probe.ttl == 2 else usual(probe)
        wanted = {("h0/0", "h2/0", 50001): 3, ("h0/0", "h2/0", 50002): 3, ("h1/0", "h2/0", 50001): 3}
        traced = await scene.paths.survey.trace(wanted, nics)
        assert await scene.paths.survey.trace({}, nics) == {}
        return traced

    traced = run(play())
    assert traced["h0/0", "h2/0", 50001] == ("leaf-h0", "s1", "s1-10.0.2.1")
    assert traced["h0/0", "h2/0", 50002] == ("leaf-h0", "s0", "s0-10.0.2.1")
    assert traced["h1/0", "h2/0", 50001] == ("leaf-h1", None)


def test_checks_of_hosts_without_an_agent_are_left_out():
    """An answer belongs to its check; an agent that answers fewer probes than it was sent is as good as none."""

    async def play():
        scene = Scene()
        nics = {nic.name: nic for host in HOSTS for nic in host.nics}
        checks = [Check((f"h{number}/0", "h3/0"), 50001, position) for number in range(3) for position in (1, 0)]

        async def refuse(*_):
            raise UnhealthyError("h1: no agent is connected")

        async def forget(*_):
            return ProbeAnswer(())

        scene.agents["h1"].call, scene.agents["h2"].call = refuse, forget
        return await scene.paths.survey.check(checks, nics)

    found = run(play())
    assert {(check.pair[0], check.position): address for check, address in found.items()} == {
        ("h0/0", 0): "leaf-h0",
        ("h0/0", 1): "s1",
    }


def test_a_job_that_has_ended_leaves_its_paths_to_others():
    """Its flows are live no longer, and a rank that waits for guidance about them is told; other jobs' flows stay."""

    async def play():
        scene = Scene()
        await scene.paths.learn(PlannedFabric(HOSTS, PORTS))
        other = Flow("k/k:data/1>3/0.0", "k", "h1/0", "h3/0", 1e10)
        (port,) = await scene.paths.route(Route("j", (flow(0, 2),)))
        await scene.paths.route(Route("k", (other,)))
        request = asyncio.create_task(scene.paths.follow(FollowGuidance("j", (flow(0, 2),), (port,), (1.0,))))
        await asyncio.sleep(0.01)
        await scene.paths.forget("j")
        await asyncio.wait([request], timeout=5)
        return scene.paths.controller.pairs(), request.exception()

    pairs, error = run(play())
    assert list(pairs) == [("h1/0", "h3/0")]
    assert isinstance(error, UnhealthyError)
