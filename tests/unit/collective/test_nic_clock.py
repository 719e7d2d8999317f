"""A NIC's time is shared among the connections that it carries at once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from c4bench.collective.recorder import Recorder
from c4bench.collective.ring_layout import ConnName
from c4bench.collective.ring_reader import read_telemetry_file
from c4bench.model.telemetry import CommRecord, Member

_MEMBERS = tuple(Member(rank, f"h{rank}", (f"h{rank}/0", f"h{rank}/1")) for rank in range(4))
_SECOND = 10**9


def _recorded(tmp_path, changes, nics=("h0/0",) * 3):
    """What connections of rank 0 to three others have recorded: `changes` are (time in s, peer, outstanding)."""
    with Recorder(tmp_path / "r", "job", 0) as recorder:
        index = recorder.communicator(CommRecord("dp", "job", _MEMBERS), 0)
        conns = [recorder.connection(ConnName(index, 1 + n, nic, f"h{1 + n}/0", n), 0, 0) for n, nic in enumerate(nics)]
        for at_s, peer, outstanding in changes:
            conns[peer].set_state("transfer" if outstanding else "idle", outstanding, 0, round(at_s * _SECOND))
        return read_telemetry_file(tmp_path / "r").conns


def test_transfers_that_wait_for_each_other_share_the_time(tmp_path):
    """One connection gets all of a NIC's time, two get half each, and another NIC's connection gets none."""
    changes = [(1, 0, 1), (3, 1, 1), (3, 2, 1), (7, 0, 0), (8, 1, 0), (9, 2, 0)]
    one, two, elsewhere = _recorded(tmp_path, changes, ("h0/0", "h0/0", "h0/1"))
    assert (one.transfer_s, one.shared_s) == (6.0, 2 + 4 / 2)
    assert (two.transfer_s, two.shared_s) == (5.0, 4 / 2 + 1)
    assert (elsewhere.transfer_s, elsewhere.shared_s) == (6.0, 6.0)


def test_shares_are_told_while_a_transfer_goes_on(tmp_path):
    """A connection that is always in transfer publishes its share with every message."""
    conn, *_ = _recorded(tmp_path, [(1, 0, 4), (2, 0, 3), (5, 0, 4)])
    assert (conn.transfer_s, conn.shared_s) == (0.0, 4.0)


@settings(max_examples=examples(25, 100))
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=30))
def test_shares_add_up_to_the_time_that_the_nic_was_busy(tmp_path_factory, steps):
    """The shares of any set of transfers sum to the NIC's busy time."""
    changes = [(at_s, peer, outstanding) for at_s, (peer, outstanding) in enumerate(steps)]
    changes += [(len(steps), peer, 0) for peer in range(3)]
    in_flight, busy_s = [0, 0, 0], 0
    for _, peer, outstanding in changes[: len(steps)]:
        in_flight[peer] = outstanding
        busy_s += any(in_flight)
    shares = [conn.shared_s for conn in _recorded(tmp_path_factory.mktemp("rings"), changes)]
    assert sum(shares) == pytest.approx(busy_s, abs=1e-8)
