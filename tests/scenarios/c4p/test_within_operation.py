"""A link becomes slow while an operation runs: QPs on other links carry more of that operation already."""

import time

import msgspec
import pytest

from c4bench.errors import InconclusiveError
from c4bench.wire.messages import Meeting
from c4bench.workload.jobs import job

SIZE_BYTES = 64 << 20
# What looks at the link before the fault first sends a train of packets, which no operation may meet: it would be lost,
# and waited for. So operations are not a divisor of that time apart.
PERIOD_S = 0.12
WARM_UP, OPERATIONS = 2, 30
# The link becomes slow when this part of an operation is over, or a little later.
PART, LATEST = 0.25, 0.5
FRACTION = 0.5
# How long it takes to inject the fault is known in the lab; elsewhere the first try shows it.
TRIES, FIRST_DELAY_S, SETTLE_S = 2, 0.305, 0.6
MEETING = Meeting("within", 3)  # the job's ranks and the test


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
@pytest.mark.parametrize("direction", ["rx", "tx"])
def test_the_operation_that_meets_a_slow_link_adapts(
    direction, cluster, pairs_across, atlas, switches, optimum_bps, inject, clocks, measure, pytestconfig
):
    """A link of a bond falls to half its rate in mid-operation: the rest of it goes as fast as is still possible."""
    if not switches.any:
        pytest.skip("no-switches: the inventory names no switches, whose ports could become slow")
    pair = pairs_across(1)[0]
    if not all(len(host.nics[0].bond) == 2 for host in pair):
        pytest.skip("no-bonds: a job's QPs share one link to its NIC; try --c4-topology bonds-2")
    place, hops = link_of(pair[0].nics[0].name, pair[1].nics[0].name, atlas, switches.ports())
    full_bps, left_bps = optimum_bps([pair]), optimum_bps([pair], slow={hops[direction]: FRACTION})
    operation_s = SIZE_BYTES * 8 / full_bps
    running = cluster.start(spec(pair))
    cluster.results(running, "ready", 60.0)
    cluster.meet(MEETING.name, "start")
    time.sleep((WARM_UP + 2) * PERIOD_S)
    onsets_s = slow_down(inject, {"at": place, "direction": direction, "fraction": FRACTION}, operation_s)
    cluster.meet(MEETING.name, "end")
    spans = operations(cluster.results(running, "steady", 60.0), pair, clocks)
    cluster.stop(running.spec.id)

    onset_s = onsets_s[-1]
    healthy_bps = min(SIZE_BYTES * 8 / (ended_s - began_s) for began_s, ended_s in spans if ended_s < onsets_s[0])
    hit = [(began_s, ended_s) for began_s, ended_s in spans if began_s < onset_s < began_s + LATEST * operation_s]
    if not hit:
        raise InconclusiveError(f"the link did not become slow early in an operation: {onsets_s}; run it again")
    ((began_s, ended_s),) = hit
    rest_bits = SIZE_BYTES * 8 - healthy_bps * (onset_s - began_s)
    labels = {"topology": pytestconfig.option.c4_topology, "left": FRACTION, "direction": direction}
    measure("c4p.optimum_fraction", healthy_bps / full_bps, at_least=0.98, state="before a link slows", **labels)
    measure("c4p.within_operation_fraction", rest_bits / (ended_s - onset_s) / left_bps, at_least=0.95, **labels)


def slow_down(inject, fault_parameters, operation_s):
    """Slow a link down soon after an operation has begun, in a few tries; when that was, on our clock."""
    delay_s, onsets_s = FIRST_DELAY_S, []
    for _ in range(TRIES):
        soonest_s = time.time() + delay_s
        aimed_s = soonest_s + (-soonest_s) % PERIOD_S + PART * operation_s
        time.sleep(aimed_s - delay_s - time.time())
        called_s = time.time()
        with inject("link.rate", **fault_parameters) as fault:
            time.sleep(PERIOD_S)
        onsets_s.append(fault.onset_s)
        if fault.onset_s % PERIOD_S < LATEST * operation_s:
            break
        delay_s = fault.onset_s - called_s
        time.sleep(SETTLE_S)
    return onsets_s


def link_of(nic, far, atlas, ports):
    """One of the two links of a bond: the port at its switch, and the hops of what this receives from it and sends."""
    by_switch = {ports[path.hops[0]].switch: path.hops[0] for path in atlas.paths(nic, far)}
    sent = min(path.hops[-1] for path in atlas.paths(far, nic))
    switch = sent.partition("@")[2]
    received = by_switch[switch]
    return f"{switch}/{ports[received].interface}", {"rx": received, "tx": sent}


def operations(results, pair, clocks):
    """When each operation began and ended, on our clock: the first rank's beginning, and the last one's end."""
    ranks = [
        [tuple(clocks.ours(host.name, moment_s) for moment_s in span) for span in rank["spans"][WARM_UP:]]
        for host, rank in zip(pair, results, strict=True)
    ]
    return [(min(began for began, _ in spans), max(ended for _, ended in spans)) for spans in zip(*ranks, strict=True)]


def spec(pair):
    """The spec of a job that all-reduces between two hosts at every tick, with as many QPs as C4P chooses."""
    sizes = {"size_bytes": SIZE_BYTES, "operations": OPERATIONS, "period_s": PERIOD_S}
    return msgspec.structs.replace(job("within", "steady", pair, seed=1, qps=0, **sizes), meeting=MEETING)
