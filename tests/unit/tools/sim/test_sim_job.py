"""The simulator follows the arithmetic of the network and of telemetry."""

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c4bench.model.step import RankGroup, StepOp
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob

_RING = (StepOp("all_reduce", 8_000_000, 0.02),)
_SHIFT = (StepOp("all_to_all", 8_000_000, 0.02),)


def _windows(job, faults=(), duration_s=2.0):
    return [window for tick in simulate(job, faults, duration_s) for window in tick.windows]


def _ops(windows):
    """The newest record of each (rank, operation)."""
    return {(op.rank, op.seq): op for window in windows for op in window.ops}


def _last_conns(windows):
    return {(conn.rank, conn.peer): conn for window in windows for conn in window.conns}


def test_ring_takes_two_n_minus_one_steps_of_a_share():
    """An undisturbed ring over n ranks takes 2(n-1)/n of the payload at line rate."""
    ops = _ops(_windows(SimJob(8, _RING, jitter=0.0)))
    done = [op.finished_s - op.entered_s for op in ops.values() if op.finished_s > 0]
    assert done == pytest.approx([14 * 1_000_000 * 8 / 10e9] * len(done))


@pytest.mark.parametrize("granted", [True, False])
def test_shift_takes_n_minus_one_steps_of_a_share(granted):
    """A linear shift takes (n-1)/n of the payload at line rate, with credits or without."""
    ops = _ops(_windows(SimJob(8, _SHIFT, jitter=0.0, credits=granted)))
    done = [op.finished_s - op.entered_s for op in ops.values() if op.finished_s > 0]
    assert done == pytest.approx([7 * 1_000_000 * 8 / 10e9] * len(done))


@pytest.mark.parametrize(("side", "hit"), [("tx", 0), ("rx", 1)])
def test_nic_rate_stretches_only_its_own_transfers(side, hit):
    """With credits a NIC at a quarter rate makes transfers of its side four times as long per byte, and no others."""
    fault = SimFault(SimFaultKind.NIC_RATE, 3, 0.0, factor=0.25, side=side)
    conns = _last_conns(_windows(SimJob(6, _SHIFT), [fault]))
    for ends, conn in conns.items():
        factor = 4 if ends[hit] == 3 else 1
        assert conn.transfer_s == pytest.approx(factor * conn.size_bytes * 8 / 10e9, rel=0.1)


def test_same_seed_same_windows():
    """The same arguments give the same windows, and another seed gives others."""
    job = SimJob(5, _RING + _SHIFT, jitter=0.03, seed=9)
    assert _windows(job) == _windows(job)
    assert _windows(job) != _windows(msgspec.structs.replace(job, seed=10))


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 9), st.booleans(), st.integers(0, 99), st.sampled_from(SimFaultKind), st.floats(0.3, 1.5))
def test_counters_never_decrease(ranks, granted, seed, kind, at_s):
    """Under any fault cumulative counters only grow and times stay finite."""
    fault = SimFault(kind, ranks - 1, at_s, at_s + 0.3, factor=0.3, side="rx", peer=0)
    before = {}
    for window in _windows(SimJob(ranks, _RING + _SHIFT, credits=granted, seed=seed, exit_after_s=0.28), [fault]):
        for conn in window.conns:
            now = (conn.messages, conn.size_bytes, conn.wait_credit_s, conn.wait_data_s, conn.transfer_s)
            was = before.get((conn.rank, conn.peer), (0,) * 5)
            assert all(math.isfinite(new) and new >= old - 1e-9 for new, old in zip(now, was, strict=True))
            before[conn.rank, conn.peer] = now


def test_frozen_rank_writes_nothing_while_others_wait():
    """The records of a stopped rank do not change, and the waiting times of the others keep growing."""
    windows = _windows(SimJob(4, _RING), [SimFault(SimFaultKind.STOPPED, 2, 1.0)], 3.0)
    of = {rank: [w.conns for w in windows if w.host == f"h{rank}" and w.end_s > 1.5] for rank in range(4)}
    assert len(set(of[2])) == 1
    assert all(len(set(of[rank])) == len(of[rank]) for rank in (0, 1, 3))


def test_neighbour_of_a_killed_rank_exits_later():
    """The sender to a killed rank exits with an error only after the transport's timeout."""
    job = SimJob(4, _RING, exit_after_s=0.28)
    windows = _windows(job, [SimFault(SimFaultKind.KILLED, 2, 1.01)], 2.0)
    states = {}
    for window in windows:
        for record in window.ranks:
            states.setdefault((record.rank, record.state), window.end_s)
    assert states[2, "killed"] == pytest.approx(1.1)
    assert 1.01 + 0.28 <= states[1, "exited"] <= 1.41
    assert (0, "exited") not in states


def test_clock_offsets_shift_a_hosts_times():
    """A host's clock offset shifts the times of its windows and operations, but no durations."""
    plain = _ops(_windows(SimJob(3, _RING)))
    moved = _ops(_windows(SimJob(3, _RING, clock_offsets_s=(0.0, 5.0, 50.0))))
    for (rank, seq), op in plain.items():
        offset_s = (0.0, 5.0, 50.0)[rank]
        assert moved[rank, seq].entered_s == pytest.approx(op.entered_s + offset_s)


