"""Training programs that leave the number of QPs to C4P: how many they get, and where their data goes."""

import time

import pytest

from c4bench.control.paths.switches import carried_bytes
from c4bench.model.measurement import Clock
from c4bench.model.qp_address import QpAddress
from c4bench.workload.checkpoint import RESUMED
from c4bench.workload.jobs import job

MIB = 1 << 20
PROGRAMS = {
    "training": ("ready", {"gradient_bytes": 8 * MIB, "token_bytes": MIB, "compute_s": 0.04}),
    "learning": (
        RESUMED,
        {"gradient_bytes": 8 * MIB, "token_bytes": MIB, "compute_s": 0.04, "start_s": 0.0, "state_bytes": MIB},
    ),
}
COUNTED_S = 1.0
# What C4P gives a connection whose links are as fast as its NICs.
USUAL = 4


@pytest.mark.needs(hosts=8)
@pytest.mark.parametrize("program", ["learning", pytest.param("training", marks=pytest.mark.nightly)])
def test_a_program_leaves_the_number_of_qps_to_c4p(program, cluster, atlas, pairs_across, switches, measure, tmp_path):
    """With `qps=0` each connection has 4 QPs over the thinnest link's fraction of the NIC; data goes where planned."""
    if not switches.any:
        pytest.skip("no-switches: the inventory names no switches, whose counters show where data goes")
    (pair,) = pairs_across(1)
    started, parameters = PROGRAMS[program]
    if program == "learning":
        parameters = parameters | {"checkpoints": str(tmp_path), "checkpoint_every": 1 << 30}
    running = cluster.start(job(f"qps-{program}", program, pair, seed=1, qps=0, **parameters))
    cluster.results(running, started, 60.0)
    time.sleep(COUNTED_S)
    before = switches.ports()
    time.sleep(COUNTED_S)
    carried = carried_bytes(before, switches.ports())
    placed = cluster.placed(running.spec.id)
    cluster.stop(running.spec.id)

    ports = switches.ports()
    ends = [(pair[0].nics[0].name, pair[1].nics[0].name), (pair[1].nics[0].name, pair[0].nics[0].name)]
    links = {
        hop for source, target in ends for path in atlas.paths(source, target) for hop in path.hops if hop in ports
    }
    thinnest = min(1.0, min(ports[hop].rate_bps for hop in links) / pair[0].nics[0].rate_bps)
    counts = {}
    for flow in placed:
        key = QpAddress.parse(flow).connection
        counts[key] = counts.get(key, 0) + 1
    labels = {"program": program, "connections": len(counts)}
    measure("c4p.qps", max(counts.values()), equals=round(USUAL / thinnest), clock=Clock.NONE, **labels)
    assert set(counts.values()) == {round(USUAL / thinnest)}
    fraction = as_planned(placed, carried, links)
    measure("paths.as_planned_fraction", fraction, at_least=0.97 if thinnest == 1 else None, clock=Clock.NONE, **labels)


def as_planned(placed, carried, links):
    """The share of the data that these links carry as they do when all QPs of a connection carry alike."""
    planned = dict.fromkeys(sorted(links), 0)
    for path in placed.values():
        for hop in links.intersection(path.hops):
            planned[hop] += 1
    total, carried_total = sum(planned.values()), sum(carried.get(hop, 0) for hop in planned)
    return 1 - sum(abs(count / total - carried.get(hop, 0) / carried_total) for hop, count in planned.items()) / 2
