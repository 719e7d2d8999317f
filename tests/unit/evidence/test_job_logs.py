"""Lines of PyTorch, NCCL, UCX, MPI and launchers are read in all their wordings, and say no more than they show."""

import gzip
import io
import json
from pathlib import Path

import pytest

from c4bench.evidence import logs
from c4bench.evidence.collect import collect
from c4bench.evidence.judging.judge import judge
from c4bench.evidence.limits import UnreadableError
from c4bench.evidence.lines import moment_s
from c4bench.model.diagnosis import Cause

WORK = "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600028 milliseconds"
CAUGHT = "Watchdog caught collective operation timeout: "


def read(*lines):
    return logs.read("\n".join(lines).encode(), "log")


def report(tmp_path, *lines, name="log.txt"):
    (tmp_path / name).write_text("\n".join(lines))
    return judge(collect([tmp_path]))


@pytest.mark.parametrize(
    ("timeout", "status", "comm", "member"),
    [
        # PyTorch 2.0 and 2.1: no rank of the job in the line.
        (f"0: [E ProcessGroupNCCL.cpp:474] [Rank 0] {CAUGHT}WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) "
         "ran for 600028 milliseconds before timing out.", "", "", 0),
        (f"[rank0]:[E ProcessGroupNCCL.cpp:563] [Rank 0] {CAUGHT}{WORK} before timing out.",
         "[rank0]:[E ProcessGroupNCCL.cpp:1582] [PG 0 Rank 0] Timeout at NCCL work: 7, last enqueued NCCL work: 9, "
         "last completed NCCL work: 6.", "0", 0),
        (f"[rank0]:[E909 09:55:46.9 ProcessGroupNCCL.cpp:607] [Rank 2] {CAUGHT}{WORK} before timing out.",
         "[rank0]:[E909 09:55:46.9 ProcessGroupNCCL.cpp:1709] [PG 5 (mesh_dp) Rank 2] Timeout at NCCL work: 7, last "
         "enqueued NCCL work: 9, last completed NCCL work: 6.", "", 2),
        (f"[rank0]:[E209 16:40:12.7 ProcessGroupNCCL.cpp:616] [Rank 1] {CAUGHT}{WORK} before timing out.",
         "[rank0]:[E209 16:40:12.7 ProcessGroupNCCL.cpp:1785] [PG ID 3 PG GUID 21 Rank 1] Exception (either "
         "an error or timeout) detected by watchdog at work: 7, last enqueued NCCL work: 9, last completed NCCL "
         "work: 6.", "21", 1),
        (f"[rank0]:[E1202 21:05:37.4 ProcessGroupNCCL.cpp:632] [Rank 0] {CAUGHT}{WORK} before timing out.",
         "[rank0]:[E1202 21:05:37.4 ProcessGroupNCCL.cpp:2271] [PG ID 0 PG GUID 0(default_pg) Rank 0]  "
         "failure detected by watchdog at work sequence id: 7 PG status: last enqueued work: 9, last completed "
         "work: 6", "0", 0),
    ],
)  # fmt: skip
def test_every_wording_of_a_time_out_is_read(timeout, status, comm, member):
    """PyTorch's wordings since 2.0 give the ranks in job and group, group, operation and how far it had come."""
    (one,) = read(timeout, status).timeouts
    assert (one.rank, one.member, one.comm) == (0, member, comm)
    assert (one.seq, one.kind, one.after_s) == (7, "all_reduce", 600.0)
    assert (one.enqueued, one.completed) == ((9, 6) if status else (-1, -1))


def test_the_text_of_an_exception_is_no_second_time_out():
    """What a process that is ended prints of its time-out again, without the rank of the job, is not counted again."""
    again = f"  what():  [PG ID 4 PG GUID 33 Rank 1] Process group watchdog thread ended: [Rank 1] {CAUGHT}"
    found = read(f"[rank5]:[E ProcessGroupNCCL.cpp:616] [Rank 1] {CAUGHT}{WORK}", again + WORK)
    assert [one.rank for one in found.timeouts] == [5]


