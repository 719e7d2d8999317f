"""How paths are learnt, with agents that only answer probes."""

import asyncio
import time

import pytest
from msgspec.structs import replace
from path_scene import HOSTS, PORTS, Scene, flow, run

from c4bench.c4p.controller import PathController
from c4bench.c4p.knowledge.atlas import Question
from c4bench.c4p.knowledge.path_search import MAX_SWITCHES
from c4bench.control.paths.learning import PathLearner, PlannedFabric
from c4bench.control.paths.survey import PathSurvey
from c4bench.control.paths.switches import PathCounter, PortCount, counted_hops
from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.fabric import HopAnswer
from c4bench.model.graph import FabricGraph, HostPort, Trunk
from c4bench.wire.messages import ChooseQps, Route
from c4bench.wire.probes import ProbeAnswer


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


@pytest.mark.parametrize("changed", [False, True])
def test_a_search_that_meets_a_link_again_begins_anew(changed):
    """When a spine that was gone answers, ports of earlier rounds may take other paths: all are traced again."""

    async def play():
        scene, pair, began = Scene(), ("h0/0", "h2/0"), []
        controller, survey = PathController(), PathSurvey(scene.agent)
        begin = controller.begin_learning
        controller.begin_learning = lambda *known, changed: began.append(changed) or begin(*known, changed=changed)
        learner = PathLearner(controller, survey, PlannedFabric(HOSTS, PORTS))
        await learner.learn([pair], wait=True)
        scene.spines.remove("s1")
        await learner.learn([pair], changed=True, wait=True)
        missing = controller.health.missing
        scene.spines.append("s1")
        await learner.learn([pair], changed=changed)
        return missing, controller.health.missing, began[2:]

    missing, then, began = run(play())
    assert missing == {"s1", "s1-10.0.2.1"}
    assert then == set()
    # After a change that is known nothing of earlier rounds counts anyway.
    assert began == ([True] if changed else [False, True])


def test_a_flow_waits_while_fewer_paths_are_known_than_before_a_change():
    """One spine is silent at first: a job that begins then would send all over the other."""

    async def play():
        scene, pair = Scene(), ("h0/0", "h2/0")
        controller, agent = PathController(), scene.agents["h0"]
        learner = PathLearner(controller, PathSurvey(scene.agent), PlannedFabric(HOSTS, PORTS))
        await learner.learn([pair], wait=True)
        answer = agent.answer
        agent.answer = lambda probe: HopAnswer() if probe.source_port % 2 else answer(probe)
        await learner.learn([pair], changed=True)
        lacking = controller.knowledge.lacks_paths(pair)
        asyncio.get_running_loop().call_soon(setattr, agent, "answer", answer)
        await learner.learn([pair])
        return lacking, {entry.hops[1] for entry in controller.knowledge.entries(pair).values()}

    assert run(play()) == (True, {"s0", "s1"})


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
        checks = [Question((f"h{number}/0", "h3/0"), 50001, position) for number in range(3) for position in (1, 0)]

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
