"""C4P under perftest: on the paths of the plan beside those of ECMP, and moved while it runs."""

import time

import pytest
from drawn_jobs import draws_job

from c4bench.attach.environment import SOCKET
from c4bench.control.paths.switches import carried_bytes
from c4bench.model.measurement import Clock
from c4bench.report.statistics import ratio_interval
from c4bench.wire.messages import Meeting

BYTES, MESSAGES, QPS = 65536, 400, 4
# Both ways at once, as in an all-reduce of two ranks; each way the queue pairs carry alike.
PERFTEST = f"ib_write_bw -q {QPS} -d {{device}} -x {{gid}} -m 4096 -s {BYTES} --report_gbits -b -n {MESSAGES}".split()
# Each draw is two runs of it: with an agent, and without, on the paths of ECMP. Clients start at the same moments (ms).
PERIOD_S, AHEAD_S, READ_S = 1.5, 8.0, 0.2
NOBODY = f"{SOCKET}=/run/c4bench/nobody"
WAIT = (
    'left=$((at - $(date +%s%3N))); [ "$left" -lt 1 ] || sleep "$((left / 1000)).$(printf %03d $((left % 1000)))"; '
    f"at=$((at + {round(PERIOD_S * 1000)}))"
)
SERVER = f'for draw in $(seq "$0"); do "$@" && {NOBODY} "$@" || exit; done'
CLIENT = f'at=$1; shift; for draw in $(seq "$0"); do {WAIT}; "$@" || exit; {WAIT}; {NOBODY} "$@" || exit; done'
WITHIN_S = 60.0
ON_WIRE = 4154 / 4096
OWN_BYTES, OWN_OPERATIONS = 16 << 20, 2
# Long enough to be learnt, on links of 400 Mbit/s; what is queued lasts 42 ms on a link, and 105 ms on a slow one.
LONG = f"ib_write_bw -q {QPS} -d {{device}} -x {{gid}} -m 4096 -s 16384 -t 32 -Q 1 -D 11 --report_gbits"
LEARN_S, SETTLED_S = 4.5, 0.5
# Faults of a link, and how soon queue pairs must have left it (s).
FAULTS = {"link.down": ({}, 1.0), "link.rate": ({"direction": "tx", "fraction": 0.1}, 4.0)}


@pytest.fixture
def start(program, rdma_hosts):
    """Start perftest between the hosts of a pair, by the words of both ends."""
    if not program.has("ib_write_bw", rdma_hosts):
        pytest.skip("no-ib_write_bw: the hosts have none on PATH; install perftest")
    return lambda pair, client, server: program(client, server=server, hosts=pair)


@pytest.mark.needs(hosts=8)
@pytest.mark.nightly
@pytest.mark.parametrize("draws", [8])
def test_plan_beats_ecmp_under_perftest(
    draws, cluster, start, pairs_across, contended, optimum_bps, of_optimum, switches, measure
):
    """Four of perftest get the fabric's full bandwidth on the paths of the plan, and less on those that ECMP draws."""
    pairs = pairs_across(4)
    contended(pairs)
    began_s = time.time() + AHEAD_S
    client = ["sh", "-c", CLIENT, str(draws), str(round(began_s * 1000)), *PERFTEST, "{server}"]
    server = ["sh", "-c", SERVER, str(draws), *PERFTEST]
    ran = [start(pair, client, server) for pair in pairs]
    seen, right = set(), []
    for draw in range(draws):
        sleep_until(began_s + 2 * draw * PERIOD_S - READ_S)
        before = switches.ports()
        sleep_until(began_s + (2 * draw + 1) * PERIOD_S - READ_S)
        placed = {flow.id: path for one in ran for flow, path in cluster.placed(one.job).items()}
        new = [path for flow, path in placed.items() if flow not in seen]
        seen |= placed.keys()
        assert len(new) == 2 * len(pairs) * QPS
        right.append(as_planned(new, carried_bytes(before, switches.ports())))
    assert [one.wait(WITHIN_S) for one in ran] == [0] * len(ran)
    rates = [[figure.value / 2 for figure in one.figures] for one in ran]
    planned, ecmp = ([sum(draw) for draw in zip(*(own[first::2] for own in rates), strict=True)] for first in (0, 1))

    labels = {"program": "ib_write_bw", "jobs": len(pairs), "qps": QPS}
    worst = of_optimum(min(min(own[::2]) for own in rates), optimum_bps(pairs))
    measure("attach.optimum_fraction", worst, at_least=0.97, draws=draws, **labels)
    gain = ratio_interval(planned, ecmp, seed=1)
    interval = {key: round(value, 4) for key, value in gain._asdict().items()}
    measure("attach.gain_over_ecmp", gain.mean, at_least=1.0, seeds=draws, **labels, **interval)
    assert gain.low > 1.0, "the plan's gain over ECMP is within the noise of the draws"
    if switches.any:
        measure("attach.as_planned_fraction", min(right), equals=1, clock=Clock.NONE, **labels)
    ours = sum(own_bps(cluster, pairs))
    measure("attach.goodput_ratio", min(planned) / ours, at_least=0.99, beside="all-reduce", **labels)