PEER = "gpu-1:7:9 [0] transport/net_ib.cc:9 NCCL WARN NET/IB: Got completion from peer 192.0.2.2<4711> with "


@pytest.mark.parametrize(
    ("line", "status", "vendor", "nic", "peer_gid"),
    [
        (PEER + "error 12, opcode 0, len 32680, vendor err 129", 12, 129, "", ""),
        (PEER + "error 12, opcode 0, len 0, vendor err 129 (Recv)", 12, 129, "", ""),
        (PEER + "status=12 opcode=0 len=0 vendor err 129 (Send) localGid ::ffff:198.51.100.1 "
         "remoteGids::ffff:198.51.100.2 hca mlx5_3", 12, 129, "mlx5_3", "198.51.100.2"),
        (PEER + "status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=1 vendor_err=129 req_type=Send "
         "localGid fe80::1 remoteGidsfe80::2 hca mlx5_3", 12, 129, "mlx5_3", "fe80::2"),
        (PEER + "status=IBV_WC_WR_FLUSH_ERR(5) opcode=IBV_WC_SEND(0) vendor_err=249 hca mlx5_3", 5, 249, "mlx5_3", ""),
        ("[gpu-1:7:0:7] ib_mlx5_log.c:177  Transport retry count exceeded on mlx5_3:1/RoCE "
         "(synd 0x15 vend 0x81 hw_synd 0/0)\n[gpu-1:7:0:7] ib_mlx5_log.c:177  RC QP 0xd16 wqe[8]: SEND "
         "s-e [rqpn 0x17de dgid=::ffff:198.51.100.2 "
         "sgid_index=3] [inl len 61]", 12, 129, "mlx5_3", "198.51.100.2"),
        ("gpu-1:7:9 [0] NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_3:1, curr "
         "state INIT, next state RTR, local GID index 3, local GID ::ffff:198.51.100.1, remote GID ::ffff:198.51.100.2",
         110, -1, "mlx5_3", "198.51.100.2"),
        ("[[1176,1],0][btl_openib_component.c:2905:handle_wc] from gpu-1 to: gpu-2 error polling LP CQ with status "
         "RETRY EXCEEDED ERROR status number 12 for wr_id 38996224 opcode 0 qp_idx 0", 12, -1, "", ""),
    ],
)  # fmt: skip
def test_every_wording_of_a_failed_connection_is_read(line, status, vendor, nic, peer_gid):
    """NCCL since 2.8, UCX and Open MPI give host, NIC, peer, status by number or name, and the vendor's error."""
    (log,) = read(line).logs
    (one,) = log.failed
    assert (one.host, one.nic, one.status, one.vendor, one.peer_gid) == ("gpu-1", nic, status, vendor, peer_gid)
    assert log.events[0].consequence == (status == 5)


def test_addresses_lead_to_the_nic_at_the_other_end(tmp_path):
    """A GID that the peer's log writes as a number names its NIC, also where the failure has the address alone."""
    found = report(
        tmp_path,
        "gpu-2:5:6 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [3]mlx5_7:1/RoCE [RO]; OOB eno1:192.0.2.2<0>",
        "gpu-2:5:6 [3] NCCL INFO NET/IB: NCCL Dev 3 IbDev 3 Port 1 qpn 1 mtu 5 GID 3 (0/26433C6FFFF0000) fifoRkey=0x1",
        "gpu-1:7:9 [0] NCCL INFO Channel 00/0 : 3[3] -> 11[3] [send] via NET/IB/1/GDRDMA",
        "gpu-1:7:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_3:1/RoCE ; OOB eno1:192.0.2.1<0>",
        PEER + "status=12 opcode=0 len=0 vendor err 129 (Send) localGid ::ffff:198.51.100.1 "
        "remoteGids::ffff:198.51.100.2 hca mlx5_3",
    )
    (verdict,) = found.verdicts
    assert str(verdict.diagnosis.component) == "path gpu-1/mlx5_3>gpu-2/mlx5_7"
    assert "rank 3 sends to rank 11 by gpu-1/mlx5_3" in verdict.diagnosis.evidence


