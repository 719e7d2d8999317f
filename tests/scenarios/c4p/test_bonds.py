"""NICs that are bonds of two ports on two leaves: C4P keeps planes apart and both ports level, ECMP does neither."""

import pytest
from drawn_jobs import draws_job, qps_of

from c4bench.report.statistics import mean_interval, ratio_interval
from c4bench.verbs.mlx5 import leaving_port
from c4bench.wire.messages import Meeting

SIZE_BYTES = 16 << 20
# C4P chooses the number of QPs, and ECMP has as many.
PLANNED, ECMP = ROUNDS = ("planned/0", "ecmp/same")
DRAWS = 8


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
@pytest.mark.parametrize("jobs", [1, 4, 8])
def test_both_ports_of_a_bond_are_level(
    jobs, cluster, rdma_hosts, atlas, pairs_across, optimum_bps, of_optimum, switches, measure
):
    """Planned, both ports of a bond send and receive alike, and the worst job gets its optimum; with ECMP neither."""
    if not all(len(host.nics[0].bond) == 2 for host in rdma_hosts):
        pytest.skip("no-bonds: these hosts' NICs are not bonds of two ports; try --c4-topology bonds-2")
    if not switches.any:
        pytest.skip("no-switches: the inventory names no switches, whose counters show what a port carries")
    pairs = jobs_pairs(pairs_across(min(jobs, len(rdma_hosts) // 2)), jobs)
    # The jobs' ranks, and this test, which reads the switches' counters in between.
    meeting = Meeting(f"bonds{jobs}", 2 * jobs + 1)
    sizes = {"size_bytes": SIZE_BYTES, "warm_up_bytes": SIZE_BYTES // 4}
    specs = [draws_job(meeting, number, pair, ROUNDS * DRAWS, **sizes) for number, pair in enumerate(pairs)]
    running = [cluster.start(spec) for spec in specs]
    busy = {host.nics[0].name: ports_of(atlas, host.nics[0].name) for pair in pairs for host in pair}
    ways = spine_ports(atlas, pairs, switches.ports())
    skews, crossed_bytes = counted_draws(cluster, meeting, switches, busy, ways)
    results = [cluster.results(one, "draw", 60.0, each=len(ROUNDS) * DRAWS) for one in running]
    qps = qps_of(cluster, running, ROUNDS.index(PLANNED))
    for one in running:
        cluster.stop(one.spec.id)

    best_bps = optimum_bps(pairs)
    rates = {paths: by_draw(results, start) for start, paths in enumerate(ROUNDS)}
    worst = [of_optimum(min(draw), best_bps) for draw in rates[PLANNED]]
    share = mean_interval(worst)
    gain = ratio_interval(*([sum(draw) / jobs for draw in rates[paths]] for paths in (PLANNED, ECMP)), seed=1)
    labels = {"jobs": jobs, "draws": DRAWS, "fabric": "bonds"}
    for paths, limits in ((PLANNED, {"equals": 0}), (ECMP, {"at_least": 1})):
        # In the data of a QP: acknowledgements are hashed, and are a thousandth of it.
        crossings = round(crossed_bytes[paths] / DRAWS / (SIZE_BYTES / qps))
        measure("c4p.plane_crossings", crossings, paths=paths.partition("/")[0], **limits, **labels)
    for direction in ("tx", "rx"):
        measure(
            "c4p.plane_skew",
            max(skews[PLANNED][direction]),
            at_most=0.02,
            paths="planned",
            direction=direction,
            **labels,
        )
        hashed = sum(skews[ECMP][direction]) / DRAWS
        measure("c4p.plane_skew", hashed, at_least=0.1, paths="ecmp", direction=direction, **labels)
    measure(
        "c4p.optimum_fraction",
        share.mean,
        at_least=0.98,
        paths="planned",
        qps=qps,
        low=round(share.low, 4),
        high=round(share.high, 4),
        worst=round(min(worst), 4),
        **labels,
    )
    interval = {key: round(value, 4) for key, value in gain._asdict().items()}
    measure("c4p.gain_over_ecmp", gain.mean, at_least=1.0, qps="same", **labels, **interval)
    assert gain.low > 1.0, "the plan's gain over ECMP with as many QPs is within the noise of the draws"


def counted_draws(cluster, meeting, switches, busy, ways):
    """The skews of ports and the bytes between planes by kind of paths, over all draws of the jobs that meet."""
    skews = {paths: {"tx": [], "rx": []} for paths in ROUNDS}
    crossed_bytes = dict.fromkeys(ROUNDS, 0.0)
    for number in range(len(ROUNDS) * DRAWS):
        for moment in ("free", "open", "draw"):
            cluster.meet(meeting.name, f"{moment}{number}")
        before = switches.ports()
        cluster.meet(meeting.name, f"end{number}")
        after = switches.ports()
        crossed_bytes[ROUNDS[number % len(ROUNDS)]] += crossing_bytes(ways, before, after)
        for direction, worst in worst_skews(busy, before, after).items():
            skews[ROUNDS[number % len(ROUNDS)]][direction].append(worst)
    return skews, crossed_bytes


def jobs_pairs(pairs, jobs):
    """A pair of hosts for each job: these disjoint ones, then the same hosts with other partners."""
    others = [(first, pairs[(number + 1) % len(pairs)][1]) for number, (first, _) in enumerate(pairs)]
    return [*pairs, *others][:jobs]


def ports_of(atlas, nic):
    """The switch ports that a bond is cabled to: the first hops of its paths."""
    hops = {path.hops[0] for source, other in atlas.pairs if source == nic for path in atlas.paths(source, other)}
    assert len(hops) == 2, f"{nic} was seen to send to {sorted(hops)}"
    return sorted(hops)


def spine_ports(atlas, pairs, ports):
    """By direction and spine: the spine's ports towards the source's leaf in each plane, and towards the destination's.

    A plane is the number of the port by which a bond sends; each port has a leaf of its own.
    """
    ways = {}
    for number, ends in enumerate((pairs, [pair[::-1] for pair in pairs])):
        for source, destination in ((a.nics[0], b.nics[0]) for a, b in ends):
            for side, (near, far) in enumerate(((source, destination), (destination, source))):
                for path in atlas.paths(near.name, far.name):
                    plane = near.bond.index(leaving_port(near.bond, near.address, far.address, path.source_port))
                    at_spine = path.hops[1]
                    ways.setdefault((number, ports[at_spine].switch), ({}, {}))[side][plane] = at_spine
    return ways


def crossing_bytes(ways, before, after):
    """The bytes that spines received from a plane and did not send to it, at least: crossings both ways cancel out."""
    crossed = 0
    for sources, destinations in ways.values():
        received = {p: after[hop].received_bytes - before[hop].received_bytes for p, hop in sources.items()}
        sent = {p: after[hop].sent_bytes - before[hop].sent_bytes for p, hop in destinations.items()}
        crossed += max(received[p] - sent[p] for p in sources)
    return crossed


def worst_skews(busy, before, after):
    """What one port of a bond has sent, and received, more than the other, relative to their mean: the worst bond's."""
    skews = {"tx": [], "rx": []}
    for ports in busy.values():
        sent = [after[hop].received_bytes - before[hop].received_bytes for hop in ports]
        received = [after[hop].sent_bytes - before[hop].sent_bytes for hop in ports]
        for direction, (first, second) in (("tx", sent), ("rx", received)):
            skews[direction].append(abs(first - second) / (first + second) * 2)
    return {direction: max(values) for direction, values in skews.items()}


def by_draw(results, start):
    """Each job's bus bandwidth in every second draw: bits over the slower rank's time."""
    draws = []
    for number in range(start, len(ROUNDS) * DRAWS, len(ROUNDS)):
        took_s = [max(rank["took_s"] for rank in ranks if rank["number"] == number) for ranks in results]
        draws.append([SIZE_BYTES * 8 / slowest_s for slowest_s in took_s])
    return draws


@pytest.mark.needs(hosts=4)
def test_source_ports_leave_by_the_port_that_is_computed_for_them(rdma_hosts, atlas, measure):
    """Each port of a bond leads to a leaf of its own: the first switch that probes find is the computed port's."""
    nics = [host.nics[0] for host in rdma_hosts]
    if not all(len(nic.bond) == 2 for nic in nics):
        pytest.skip("no-bonds: these hosts' NICs are not bonds of two ports; try --c4-topology bonds-2")
    right = 0
    for nic in nics:
        leaves = {port: set() for port in nic.bond}
        for far in nics:
            for path in atlas.paths(nic.name, far.name):
                leaves[leaving_port(nic.bond, nic.address, far.address, path.source_port)].add(path.hops[0])
        right += all(len(found) == 1 for found in leaves.values()) and len(set.union(*leaves.values())) == len(nic.bond)
    measure("c4p.bond_port_fraction", right / len(nics), equals=1)
