"""NCCL's profiler plugin, called in this process as NCCL calls it: what it records, and what it ignores."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nccl_rank
import pytest
from compiled_libraries import compiled
from nccl_rank import (
    COLL,
    COLL_API,
    GROUP,
    KERNEL_CH,
    KERNEL_CH_STOP,
    PROXY_OP,
    PROXY_STEP,
    RECV_FLUSH_WAIT,
    RECV_GPU_WAIT,
    RECV_WAIT,
    SEND_GPU_WAIT,
    SEND_PEER_WAIT,
    SEND_WAIT,
    Profiler,
)

from c4bench.collective.ring_reader import read_owner, read_telemetry_file

RANK, SIZE, PEER = 1, 4, 2


@pytest.fixture(scope="module")
def nccl_plugin():
    """NCCL's profiler plugin, compiled."""
    return compiled("nccl")


class Played:
    """A communicator of four, in which this process is rank 1."""

    def __init__(self, plugin: Path, folder: Path, version: int = 7) -> None:
        self.profiler = Profiler(str(plugin), version)
        self.context = self.profiler.init(0xC4, SIZE, RANK)
        self.ring = folder / f"{os.getpid()}.nccl.ring"

    def call(self, number: int = 0, func: bytes = b"AllReduce", **details: object) -> int | None:
        """Start the event of a collective on one channel."""
        usual = {"count": 1024, "datatype": b"ncclFloat16", "nChannels": 1, "algo": b"TREE", "proto": b"LL128"}
        return self.profiler.start(self.context, COLL, seqNumber=number, func=func, **usual | details)

    def kernel(self, parent: int | None) -> int | None:
        """Start a kernel."""
        return self.profiler.start(self.context, KERNEL_CH, parent, channelId=0, pTimer=1)

    def end_kernel(self, handle: int | None) -> None:
        """End a kernel."""
        self.profiler.state(handle, KERNEL_CH_STOP, 2)
        self.profiler.stop(handle)

    def transfer(
        self, parent: int | None, peer: int = PEER, steps: int = 2, *, sends: bool = True, pid: int = 0
    ) -> int | None:
        """Start a proxy operation."""
        details = {"pid": pid or os.getpid(), "channelId": 0, "peer": peer, "nSteps": steps, "isSend": sends}
        return self.profiler.start(self.context, PROXY_OP, parent, RANK, **details)

    def step(self, transfer: int | None, number: int = 0) -> int | None:
        """Start a step."""
        return self.profiler.start(self.context, PROXY_STEP, transfer, RANK, step=number)

    def run(self, number: int, func: bytes = b"AllReduce", **details: object) -> None:
        """A whole collective without a proxy."""
        handle = self.call(number, func, **details)
        self.profiler.stop(handle)
        self.end_kernel(self.kernel(handle))

    @property
    def ops(self):
        """The operations on record."""
        return read_telemetry_file(self.ring).ops

    @property
    def conn(self):
        """The one sending end."""
        (conn,) = read_telemetry_file(self.ring).conns
        return conn


@pytest.fixture
def played(nccl_plugin, tmp_path, monkeypatch):
    """A communicator that is recorded in `tmp_path`."""
    monkeypatch.setenv("C4BENCH_ATTACH_RECORDS", str(tmp_path))
    monkeypatch.setenv("C4BENCH_JOB", "job/../1")
    monkeypatch.setenv("RANK", "17")
    one = Played(nccl_plugin, tmp_path)
    yield one
    one.profiler.finalize(one.context)