_TENSOR, _DATA = RankGroup("tensor", 2, 1), RankGroup("data", 3, 2)
_GROUPS = (StepOp("all_gather", 4_000_000, 0.01, _TENSOR), StepOp("all_reduce", 6_000_000, 0.02, _DATA))


def test_groups_number_their_members_and_keep_to_themselves():
    """A rank is in one communicator of each group, numbered within it, and sends to no other."""
    windows = _windows(SimJob(6, _GROUPS, ranks_per_host=2))
    comms = {record.comm: record for window in windows for record in window.comms}
    assert sorted(comms) == ["job.data.0", "job.data.1"] + [f"job.tensor.{number}" for number in range(3)]
    assert [member.nics for member in comms["job.data.1"].members] == [("h0/1",), ("h1/1",), ("h2/1",)]
    for conn in (conn for window in windows for conn in window.conns):
        members = comms[conn.comm].members
        assert (conn.source, conn.destination) == (members[conn.rank].nics[0], members[conn.peer].nics[0])


def test_group_collective_takes_the_time_of_its_own_size():
    """A ring over three of six ranks takes 2(3-1)/3 of the payload at line rate, in all groups at the same time."""
    ops = [op for window in _windows(SimJob(6, _GROUPS, jitter=0.0)) for op in window.ops if op.kind == "all_reduce"]
    done = [op.finished_s - op.entered_s for op in ops if op.finished_s > 0]
    assert done == pytest.approx([4 * 2_000_000 * 8 / 10e9] * len(done))


def test_ranks_that_do_not_divide_into_groups_are_refused():
    """Seven ranks that must form pairs are an error."""
    with pytest.raises(ValueError, match="7 ranks"):
        _windows(SimJob(7, _GROUPS))


def test_messages_over_a_flapping_link_end_after_it_returns():
    """A message over a link without rate ends after the link is back, and no message is lost."""
    flap = SimFault(SimFaultKind.NIC_RATE, 1, 0.5, 0.7, factor=0.0, side="rx")
    ops = _ops(_windows(SimJob(4, _RING, jitter=0.0), [flap]))
    longest = max((op for op in ops.values() if op.finished_s), key=lambda op: op.finished_s - op.entered_s)
    assert longest.entered_s < 0.7 < longest.finished_s
    assert longest.finished_s - longest.entered_s <= 0.2 + 6 * 2_000_000 * 8 / 10e9 + 1e-9


def test_hung_process_runs_and_counts_no_arrivals():
    """The process of a hung rank is running, and the rank no longer counts what arrives."""
    last = {window.host: window for window in _windows(SimJob(4, _SHIFT), [SimFault(SimFaultKind.HUNG, 2, 1.0)], 3.0)}
    assert last["h2"].ranks[0].state == "running"
    assert {op.finished_s for op in last["h1"].ops} == {0.0}
    sent = sum(conn.messages for window in last.values() for conn in window.conns if conn.peer == 2)
    assert sum(record.messages for record in last["h2"].arrivals) <= sent


def test_notified_ranks_exit_within_a_millisecond():
    """When one rank raises an error all notified ranks exit at once; without notification they keep waiting."""
    fault = [SimFault(SimFaultKind.RAISED, 2, 1.01)]
    job = SimJob(4, _RING, notify_failure=True)
    notified = {window.host: window.ranks[0].state for window in _windows(job, fault, 1.1)}
    alone = {window.host: window.ranks[0].state for window in _windows(SimJob(4, _RING), fault, 1.1)}
    assert set(notified.values()) == {"exited"}
    assert alone == {"h0": "running", "h1": "running", "h2": "exited", "h3": "running"}


def test_mismatched_rank_records_another_collective():
    """A mismatched rank records another kind of operation with the same number, and no rank finishes."""
    windows = _windows(SimJob(3, _RING), [SimFault(SimFaultKind.MISMATCH, 1, 1.0)], 2.0)
    last = {window.host: window.ops[-1] for window in windows}
    assert {op.seq for op in last.values()} == {last["h0"].seq}
    assert [last[f"h{rank}"].kind for rank in range(3)] == ["all_reduce", "barrier", "all_reduce"]
    assert {op.finished_s for op in last.values()} == {0.0}


def test_mismatched_rank_records_the_collective_it_calls():
    """The fault says which collective the rank calls; unlike a barrier it has data."""
    windows = _windows(SimJob(3, _RING), [SimFault(SimFaultKind.MISMATCH, 1, 1.0, call="broadcast")], 2.0)
    last = {window.host: window.ops[-1] for window in windows}
    assert [last[f"h{rank}"].kind for rank in range(3)] == ["all_reduce", "broadcast", "all_reduce"]
    assert last["h1"].size_bytes == last["h0"].size_bytes
