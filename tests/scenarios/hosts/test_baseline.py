"""Before anything is broken: every pair of NICs gets what it should, or the part that is already bad is named."""

import math

import pytest

from c4bench.c4d.act.pre_run_suspects import find_suspects
from c4bench.c4d.act.sweep import tournament
from c4bench.c4p.placement.planner import Planner
from c4bench.model.fabric import Flow
from c4bench.model.measurement import Clock
from c4bench.record.artefacts import DelayMatrices, DelayMatrix
from c4bench.units import payload_bound
from c4bench.workload.jobs import job
from c4bench.workload.pairs import PairResult

HOSTS_AT_LEAST = 4
# Of what is typical: paths are planned, so that nothing but a bad part makes a difference.
SLOWER, LATER = 1.1, 1.5
# A small write and its acknowledgement through one switch take NICs about 2 us. What is less is the processors' own
# time, and a part of a fabric cannot be told from it.
ROUND_TRIP_AT_LEAST_S = 2e-6


@pytest.fixture
def survey(cluster, rdma_hosts, atlas, request):
    """Runs all pairs: what each came to, by cell."""

    def run():
        steps = planned_steps(rdma_hosts, atlas)
        spec = job(f"pairs-{request.node.name}", "pairs", rdma_hosts, seed=1, steps=steps)
        results = cluster.results(cluster.start(spec), "pairs", 600.0)
        cluster.stop(spec.id)
        found = [PairResult(**one) for result in results for one in result["found"]]
        return {(one.source, one.destination): one for one in found}

    return run


@pytest.mark.needs(hosts=HOSTS_AT_LEAST)
def test_every_pair_gets_what_it_should(survey, rdma_hosts, inventory, atlas, measure, save):
    """No NIC, side of a NIC or path is slower or later than the others of its kind."""
    found = survey()
    save("delay_matrix", DelayMatrices((matrix(found),)))
    bounds = {nic.name: payload_bound(nic.rate_bps) for host in rdma_hosts for nic in host.nics}
    fractions = [one.rate_bps / min(bounds[one.source], bounds[one.destination]) for one in found.values()]
    measure("baseline.worst_bandwidth_fraction", min(fractions), at_least=0.9, unit="1", pairs=len(found))
    measure("baseline.worst_round_trip_s", max(one.round_trip_s for one in found.values()), unit="s", pairs=len(found))
    bad = already_bad(found, atlas)
    assert bad == [], "; ".join(f"{suspect}{plugged(suspect, inventory)}" for suspect in bad)
    measure("baseline.suspects", len(bad), equals=0, clock=Clock.NONE, pairs=len(found))


@pytest.mark.needs(hosts=HOSTS_AT_LEAST)
def test_a_port_that_is_bad_already_is_found(survey, rdma_hosts, atlas, inject, measure):
    """A NIC that receives at half its rate is named by the survey of all pairs, as the receiving side, alone."""
    victim = rdma_hosts[1].nics[0]
    with inject("nic.rate", host=victim.host, nic=victim.index, direction="rx", fraction=0.5, lease_s=120.0):
        bad = already_bad(survey(), atlas)
    right = [suspect.component for suspect in bad if suspect.kind == "time a byte"] == [f"nic {victim.name} (rx)"]
    measure("baseline.named_fraction", float(right), equals=1, clock=Clock.NONE)
    assert right, "; ".join(map(str, bad)) or "nobody was named"


def planned_steps(hosts, atlas):
    """Rounds of pairs in every plane, each round's paths planned together, so that no two share a link needlessly."""
    by_name = {host.name: host for host in hosts}
    planes = sorted({nic.plane for host in hosts for nic in host.nics})
    steps = []
    for plane in planes:
        nic_of = {name: next((nic for nic in host.nics if nic.plane == plane), None) for name, host in by_name.items()}
        rounds = tournament([name for name, nic in nic_of.items() if nic])
        steps += [_planned([(nic_of[a], nic_of[b]) for a, b in pairs], atlas) for pairs in rounds]
    return steps


def _planned(pairs, atlas):
    flows = tuple(Flow(f"{a.name}>{b.name}", "pairs", a.name, b.name, a.rate_bps) for a, b in pairs)
    planner = Planner(atlas)
    planner.add(flows)
    ports = {placed.flow: placed.path.source_port for placed in planner.assignments()}
    return [{"source": flow.source, "destination": flow.destination, "source_port": ports[flow.id]} for flow in flows]


def already_bad(found, atlas):
    """Suspects by bandwidth and by latency."""
    slow = {cell: 1 / one.rate_bps if one.rate_bps else math.inf for cell, one in found.items()}
    late = {
        cell: max(one.round_trip_s, ROUND_TRIP_AT_LEAST_S) if one.rate_bps else math.inf for cell, one in found.items()
    }

    def hops(cell):
        return min(len(path.hops) for path in atlas.paths(*cell))

    return find_suspects("time a byte", slow, times=SLOWER) + find_suspects("round trip", late, times=LATER, group=hops)


def plugged(suspect, inventory):
    """Which switch ports the suspect's NICs are plugged into, where the inventory says so."""
    ports = {
        f"{host.name}/{nic.index}": facts.leaf
        for host in inventory.hosts
        for nic, facts in zip(host.nics, inventory.facts[host.name].nics, strict=True)
    }
    leaves = [f"{name} is plugged into {leaf}" for name, leaf in ports.items() if leaf and name in suspect.component]
    return f" ({', '.join(leaves)})" if leaves else ""


def matrix(found):
    """Time a byte, as the report draws it."""
    nics = tuple(sorted({name for cell in found for name in cell}))
    cells = tuple(
        tuple(8 / one.rate_bps if (one := found.get((a, b))) and one.rate_bps else None for b in nics) for a in nics
    )
    return DelayMatrix("all pairs, before anything", nics, cells)