def test_who_reports_failures_is_not_to_blame_but_what_they_share(tmp_path):
    """Several NICs without an answer from one are intersected, whichever side reports; flushes add nothing."""
    gids = {n: f"198.51.100.{n}" for n in range(1, 6)}

    def failure(near, far, status=12):
        ends = f"localGid ::ffff:{gids[near]} remoteGids::ffff:{gids[far]} hca mlx5_0"
        got = f"Got completion from peer 192.0.2.{far}<1> with status={status} opcode=0 len=0 vendor err 129 (Send)"
        return f"gpu-{near}:7:9 [0] NCCL WARN NET/IB: {got} {ends}"

    lines = [failure(1, 4), failure(2, 4), failure(4, 3), failure(5, 1, status=5)]
    (verdict,) = report(tmp_path, *lines).verdicts
    assert str(verdict.diagnosis.component) == "nic gpu-4/mlx5_0"
    assert verdict.diagnosis.cause is Cause.CONNECTION_LOST
    assert verdict.culprits == ()
    assert verdict.drain == ()


@pytest.mark.parametrize(
    ("lines", "component", "cause"),
    [
        (["srun: error: gpu-3: task 12: Killed"], "rank job:12", Cause.PROCESS_ENDED),
        (["slurmstepd: error: *** STEP 7.0 ON gpu-1 CANCELLED AT 2026-01-02T03:04:05 ***",
          "srun: error: gpu-3: task 12: Out Of Memory", "srun: error: gpu-1: tasks 0-3: Terminated"],
         "rank job:12", Cause.PROCESS_ENDED),
        (["srun: error: gpu-3: tasks 8-15: Killed"], "host gpu-3", Cause.PROCESS_ENDED),
        (["prterun noticed that process rank 3 with PID 77 on node gpu-3 exited on signal 9 (Killed)."],
         "rank job:3", Cause.PROCESS_ENDED),
        (["  Process name: [prterun-gpu-1-77@1,3]", "  Exit code:    17"], "rank job:3", Cause.PROCESS_ENDED),
        (["Failures:", "[1]:", "  time      : 2026-01-15_05:44:28", "  host      : gpu-1",
          "  rank      : 0 (local_rank: 0)", "  exitcode  : -6 (pid: 61)", "Root Cause (first observed failure):",
          "[0]:", "  time      : 2026-01-15_05:44:20", "  host      : gpu-3", "  rank      : 5 (local_rank: 1)",
          "  exitcode  : -11 (pid: 62)"],
         "rank job:5", Cause.PROCESS_ENDED),
        (["=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES", "=   PID 30831 RUNNING AT gpu-3",
          "=   EXIT CODE: 9"],
         "host gpu-3", Cause.PROCESS_ENDED),
        (["=   RANK 4 PID 30831 RUNNING AT gpu-3", "=   KILLED BY SIGNAL: 9 (Killed)"],
         "rank job:4", Cause.PROCESS_ENDED),
        (["trainer-7   0/1   OOMKilled   0   3h"], "host trainer-7", Cause.PROCESS_ENDED),
        (["srun: error: Node failure on gpu-9"], "host gpu-9", Cause.HOST_SILENT),
        (["[rank4]: Traceback (most recent call last):", "[rank4]: ValueError: shapes do not match",
          "[rank1]: torch.distributed.DistBackendError: NCCL error in: remote process exited"],
         "rank job:4", Cause.PROCESS_ENDED),
        (["2: [gpu-3:41:0:41] Caught signal 11 (Segmentation fault: address not mapped to object at address (nil))"],
         "rank job:2", Cause.PROCESS_ENDED),
        (["gpu-3:7:9 [0] NCCL WARN NET/IB : mlx5_1:1 Got async event : port error"],
         "nic gpu-3/mlx5_1", Cause.PORT_DOWN),
    ],
)  # fmt: skip
def test_who_ended_first_explains_that_others_gave_up(tmp_path, lines, component, cause):
    """A process that ended by itself, or a port that failed, is named; those that timed out after it only waited."""
    waits = [f"[rank{rank}]:[E ProcessGroupNCCL.cpp:632] [Rank {rank}] {CAUGHT}{WORK}" for rank in (0, 1)]
    (verdict,) = report(tmp_path, *lines, *waits).verdicts
    assert (str(verdict.diagnosis.component), verdict.diagnosis.cause) == (component, cause)
    assert verdict.drain == ()