@pytest.mark.parametrize("version", [4, 5, 6, 7])
def test_each_interface_records_the_same(nccl_plugin, tmp_path, monkeypatch, version):
    """NCCL finds the newest interface that it knows, and the record of a call is the same by all of them."""
    monkeypatch.setenv("C4BENCH_ATTACH_RECORDS", str(tmp_path))
    played = Played(nccl_plugin, tmp_path, version)
    assert played.profiler.version == version
    handle = played.call(func=b"ReduceScatter")
    transfer = played.transfer(handle)
    played.profiler.state(played.step(transfer), SEND_GPU_WAIT)
    ((comm,), (op,), (conn,), _) = read_telemetry_file(played.ring)
    assert (op.comm, op.rank, op.seq, op.kind, op.algorithm, op.dtype, op.size_bytes, op.finished_s) == (
        *(comm.comm, RANK, 0, "reduce_scatter", "tree/ll128", "float16", 2048, 0.0),
    )
    assert comm.comm == "dp-00000000000000c4"
    assert (conn.peer, conn.qp, conn.state, conn.owed) == (PEER, 0, "data", 2)
    played.profiler.finalize(played.context)


def test_the_file_says_whose_it_is(played):
    """Job and rank are those of the environment; of the communicator its own place and the last are known."""
    with played.ring.open("rb") as file:
        owner = read_owner(played.ring, file.fileno())
    assert (owner.job, owner.rank, owner.pid) == ("job/../1", 17, os.getpid())
    (comm,) = read_telemetry_file(played.ring).comms
    assert [(member.rank, member.host, member.seat) for member in comm.members] == [(1, "", -1), (3, "", -1)]


def test_calls_are_numbered_across_functions(played):
    """NCCL counts each function's calls; on record are those of the communicator, the same on all of its ranks."""
    for number, func in ((0, b"AllReduce"), (0, b"Broadcast"), (1, b"AllReduce"), (0, b"AlltoAll"), (1, b"Broadcast")):
        played.run(number, func, root=3)
    kinds = ["all_reduce", "broadcast@3", "all_reduce", "all_to_all", "broadcast@3"]
    assert [(op.seq, op.kind) for op in played.ops] == list(enumerate(kinds))


def test_a_call_that_nccl_does_not_count_is_left_out(played):
    """Other ranks may not see a captured graph's calls, so one with a number that was there already has no record."""
    played.run(0, count=1)
    played.run(0, count=2)
    played.run(1, count=3)
    assert [(op.seq, op.size_bytes) for op in played.ops] == [(0, 2), (1, 6)]


def test_nccl_counts_the_calls_of_graphs(played):
    """NCCL counts them where their group or their call has an event, which the plugin did not ask for."""
    assert played.profiler.start(played.context, GROUP)
    assert played.profiler.start(played.context, COLL_API)
    assert not played.profiler.mask.value & (GROUP | COLL_API)


def test_a_call_is_entered_with_its_kernel_and_ends_with_its_last_child(played):
    """That the event of the call stops means that it is in the stream; kernels and proxy operations end later."""
    played.run(0)
    handle = played.call(1)
    played.profiler.stop(handle)
    assert [op.seq for op in played.ops] == [0]
    kernel, transfer = played.kernel(handle), played.transfer(handle)
    assert played.ops[1].entered_s > 0.0
    played.end_kernel(kernel)
    assert played.ops[1].finished_s == 0.0
    played.profiler.stop(transfer)
    assert played.ops[1].finished_s >= played.ops[1].entered_s


def test_a_call_whose_kernels_never_all_come_ends_with_a_later_one(played):
    """Where NCCL names more channels than run, nothing is left that hangs for ever."""
    played.run(0, nChannels=3)
    assert played.ops[0].finished_s == 0.0
    played.run(1)
    assert all(op.finished_s for op in played.ops)


