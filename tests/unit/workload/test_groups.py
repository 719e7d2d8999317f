"""Jobs of groups, and benign noise."""

import pytest

from c4bench.errors import UsageError
from c4bench.model.fabric import Host, Nic
from c4bench.model.step import RankGroup
from c4bench.workload.groups import BenignNoise, call_of
from c4bench.workload.jobs import STEPS, traffic_job

HOSTS = [Host(f"h{i}", "", (Nic(f"h{i}", 0, f"rxe{i}", "eth0", f"10.0.0.{i}", 1e10),)) for i in range(8)]


def test_no_two_ranks_of_a_group_share_a_host():
    """Sixteen ranks run two on a host, and every communicator crosses the fabric."""
    job = traffic_job("job", "groups", HOSTS, seed=1)
    assert len(job.members) == 16
    assert len(job.nics) == 8
    for group in {op.group for op in STEPS["groups"]}:
        for first in {group.first(rank) for rank in range(16)}:
            hosts = [job.members[rank].host for rank in range(16) if group.first(rank) == first]
            assert len(hosts) == len(set(hosts)) == group.size


def test_groups_number_their_ranks():
    """A data group of four, two apart: ranks 1, 3, 5, 7, and then 9 and on."""
    group = RankGroup("data", 4, 2)
    assert [rank for rank in range(16) if group.first(rank) == 9] == [9, 11, 13, 15]
    assert [group.index_of(rank) for rank in (9, 11, 13, 15)] == [0, 1, 2, 3]


def test_unknown_collective_is_refused():
    """A step with an unsupported operation is a usage error."""
    with pytest.raises(UsageError, match="all_reduce"):
        call_of("all_to_some", None, 4096)


def test_unrest_is_the_same_for_all_and_never_a_fault():
    """Ranks agree on what happens; pauses hit all ranks, stalls one rank at a time, and none lasts a second."""
    ranks = [BenignNoise(7, rank, 8, 0.1) for rank in range(8)]
    steps = [[rank.step() for rank in ranks] for _ in range(2000)]
    waiting = [[step.wait_s for step in row if step.wait_s] for row in steps]
    assert {len(waits) for waits in waiting} == {0, 1, 8}
    assert max(max(waits, default=0.0) for waits in waiting) < 1.0
    assert {round(row[0].factor, 1) for row in steps[:20]} >= {0.6, 1.4, 4.2}