def test_a_rank_that_has_called_less_by_its_own_words_is_named(tmp_path):
    """A rank that only dumps because others timed out says how far it was: less than where they wait."""
    waits = [f"[rank{rank}]:[E327 17:04:16.9 ProcessGroupNCCL.cpp:632] [Rank {rank}] {CAUGHT}{WORK}\n"
             f"[rank{rank}]:[E327 17:04:17.0 ProcessGroupNCCL.cpp:2271] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  "
             "failure detected by watchdog at work sequence id: 7 PG status: last enqueued work: 9, last "
             "completed work: 6" for rank in (0, 1, 3)]  # fmt: skip
    dump = ("[rank2]:[E327 17:04:17.2 ProcessGroupNCCL.cpp:1561] [PG ID 0 PG GUID 0(default_pg) Rank 2] Received a "
            "dump signal due to a collective timeout from rank 0 and we will try our best to dump the debug info. Last "
            "enqueued NCCL work: 6, last completed NCCL work: 6.")  # fmt: skip
    (verdict,) = report(tmp_path, *waits, dump).verdicts
    assert (verdict.culprits, verdict.only_wait, verdict.diagnosis.cause) == ((2,), (0, 1, 3), Cause.NOT_ENTERED)


def test_the_peer_that_all_lost_is_where_to_look_and_a_mutual_loss_names_nobody(tmp_path):
    """Sockets that break towards one host only point there, weakly; where that host reports too, nothing is named."""
    broken = "gpu-{}:{}:9 [0] NCCL WARN socketProgress: Connection closed by remote peer gpu-{}<35422>"
    (verdict,) = report(tmp_path, broken.format(1, 5, 3), broken.format(2, 6, 3)).verdicts
    assert str(verdict.diagnosis.component) == "host gpu-3"
    assert verdict.diagnosis.confidence <= 0.5
    assert report(tmp_path, broken.format(1, 5, 3), broken.format(3, 6, 1)).verdicts == ()


def test_ranks_that_call_differently_are_a_bug_of_the_program(tmp_path):
    """One number of one group with two kinds of operation is a mismatch, and the fewer ranks call it wrongly."""
    lines = []
    for rank, kind in enumerate(("ALLREDUCE", "BROADCAST", "ALLREDUCE")):
        head = f"[rank{rank}]:[E1103 02:17:45.4 ProcessGroupNCCL.cpp:"
        lines += [f"{head}629] [Rank {rank}] {CAUGHT}{WORK.replace('ALLREDUCE', kind)}",
                  f"{head}2271] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work "
                  "sequence id: 7 PG status: last enqueued work: 7, last completed work: 6"]  # fmt: skip
    (verdict,) = report(tmp_path, *lines).verdicts
    assert (verdict.culprits, verdict.diagnosis.cause) == ((1,), Cause.COLLECTIVE_TYPE_MISMATCH)