def test_time_is_split_by_the_states_of_a_step(played):
    """Waiting for the own GPU is data, for the receiver's credit credit, for the network transfer."""
    played.profiler.stop(handle := played.call())
    transfer = played.transfer(handle)
    step, began_s, expected = played.step(transfer), time.monotonic(), {}
    states = ((SEND_GPU_WAIT, "data", 0.03), (SEND_PEER_WAIT, "credit", 0.02), (SEND_WAIT, "transfer", 0.01))
    for state, name, lasts_s in states:
        played.profiler.state(step, state, 4096)
        # NCCL says SendPeerWait again and again.
        played.profiler.state(step, state, 4096)
        assert (played.conn.state, played.conn.outstanding) == (name, int(name == "transfer"))
        time.sleep(lasts_s)
        expected[name] = lasts_s
    played.profiler.stop(step)
    conn, took_s = played.conn, time.monotonic() - began_s
    assert (conn.state, conn.messages, conn.size_bytes, conn.owed, conn.posted) == ("idle", 1, 4096, 1, 1)
    spent = {"data": conn.wait_data_s, "credit": conn.wait_credit_s, "transfer": conn.transfer_s}
    assert all(spent[name] >= lasts_s for name, lasts_s in expected.items())
    assert sum(spent.values()) <= took_s
    assert conn.shared_s == pytest.approx(conn.transfer_s, abs=1e-6)


def test_transfers_at_once_share_the_time_of_the_nics(played):
    """Two connections that transfer for the same 20 ms have a share of 10 ms each, of 20 ms of transfer."""
    played.profiler.stop(handle := played.call())
    steps = [played.step(played.transfer(handle, peer)) for peer in (2, 3)]
    for step in steps:
        played.profiler.state(step, SEND_WAIT, 1)
    time.sleep(0.02)
    for step in steps:
        played.profiler.stop(step)
    conns = read_telemetry_file(played.ring).conns
    busy_s = max(conn.last_progress_s for conn in conns) - min(conn.last_progress_s - conn.transfer_s for conn in conns)
    assert all(conn.transfer_s >= 0.02 for conn in conns)
    assert sum(conn.shared_s for conn in conns) == pytest.approx(busy_s, abs=1e-5)


def test_a_receiver_awaits_its_peer_unless_its_own_gpu_is_behind(played):
    """Who has not read what has arrived waits for itself; arrivals count when the data is there."""
    handle = played.call()
    transfer = played.transfer(handle, 0, sends=False)
    first, second = played.step(transfer, 0), played.step(transfer, 1)
    awaited = []
    for step, state in ((first, RECV_WAIT), (second, RECV_WAIT), (first, RECV_FLUSH_WAIT), (first, RECV_GPU_WAIT)):
        played.profiler.state(step, state, 4096)
        awaited.append(played.ops[0].awaits)
    played.profiler.stop(first)
    awaited.append(played.ops[0].awaits)
    played.profiler.state(second, RECV_FLUSH_WAIT, 4096)
    awaited.append(played.ops[0].awaits)
    assert awaited == [(0,), (0,), (), (), (0,), ()]
    (arrival,) = read_telemetry_file(played.ring).arrivals
    assert (arrival.peer, arrival.messages) == (0, 2)


def test_a_proxy_of_another_process_is_not_followed(played):
    """With PXN the parent and the context are another process's: nothing is looked up by them."""
    handle = played.call()
    assert played.transfer(handle, pid=os.getpid() + 1) is None
    played.context, own = 0xDEADBEEF, played.context
    assert played.transfer(0xDEADBEEF, pid=os.getpid() + 1) is None
    assert played.transfer(handle) is None
    played.context = own
    assert read_telemetry_file(played.ring).conns == ()


def test_numbers_that_stand_for_nothing_are_ignored(played):
    """Handles that have ended, of other sorts, or never given do no harm and change nothing."""
    profiler = played.profiler
    handle = played.call()
    transfer = played.transfer(handle)
    step = played.step(transfer)
    profiler.state(step, SEND_WAIT, 1)
    profiler.stop(step)
    profiler.stop(transfer)
    before = played.ring.read_bytes()
    for number in (transfer, handle ^ 1 << 40, step, 0x7FFF_FFFF_FFFF_FFFF, 6 | 63 << 8 | 65535 << 16, 1):
        profiler.state(number, SEND_WAIT, 1)
        assert played.step(number) is None
        if number != step:
            profiler.stop(number)
    assert played.ring.read_bytes() == before


