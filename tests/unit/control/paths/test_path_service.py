"""The path service, with agents that only answer probes."""

import asyncio
import time

import pytest
from msgspec.structs import replace
from path_scene import HOSTS, PORTS, Scene, flow, run

from c4bench.c4p.policy import PathPolicy
from c4bench.control.cluster import NO_FIXTURE
from c4bench.control.jobs.job import Job
from c4bench.control.pages.health import UnplannedFlows
from c4bench.control.paths.learning import PlannedFabric
from c4bench.control.paths.service import NO_INVENTORY, PathService
from c4bench.control.paths.switches import PortCount
from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.diagnosis import Component, Diagnosis, Syndrome
from c4bench.model.fabric import USUAL_QPS, Flow
from c4bench.wire.messages import ChooseQps, FollowGuidance, JobSpec, Release, Route


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
        "INFO 2 changes of paths or weights: diagnosis of link s0",
    ]


def test_flows_are_looked_up_again_when_they_or_their_paths_change():
    """A job is told its flows' paths when one begins, moves or ends, when paths are learnt, and at no other time."""

    async def play():
        scene = Scene()
        job = Job(JobSpec("j", "", (), ()))
        scene.paths = PathService({"j": job}, scene.agent)
        scene.paths.plan(PlannedFabric(HOSTS, PORTS))
        told = []
        place, job.place = job.place, lambda paths: (told.append(dict(paths)), place(paths))
        await scene.paths.route(Route("j", (flow(0, 2),)))
        began = told.pop()
        await scene.paths._apply_changes("nothing")
        assert not told
        await scene.paths.apply_diagnosis(blamed(began[flow(0, 2)].hops[1]))
        moved = told.pop()
        await scene.paths.learn(PlannedFabric(HOSTS, PORTS))
        learnt = told.pop()
        await scene.paths._apply_changes("nothing")
        await scene.paths.release(Release("j", (flow(0, 2).id,)))
        return began, moved, learnt, told

    def blamed(hop):
        return Diagnosis("j", Syndrome.COMMUNICATION_HANG, Component("link", hop), 0.0, 0.0, 0.0, 1.0, (), "")

    began, moved, learnt, ended = run(play())
    assert began[flow(0, 2)].hops != moved[flow(0, 2)].hops
    assert learnt == moved
    assert ended == [{}]


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


@pytest.mark.parametrize(
    ("parameters", "warned"),
    [({}, False), ({"paths": "ecmp"}, False), ({"paths": "planned"}, True), ({"rounds": ["ecmp", "planned/0"]}, True)],
)
def test_where_nothing_is_planned_only_a_job_that_asks_for_it_is_warned(caplog, parameters, warned):
    """Under pytest a program's default asks for nothing; a job that asks is told how a scenario gets its plan."""

    async def play():
        scene = Scene()
        job = Job(JobSpec("j", "training", (), (), parameters))
        scene.paths = PathService({"j": job}, scene.agent)
        scene.paths.requested.only_explicit(NO_FIXTURE)
        await scene.paths.route(Route("j", (flow(0, 2),)))
        alone = scene.paths.unplanned()
        scene.paths.plan(PlannedFabric(HOSTS[:2], PORTS))
        return alone, scene.paths.unplanned()

    alone, planned = run(play())
    assert alone == ({"j": UnplannedFlows(1, NO_FIXTURE)} if warned else {})
    assert planned["j"].reason == "the master's inventory has no NIC h2/0"
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == ([f"j: 1 flows asked for a path and run on ECMP: {NO_FIXTURE}"] if warned else [])


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
            readings.append(time.monotonic())
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
        return before, loads, readings[2] - readings[1]

    before, loads, apart_s = run(play())
    assert {load.carried_bps for load in before.values()} == {None}
    assert loads[2]["leaf-h0"].carried_bps == pytest.approx(1000 * 60 * 8 / apart_s, rel=0.3)
    assert loads[2]["leaf-h0"].offered_bps == 1e10
    assert loads[2]["s0-10.0.3.1"].offered_bps == 0
    assert loads[2]["s0-10.0.3.1"].carried_bps == pytest.approx(500 * 60 * 8 / apart_s, rel=0.3)
    assert "ssh" not in loads[2]  # no rate is known of it, and no flow crosses it
    assert {load.carried_bps for load in loads[3].values()} == {None}


def test_traffic_is_counted_for_those_who_look_only():
    """Counting for a page shows the traffic of each link, reading after reading, though nothing ingests it."""

    async def play():
        scene, readings = Scene(), []

        def read():
            readings.append(1)
            scene.agents["h0"].counts.update({"leaf-h0": 1000})
            return scene.read()

        scene.paths.plan(PlannedFabric(HOSTS, PORTS, read=read))
        await scene.paths.choose_qps(ChooseQps("j", (("h0/0", "h2/0"),)))  # reads which rates are known
        await scene.paths.route(Route("j", (flow(0, 2),)))
        readings.clear()
        running = asyncio.create_task(scene.paths.counted.watch(read, 0.05))
        while len(readings) < 4 and not running.done():
            await asyncio.sleep(0.01)
        running.cancel()
        return len(readings), scene.paths.link_loads()["leaf-h0"].carried_bps

    readings, carried_bps = run(play())
    assert readings >= 4
    assert carried_bps


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