def test_connections_that_share_nothing_are_faults_of_their_own(tmp_path):
    """Two pairs of NICs without one in common are two verdicts: on each path, with both of its NICs as alternatives."""
    lines = [f"gpu-{near}:7:9 [0] NCCL WARN NET/IB: Got completion from peer 192.0.2.{far}<1> with status=12 opcode=0 "
             f"len=0 vendor err 129 localGid ::ffff:198.51.100.{near} remoteGids::ffff:198.51.100.{far} hca mlx5_0"
             for near, far in ((1, 2), (3, 4))]  # fmt: skip
    found = report(tmp_path, *lines).verdicts
    assert [one.diagnosis.component.kind for one in found] == ["path", "path"]
    assert sorted(sorted(nic.name for nic in one.diagnosis.alternatives) for one in found) == [
        ["192.0.2.2/198.51.100.2", "gpu-1/mlx5_0"],
        ["192.0.2.4/198.51.100.4", "gpu-3/mlx5_0"],
    ]


def test_a_host_is_named_where_no_line_names_its_nic(tmp_path):
    """Old releases of NCCL name neither NIC: what many peers cannot reach is then a host."""
    lines = [PEER.replace("192.0.2.2", f"192.0.2.{n}") + "error 12, opcode 0, len 0, vendor err 129" for n in (4, 5, 6)]
    (verdict,) = report(tmp_path, *lines).verdicts
    assert str(verdict.diagnosis.component) == "host gpu-1"


def test_exit_codes_of_ranks_that_gave_up_blame_nobody(tmp_path):
    """A rank that timed out exits with a code, or is aborted, because it waited."""
    lines = [f"[rank1]:[E ProcessGroupNCCL.cpp:632] [Rank 1] {CAUGHT}{WORK}", "srun: error: gpu-1: task 1: Exited with "
             "exit code 1", "srun: error: gpu-1: task 0: Aborted (core dumped)"]  # fmt: skip
    (verdict,) = report(tmp_path, *lines).verdicts
    assert (str(verdict.diagnosis.component), verdict.culprits) == ("job job", ())


def test_the_exit_of_a_rank_whose_connection_failed_follows_from_that(tmp_path):
    """A rank that had no answer ends with a code; the connection is named, and not the rank."""
    lines = [
        "3: " + PEER + "error 12, opcode 0, len 0, vendor err 129",
        "srun: error: gpu-1: task 3: Exited with exit code 1",
    ]
    (verdict,) = report(tmp_path, *lines).verdicts
    assert (verdict.diagnosis.cause, verdict.culprits) == (Cause.CONNECTION_LOST, ())


def test_an_error_of_all_is_a_bug_of_the_program(tmp_path):
    """Where many ranks raise an exception, none of them is named."""
    found = report(tmp_path, *(f"[rank{rank}]: KeyError: 'lr'" for rank in range(9)))
    assert [str(one.diagnosis.component) for one in found.verdicts] == ["job job"]
    assert [event.rank for event in found.timeline] == list(range(9))


def test_the_ranks_that_never_came_to_the_initialisation_are_listed_and_not_blamed(tmp_path):
    """A communicator that no rank completes names those without a line as where to look first."""
    lines = [f"gpu-1:{rank}:9 [0] NCCL INFO ncclCommInitRank comm 0x5 rank {rank} nranks 8 cudaDev 0 nvmlDev 0 "
             "busId 1b000 commId 0xab - Init START" for rank in range(8) if rank != 6]  # fmt: skip
    (verdict,) = report(tmp_path, *lines).verdicts
    assert (verdict.culprits, verdict.diagnosis.cause) == ((), Cause.NOT_ENTERED)
    assert any("no line of its ranks 6:" in words for words in verdict.diagnosis.evidence)


