"""Whatever the switches hash: data goes where it is planned, or C4P says that no path can be chosen and plans none."""

import pytest
from crossing_pairs import crossing_pairs
from drawn_jobs import draws_job

from c4bench.control.paths.switches import carried_bytes
from c4bench.errors import PathsRefusedError
from c4bench.model.measurement import Clock
from c4bench.model.qp_address import QpAddress
from c4bench.units import FRAME_BYTES, PATH_MTU_BYTES
from c4bench.wire.messages import Meeting

SIZE_BYTES, OPERATIONS, DRAWS = 4 << 20, 4, 6
# Fewer than the spines of most fabrics, so that some links between switches carry nothing.
QPS = 3
# Shares of a flow's data: acknowledgements and grants of others, and an uneven share of few messages.
STRAY, FULL = 0.1, 0.5


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
def test_data_goes_where_it_is_planned_or_nothing_is_planned(
    cluster, rdma_hosts, learnt, switches, measure, pytestconfig
):
    """By the switches' counters; on a fabric without paths to choose, jobs run and nothing is claimed of them."""
    if not switches.any:
        pytest.skip("no-switches: the inventory names no switches, whose counters show where data goes")
    atlas, refusal = learnt
    pair = (rdma_hosts[0], rdma_hosts[-1]) if refusal else crossing_pairs(rdma_hosts, atlas)[0]
    meeting = Meeting("hashes", 3)
    sizes = {"size_bytes": SIZE_BYTES, "operations": OPERATIONS, "warm_up_bytes": 0, "profile": "patient"}
    running = cluster.start(draws_job(meeting, 0, pair, [f"planned/{QPS}"] * DRAWS, **sizes))
    right = []
    for number in range(DRAWS):
        for moment in ("free", "open", "draw"):
            cluster.meet(meeting.name, f"{moment}{number}")
        before = switches.ports()
        cluster.meet(meeting.name, f"end{number}")
        carried = carried_bytes(before, now := switches.ports())
        right.append(as_planned(placed_in(cluster, running, number), carried, now))
    cluster.results(running, "draw", 60.0, each=DRAWS)
    placed = cluster.placed(running.spec.id)
    cluster.stop(running.spec.id)
    labels = {"topology": pytestconfig.option.c4_topology, "draws": DRAWS}
    if refusal:
        assert refusal in cluster.remarks()
        measure("paths.planned", len(placed), equals=0, clock=Clock.NONE, **labels)
    else:
        measure("paths.as_planned_fraction", sum(right) / DRAWS, equals=1, clock=Clock.NONE, **labels)


@pytest.fixture
def learnt(cluster, hosts, switches):
    """The atlas, and "", or None and why no path can be chosen."""
    cluster.wait_hosts([host.name for host in hosts], 30.0)
    try:
        return cluster.learn_paths(read=switches.ports if switches.any else None), ""
    except PathsRefusedError as error:
        return None, str(error)


def placed_in(cluster, running, number):
    """The planned paths of a round's flows."""
    placed = cluster.placed(running.spec.id)
    return [path for flow, path in placed.items() if QpAddress.parse(flow).comm.endswith(f":draw{number}")]


def as_planned(paths, carried, ports):
    """Whether each link carries the data of the flows that are planned on it, and no other."""
    flow_bytes = SIZE_BYTES * OPERATIONS / QPS * FRAME_BYTES / PATH_MTU_BYTES
    flows = {hop: sum(hop in path.hops for path in paths) for hop in ports}
    return bool(paths) and all(
        FULL * count <= carried.get(hop, 0) / flow_bytes <= (count / FULL or STRAY) for hop, count in flows.items()
    )
