"""C4P while the fabric changes: an uplink fails and returns while jobs run."""

import time

import msgspec
import pytest

from c4bench.model.measurement import Clock
from c4bench.wire.messages import Meeting
from c4bench.workload.jobs import job

SIZE_BYTES = 16 << 20
STAGING_BYTES = 8 << 20
PERIOD_S = 0.2
# C4P moves connections once more when the last job has joined.
WARM_UP, BEFORE, DURING, AFTER = 2, 2, 10, 8
OPERATIONS = WARM_UP + BEFORE + DURING + AFTER
WITHIN_S = 1.0
MEETING = Meeting("steady", 17)  # the jobs' ranks and the test


@pytest.mark.nightly
@pytest.mark.needs(hosts=16)
def test_uplink_fails_and_returns(
    cluster, rdma_hosts, pairs_across, uplink, optimum_bps, inject, clocks, measure, pytestconfig
):
    """Within a second of the failure, and of the return, every job has its share of the uplinks that are up.

    Data that the leaf's hosts send crosses the link first; data that they receive crosses it last.
    """
    pairs = pairs_across(8)
    port, hops = uplink(pairs)
    best_bps, left_bps = optimum_bps(pairs), optimum_bps(pairs, hops)
    jobs = [cluster.start(steady(number, pair)) for number, pair in enumerate(pairs)]
    for running in jobs:
        cluster.results(running, "ready", 60.0)
    cluster.meet(MEETING.name, "start")
    time.sleep((WARM_UP + BEFORE) * PERIOD_S)
    with inject("link.down", at=port) as fault:
        time.sleep(DURING * PERIOD_S)
        up_s = time.time()
    cluster.meet(MEETING.name, "end")
    results = [cluster.results(running, "steady", 60.0) for running in jobs]
    named = [found.component for running in jobs for found in cluster.diagnoses(running.spec.id)]
    for running in jobs:
        cluster.stop(running.spec.id)
    down_s = fault.onset_s
    checked = sum(rank["exact"] for ranks in results for rank in ranks)
    measure("c4p.exact_fraction", checked / (16 * OPERATIONS), equals=1)
    # Whatever is slower because the link is missing is healthy; only the link itself may be named.
    measure("c4d.healthy_named", sum(one.kind != "link" for one in named), at_most=0, clock=Clock.NONE)

    full = by_job(results, best_bps, pairs, clocks)
    # An operation that ends after the return belongs to neither state.
    left = [
        (began_s, ended_s, share * best_bps / left_bps)
        for began_s, ended_s, share in full
        if down_s <= began_s < ended_s < up_s
    ]
    labels = {"topology": pytestconfig.option.c4_topology, "jobs": 8}
    for state, shares, at_least in (
        ("healthy", [share for began_s, _, share in full if began_s < down_s - PERIOD_S], 0.98),
        ("uplink down", [share for began_s, _, share in left if began_s >= down_s + WITHIN_S], 0.97),
        ("uplink back", [share for began_s, _, share in full if began_s >= up_s + WITHIN_S], 0.98),
    ):
        measure("c4p.optimum_fraction", min(shares), at_least=at_least, state=state, **labels)
    back = [operation for operation in full if operation[0] >= up_s]
    told_s = clocks.error_s(*(host.name for host in rdma_hosts))
    for event, since_s, shares, wanted, error_s in (
        ("down", down_s, left, 0.97, told_s + fault.clock_error_s),
        ("up", up_s, back, 0.98, told_s),
    ):
        took_s = level_after_s(shares, since_s, wanted)
        measure("c4p.converge_s", took_s, unit="s", at_most=WITHIN_S, plus_minus=error_s, event=event, **labels)


def by_job(results, best_bps, pairs, clocks):
    """For every operation of every job, when it began and ended and its slower rank's share of the optimum.

    Times are on our clock, in order: jobs get out of step with each other when an operation lasts longer than a tick.
    """
    operations = []
    for ranks, pair in zip(results, pairs, strict=True):
        for spans in zip(*(rank["spans"][WARM_UP:] for rank in ranks), strict=True):
            longest_s = max(ended_s - began_s for began_s, ended_s in spans)
            began_s = min(clocks.ours(host.name, began) for host, (began, _) in zip(pair, spans, strict=True))
            operations.append((began_s, began_s + longest_s, SIZE_BYTES * 8 / longest_s / best_bps))
    return sorted(operations)


def level_after_s(shares, since_s, wanted):
    """The time from `since_s` to the first operation from which on all had at least `wanted`."""
    low = [index for index, (*_, share) in enumerate(shares) if share < wanted]
    first = low[-1] + 1 if low else 0
    return shares[first][0] - since_s if first < len(shares) else float("inf")


def steady(number, pair):
    """The spec of job `number`: an all-reduce between two hosts under different leaves at every tick."""
    spec = job(
        f"steady{number}",
        "steady",
        pair,
        seed=1,
        size_bytes=SIZE_BYTES,
        operations=OPERATIONS,
        period_s=PERIOD_S,
        qps=4,
        staging_bytes=STAGING_BYTES,
    )
    return msgspec.structs.replace(spec, meeting=MEETING)
