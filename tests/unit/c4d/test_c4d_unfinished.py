"""What has not ended has cost something already."""

import msgspec
import pytest
from c4d_telemetry import comm, conn, file

from c4bench.c4d.observe.clocks import HostClocks
from c4bench.c4d.observe.delay_matrix import in_flight_costs
from c4bench.c4d.observe.job_view import JobView

# The host's clock is ahead of the master's.
AHEAD_S, NOW_S, SINCE_S = 5.0, 20.0, 19.2
CELL, OTHER = ("h0/0", "h1/0", "49152"), ("h0/0", "h2/0", "49152")


def costs(*conns):
    """The least costs of these connections, as their host reported them at `NOW_S` on its own clock."""
    job, clocks = JobView("job"), HostClocks()
    job.add_comm(comm(3))
    file(job, NOW_S, conns=conns)
    clocks.arrived("h0", NOW_S - 0.1, NOW_S)
    clocks.observe(NOW_S - AHEAD_S)
    return in_flight_costs(job, clocks, {CELL: 1000.0, OTHER: 1000.0})


def under_way(peer, messages, *, since_s=SINCE_S, progress_s=0.0):
    """So many messages to a peer, unacknowledged since then."""
    known = conn(0, peer, messages=5, outstanding=messages, progress_s=progress_s)
    return msgspec.structs.replace(known, state="transfer", state_since_s=since_s)


def test_what_is_under_way_costs_the_time_since_anything_was_acknowledged():
    """It may take longer yet, and each byte of it has taken that long at least."""
    assert costs(under_way(1, 4)) == {CELL: pytest.approx(0.8 / 4000)}
    assert costs(under_way(1, 4, progress_s=19.6)) == {CELL: pytest.approx(0.4 / 4000)}


def test_connections_of_one_rank_may_have_shared_the_nics_time():
    """What one of them has cost alone is at least its part of that, whether or not the others are in transfer now."""
    assert costs(under_way(1, 4), conn(0, 2, messages=5)) == {CELL: pytest.approx(0.8 / 2 / 4000)}


def test_a_way_that_is_idle_has_cost_nothing():
    """Who waits for data or credit has nothing under way."""
    assert costs(conn(0, 1, messages=5)) == {}