def test_the_timeline_has_the_first_error_of_each_rank_in_order_of_time(tmp_path):
    """Of many errors of a rank the first is kept; files with and without a year are put in one order."""
    (tmp_path / "a.log").write_text(
        "2026-03-02 10:00:05,000 [rank1]: ValueError: b\n2026-03-02 10:00:09,000 [rank1]: KeyError: c"
    )
    (tmp_path / "b.log").write_text("[rank0]:[E302 10:00:01.5 ProcessGroupNCCL.cpp:632] [Rank 0] " + CAUGHT + WORK)
    found = judge(collect([tmp_path])).timeline
    assert [(event.rank, event.text.split()[0]) for event in found] == [(0, "timed"), (1, "ValueError:")]


def test_blocks_and_streams_give_the_same(monkeypatch):
    """Where a block ends does not matter, nor do line ends of another system, nor progress bars on the same line."""
    lines = [f"[rank{rank}]:[E ProcessGroupNCCL.cpp:632] [Rank {rank}] {CAUGHT}{WORK}" for rank in range(50)]
    data = b"step 1\r" + "\r\n".join(lines).encode()
    whole = logs.read(data, "log")
    monkeypatch.setattr(logs, "_BLOCK", 300)
    assert logs.read(data, "log") == logs.read_stream(io.BytesIO(data), "log") == whole
    assert [one.rank for one in whole.timeouts] == list(range(50))


def test_logs_longer_than_other_files_are_read_as_streams(tmp_path, monkeypatch):
    """Above the bound of files a log is read, packed or not, and anything else is refused with the reason."""
    lines = "".join(f"[rank{rank}]:[E x] [Rank {rank}] {CAUGHT}{WORK}\n" for rank in range(40))
    files = {"a.log": lines.encode(), "b.log.gz": gzip.compress(lines.replace("=7,", "=8,").encode()),
             "c.json": b"{" + b" " * 5000}  # fmt: skip
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    monkeypatch.setattr("c4bench.evidence.collect.MOST_BYTES", 1000)
    monkeypatch.setattr("c4bench.evidence.limits.MOST_BYTES", 1000)
    found = collect([tmp_path])
    assert {(one.rank, one.seq) for one in found.timeouts} == {(rank, seq) for rank in range(40) for seq in (7, 8)}
    assert [(Path(one.file).name, "which only logs may have" in one.reason) for one in found.problems] == [
        ("c.json", True)
    ]


def test_lines_that_ray_left_out_make_silence_say_less():
    """Where Ray says that it left out repeated lines, the answer says that ranks may be silent by that."""
    line = f"(W pid=1, ip=192.0.2.1) [rank5]:[E x] [Rank 5] {CAUGHT}{WORK}"
    assert len(read(line).cannot_tell) == 1
    assert "Ray left out" in read(line + " [repeated 7x across cluster]").cannot_tell[1]


def test_a_line_that_docker_put_into_json_is_read():
    """The runtime's JSON around a line is taken off as any other prefix."""
    line = json.dumps(
        {"log": "srun: error: gpu-3: task 12: Killed\n", "stream": "stderr", "time": "2026-01-02T03:04:05Z"}
    )
    assert logs.recognises(line.encode(), "x.log")
    assert [event.rank for event in read(line).logs[0].events] == [12]


def test_text_that_tells_nothing_is_refused_and_hostile_text_is_cut():
    """A log without any such line is no log of a job; control characters and long names do not get through."""
    with pytest.raises(UnreadableError):
        read("step 1 loss 2.0", "Error: ")
    (event,) = read(f"[rank1]: ValueError: \x1b]0;x\x07{'a' * 9000}\u202e").logs[0].events
    assert event.text.isprintable()
    assert len(event.text) < 400


@pytest.mark.parametrize(("at", "s"), [("2026-01-02T00:00:01.5Z", 86401.5), ("03-01 00:00:00", 59 * 86400.0),
                                       ("Jan  2 00:00:01", 86401.0), ("2026-01-02_00:00:01", 86401.0), ("no", -1.0),
                                       ("13-01 00:00:00", -1.0)])  # fmt: skip
def test_times_of_all_forms_are_compared(at, s):
    """Times are seconds of the year, whether or not they have a year."""
    assert moment_s(at) == s
