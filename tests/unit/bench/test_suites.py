"""What is measured where, and against which limits."""

from itertools import chain

import msgspec
import pytest

from c4bench.bench import suites
from c4bench.bench.suites import CollectiveCase, LinkCase, LoadCase, Stage

MIB = 1 << 20


def stages(*, quick=False):
    return [
        *suites.link(quick=quick),
        *suites.perftest(quick=quick),
        *suites.collectives(quick=quick),
        *suites.recorder(quick=quick),
        *suites.lab(quick=quick),
    ]


def cases(kind, **rest):
    return [(stage.topology, case) for stage in stages(**rest) for case in stage.cases if isinstance(case, kind)]


@pytest.mark.parametrize("quick", [False, True])
def test_every_stage_is_a_lab_that_can_be_built(quick):
    """Each fabric has the hosts its cases want, and survives the way into the lab."""
    for stage in stages(quick=quick):
        wanted = [case.hosts for case in stage.cases if isinstance(case, CollectiveCase)]
        assert max(wanted, default=2) <= len(stage.topology.hosts)
        assert msgspec.json.decode(msgspec.json.encode(stage), type=Stage) == stage


def test_a_link_is_measured_from_4_kib_to_64_mib_at_three_rates():
    """The sizes and rates the full suite covers."""
    found = cases(LinkCase)
    assert sorted(fabric.nic_rate_bps for fabric, _ in found) == [1e10, 2.5e10, 1e11]
    assert all((case.sizes_bytes[0], case.sizes_bytes[-1]) == (4 << 10, 64 * MIB) for _, case in found)


def test_limits_stand_where_they_are_promised():
    """All-reduce and all-to-all over eight hosts, with one NIC at 10 and 100 Gbit/s and with four at 25 Gbit/s."""
    limits = {
        (case.collective, len(fabric.hosts[0].nics), fabric.nic_rate_bps): (case.hosts, case.at_least)
        for fabric, case in cases(CollectiveCase)
        if case.at_least is not None
    }
    assert limits == {
        ("all_reduce", 1, 1e10): (8, 0.985),
        ("all_reduce", 1, 1e11): (8, 0.985),
        ("all_reduce", 4, 2.5e10): (8, 0.97),
        ("all_to_all", 1, 1e10): (8, 0.95),
        ("all_to_all", 1, 1e11): (8, 0.95),
        ("all_to_all", 4, 2.5e10): (8, 0.95),
    }
    assert {case.collective for _, case in cases(CollectiveCase)} == set(suites.COLLECTIVES)


def test_labs_are_shared_but_for_loads():
    """Merging keeps every case, boots a fabric once for each clock, and gives each load its own lab."""
    before = stages()
    after = suites.merged(before)
    assert sorted(map(repr, chain.from_iterable(stage.cases for stage in after))) == sorted(
        map(repr, chain.from_iterable(stage.cases for stage in before))
    )
    loads = [stage for stage in after if any(isinstance(case, LoadCase) for case in stage.cases)]
    assert all(len(stage.cases) == 1 for stage in loads)
    others = [(stage.topology.name, stage.virtual) for stage in after if stage not in loads]
    assert len(others) == len(set(others)) < len(before) - len(loads)