def test_a_thousand_calls_ahead_of_the_gpu(played):
    """The host may be far ahead; its calls are entered and end in order once the GPU comes to them."""
    played.run(0)
    handles = [played.call(number) for number in range(1, 1001)]
    for handle in handles:
        played.profiler.stop(handle)
    assert [op.seq for op in played.ops] == [0]
    for handle in handles:
        played.end_kernel(played.kernel(handle))
    assert [op.seq for op in played.ops] == list(range(1001 - 64, 1001))
    assert all(op.finished_s for op in played.ops)


def test_an_ended_communicator_leaves_its_place(nccl_plugin, tmp_path, monkeypatch):
    """Others take its place in the file, which goes with the last one; what was its own stands for nothing then."""
    monkeypatch.setenv("C4BENCH_ATTACH_RECORDS", str(tmp_path))
    first, second = Played(nccl_plugin, tmp_path), Played(nccl_plugin, tmp_path)
    old = first.call()
    first.transfer(old)
    first.profiler.finalize(first.context)
    snapshot = read_telemetry_file(second.ring)
    assert (len(snapshot.comms), snapshot.ops, snapshot.conns) == (1, (), ())
    third = Played(nccl_plugin, tmp_path)
    assert first.call() is None
    assert third.kernel(old) is None
    for one in (second, third):
        one.run(0)
        one.profiler.finalize(one.context)
    assert list(tmp_path.iterdir()) == []


_ASIDE = """
import sys
sys.path.insert(0, {here!r})
from nccl_rank import COLL, Profiler
{before}
profiler = Profiler({plugin!r}, 7)
contexts = [profiler.init(number, 2, 0) for number in range({comms})]
handles = [profiler.start(context, COLL, seqNumber=0, func=b"AllReduce", nChannels=1) for context in contexts]
for handle in handles:
    profiler.stop(handle)
print(sum(handle is not None for handle in handles), profiler.mask.value)
for context in contexts:
    profiler.finalize(context)
"""


def aside(plugin, folder, comms=1, before="", wrap=()):
    """What a program prints, and what it says on standard error, whose communicators are not all recorded."""
    here = str(Path(nccl_rank.__file__).parent)
    script = _ASIDE.format(here=here, plugin=str(plugin), comms=comms, before=before)
    environment = {**os.environ, "C4BENCH_ATTACH_RECORDS": str(folder)}
    command = [*wrap, sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split(), done.stderr.splitlines()


@pytest.mark.parametrize(
    ("folder", "before", "reason"),
    [
        ("nowhere", "", "No such file or directory"),
        ("", "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))", "ulimit -f"),
        ("x" * 250 + "/" + "y" * 300, "", "its name is too long"),
    ],
    ids=["no agent", "ulimit", "long name"],
)
def test_it_steps_aside_with_one_line(nccl_plugin, tmp_path, folder, before, reason):
    """Where nothing can be recorded NCCL has no events to report, and the user gets one line."""
    said, (line,) = aside(nccl_plugin, tmp_path / folder, comms=3, before=before)
    assert said == ["0", "0"]
    assert line.startswith("c4bench attach: NCCL is not recorded: ")
    assert reason in line
    assert list(tmp_path.iterdir()) == []


def test_too_many_communicators(nccl_plugin, tmp_path):
    """The file has room for 64; the others run unrecorded, and one line says so."""
    said, (line,) = aside(nccl_plugin, tmp_path, comms=66)
    assert said[0] == "64"
    assert "some communicators are not recorded: there are over 64" in line


@pytest.mark.parametrize(("size", "recorded"), [("12k", "0"), ("64k", "1")])
def test_full_memory_does_not_end_the_program(nccl_plugin, tmp_path, size, recorded):
    """A store into a full file system would be a SIGBUS: what has no room is not recorded."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is missing, which makes a small file system for one process")
    mount = f'mount -t tmpfs -o size={size} none {tmp_path} && exec "$@"'
    wrap = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh")
    if subprocess.run([*wrap, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel lets nobody mount in a user namespace")
    said, (line,) = aside(nccl_plugin, tmp_path, comms=3, wrap=wrap)
    assert said[0] == recorded
    assert "memory" in line