@pytest.mark.needs(hosts=8)
@pytest.mark.nightly
@pytest.mark.parametrize("fault", FAULTS)
def test_queue_pairs_leave_a_link_that_fails(fault, cluster, start, pairs_across, ports, inject, switches, measure):
    """Perftest's move off a link that is down or slow, without waiting for its end; then all is on the new paths."""
    (pair,) = pairs_across(1)
    sender = pair[1].nics[0]
    ran = start(pair, f"{LONG} {{server}}", LONG)
    wait_for(lambda: len(used(cluster, ran.job, sender.name)) == QPS)
    time.sleep(LEARN_S)
    link = next(iter(placed(cluster, ran.job, sender.name).values())).hops[1]
    parameters, within_s = FAULTS[fault]
    with inject(fault, at=ports.leading[link], lease_s=20.0, **parameters) as broken:
        wanted = wait_for(lambda: crosses_none(paths := placed(cluster, ran.job, sender.name), link) and paths)
        planned_s = time.time()
        wait_for(lambda: used(cluster, ran.job, sender.name) == {path.source_port for path in wanted.values()})
        moved_s = time.time()
        time.sleep(SETTLED_S)  # what was sent before
        before, began_s = switches.ports(), time.time()
        time.sleep(SETTLED_S)
        carried, passed_s = carried_bytes(before, switches.ports()), time.time() - began_s
    assert ran.wait(WITHIN_S) == 0
    assert len(wanted) == QPS
    labels = {"program": "ib_write_bw", "fault": fault}
    measure("attach.move_s", moved_s - planned_s, unit="s", at_most=1.0, **labels)
    measure("c4p.converge_s", moved_s - broken.onset_s, unit="s", at_most=within_s, **labels)
    data = sum(carried[hop] for hop in {path.hops[1] for path in wanted.values()})
    measure("attach.left_behind", carried[link] / data, at_most=0.01, clock=Clock.NONE, **labels)
    measure("attach.goodput_ratio", 8 * data / passed_s / sender.rate_bps, at_least=0.98, moved="yes", **labels)


def placed(cluster, job, sender):
    """The paths of the queue pairs by which a NIC sends, as C4P plans them now."""
    present = cluster.placed(job) if job in cluster.parts.registry.jobs() else {}
    return {flow.id: path for flow, path in present.items() if flow.source == sender}


def crosses_none(paths, link):
    """Whether there are paths, and none crosses a link."""
    return paths and not any(link in path.hops for path in paths.values())


def used(cluster, job, sender):
    """The source ports by which a NIC's queue pairs send, as the newest telemetry has them."""
    if job not in cluster.parts.registry.jobs():
        return set()
    newest = next((window for window in reversed(cluster.windows(job)) if window.conns), None)
    conns = newest.conns if newest else ()
    return {conn.source_port for conn in conns if conn.source == sender and conn.outstanding}


def wait_for(found):
    """What a function finds at last."""
    until_s = time.monotonic() + WITHIN_S
    while not (value := found()):
        assert time.monotonic() < until_s
        time.sleep(0.02)
    return value


def sleep_until(moment_s):
    """Sleep until a moment of our clock."""
    time.sleep(max(0.0, moment_s - time.time()))


def own_bps(cluster, pairs):
    """Bus bandwidth of our own all-reduce between the hosts of each pair, all at once on planned paths."""
    meeting = Meeting("own", 2 * len(pairs) + 1)
    sizes = {"size_bytes": OWN_BYTES, "operations": OWN_OPERATIONS, "warm_up_bytes": OWN_BYTES}
    paths = [f"planned/{QPS}"]
    jobs = [cluster.start(draws_job(meeting, number, pair, paths, **sizes)) for number, pair in enumerate(pairs)]
    for moment in ("free0", "open0", "draw0", "end0"):
        cluster.meet(meeting.name, moment)
    found = [cluster.results(running, "draw", WITHIN_S) for running in jobs]
    for running in jobs:
        cluster.stop(running.spec.id)
    return [OWN_BYTES * 8 * OWN_OPERATIONS / max(rank["took_s"] for rank in ranks) for ranks in found]


def as_planned(placed, carried):
    """The share of queue pairs of which each link carried the bytes of just the queue pairs planned over it.

    Acknowledgements add half a percent; a queue pair on a wrong link is all of its own off.
    """
    sent = BYTES * MESSAGES * ON_WIRE
    expected = dict.fromkeys(carried, 0.0)
    for path in placed:
        expected |= {hop: expected[hop] + sent for hop in path.hops if hop in expected}
    near = {hop for hop, count in carried.items() if abs(count - expected[hop]) <= 0.1 * sent}
    return sum(near.issuperset(expected.keys() & path.hops) for path in placed) / len(placed)
