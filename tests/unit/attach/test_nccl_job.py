"""Ranks that call NCCL's profiler plugin as NCCL does, with real waits, and what C4D says of them (`nccl_rank.py`)."""

import os
import signal
from itertools import pairwise

import pytest
from compiled_libraries import compiled
from nccl_job import NcclJob

from c4bench.cli.main import main
from c4bench.collective.ring_reader import read_telemetry_file
from c4bench.control.jobs.attached_names import AttachedNames, Seat
from c4bench.model.diagnosis import Cause
from c4bench.record.telemetry import to_lines

_OTHERS = (0, 2, 3)


@pytest.fixture(scope="module")
def nccl_plugin():
    """NCCL's profiler plugin, compiled."""
    return compiled("nccl")


def names(cause, rank):
    """Whether a diagnosis has this cause and names this rank alone."""
    return lambda diagnosis: (
        diagnosis.cause is cause
        and (str(diagnosis.component), diagnosis.alternatives)
        == (
            f"rank train:{rank}",
            (),
        )
    )


def sides(diagnosis):
    """Which ranks have called what."""
    return {(op.profiling_name, op.size_bytes): op.ranks for op in diagnosis.operations}


def test_a_healthy_job_computes_and_leaves_no_file(nccl_plugin, tmp_path):
    """The plugin does not change results, and takes its file with it when the communicator ends."""
    with NcclJob(nccl_plugin, tmp_path, iterations=20, ahead=4) as job:
        assert [process.wait(60) for process in job.processes] == [0, 0, 0, 0]
    assert list(tmp_path.glob("*.ring*")) == []


@pytest.fixture(scope="module")
def hang(nccl_plugin, tmp_path_factory):
    """A job in which rank 3 does not call collective 20, its diagnosis, and what rank 0 had on record then."""
    with NcclJob(nccl_plugin, tmp_path_factory.mktemp("hang"), ahead=8, own={3: {"busy": 20}}) as job:
        diagnosis = job.until(names(Cause.NOT_ENTERED, 3))
        yield job, diagnosis, read_telemetry_file(job.rings[0])


def test_a_rank_that_does_not_call_is_named(hang):
    """The rank whose host does not call the collective in which the others wait is to blame for the hang."""
    diagnosis = hang[1]
    assert sides(diagnosis) == {("all_reduce", 4 * 4096): (0, 1, 2)}
    assert diagnosis.operations[0].collective_seq_id == 20


def test_each_operation_is_recorded_from_the_kernel_to_its_end(hang):
    """Calls that NCCL puts into the stream early are entered when their kernels run, and all of them finish."""
    ops = hang[2].ops
    assert [op.seq for op in ops] == list(range(21))
    assert {(op.kind, op.algorithm, op.dtype, op.size_bytes) for op in ops} == {
        ("all_reduce", "ring/simple", "int32", 4 * 4096)
    }
    assert all(op.entered_s <= op.started_s <= op.finished_s for op in ops[:20])
    assert (ops[20].finished_s, ops[20].awaits) == (0.0, (3,))
    assert all(op.started_s <= later.entered_s for op, later in pairwise(ops))


def test_a_recording_of_attached_ranks_is_judged_offline(hang, tmp_path, capsys):
    """`c4bench detect` says of the windows' file what C4D said of the windows."""
    recording = tmp_path / "train.jsonl"
    recording.write_bytes(b"".join(to_lines(hang[0].windows)))
    assert main(["detect", str(recording)]) == 0
    assert "rank train:3" in capsys.readouterr().out


def test_a_communicator_is_left_out_until_all_its_ranks_are_known(hang):
    """A host's window alone has neither the communicator nor the NICs of its connections; with all of them it has."""
    job = hang[0]
    last = {window.host: window for window in job.windows}
    whole = last["h1"].names
    assert [[(m.rank, m.host, m.seat) for m in record.members] for record in last["h1"].comms] == [
        [(rank, f"h{rank}", rank) for rank in range(4)]
    ]
    assert {(end.source, end.destination) for end in whole.sends} == {("h1/?", "h2/?")}
    assert {(end.source, end.destination) for end in whole.receives} == {("h0/?", "h1/?")}
    alone = AttachedNames()
    for rank, host in enumerate(("h0", "h1", "h2")):
        partial = job.partial[host]
        alone.place(host, {}, [Seat("train", rank)])
        assembled = alone.translate(partial)
        assert (assembled.comms, tuple(assembled.conns), tuple(assembled.arrivals)) == ((), (), ())
        assert assembled.op_table == partial.op_table


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        pytest.param(signal.SIGSTOP, Cause.PROCESS_STOPPED, id="stopped", marks=pytest.mark.nightly),
        pytest.param(signal.SIGKILL, Cause.PROCESS_ENDED, id="killed"),
    ],
)
def test_a_stopped_or_dead_rank_is_named(nccl_plugin, tmp_path, number, cause):
    """The records of a process can be read when it stands still or is gone, and show in which operation others wait."""
    with NcclJob(nccl_plugin, tmp_path) as job:
        job.until_entered(20)
        os.kill(job.processes[2].pid, number)
        job.until(names(cause, 2))
        entered = [max(op.seq for op in read_telemetry_file(job.rings[rank]).ops) for rank in range(4)]
    assert max(entered) - min(entered) <= 1
    assert entered[2] == min(entered)


def test_a_gpu_that_stands_still_inside_a_collective_is_named(nccl_plugin, tmp_path):
    """All have entered; one GPU does not read what has arrived (RecvGPUWait), so its rank awaits nobody."""
    with NcclJob(nccl_plugin, tmp_path, own={1: {"frozen": 20}}) as job:
        job.until(names(Cause.STUCK_INSIDE, 1))


def test_a_late_gpu_is_named(nccl_plugin, tmp_path):
    """A rank whose GPU computes longer before each collective is the one that the others wait for."""
    with NcclJob(nccl_plugin, tmp_path, ahead=4, own={1: {"late_from": 30, "late_s": 0.06}}) as job:
        job.until(names(Cause.COMPUTE_SLOW, 1))


@pytest.mark.parametrize(
    ("usual", "other", "cause", "expected"),
    [
        pytest.param(
            *({}, {"count": 8192}, Cause.SIZE_OR_SYNTAX_MISMATCH),
            {("all_reduce", 32768): (1,), ("all_reduce", 16384): _OTHERS},
            id="count",
        ),
        pytest.param(
            *({}, {"func": "Broadcast"}, Cause.COLLECTIVE_TYPE_MISMATCH),
            {("broadcast@0", 16384): (1,), ("all_reduce", 16384): _OTHERS},
            id="function",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            *({"func": "Broadcast"}, {"func": "Broadcast", "root": 1}, Cause.COLLECTIVE_TYPE_MISMATCH),
            {("broadcast@1", 16384): (1,), ("broadcast@0", 16384): _OTHERS},
            id="root",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_mismatch_is_named(nccl_plugin, tmp_path, usual, other, cause, expected):
    """Ranks that call with another count, another function or another root than the rest are named with their calls."""
    with NcclJob(nccl_plugin, tmp_path, calls={20: usual}, own={1: {"calls": {20: other}}}) as job:
        diagnosis = job.until(lambda diagnosis: diagnosis.cause is cause)
    assert sides(diagnosis) == expected
    assert {op.collective_seq_id for op in diagnosis.operations} == {20}
