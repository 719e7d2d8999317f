"""Telemetry in shared memory: readable at any moment, refused when foreign, never wrong."""

import mmap
import random
import signal
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from c4bench.collective import ring_layout as layout
from c4bench.collective.recorder import Recorder, _SlotTable
from c4bench.collective.ring_layout import ConnName
from c4bench.collective.ring_reader import read_owner, read_telemetry_file
from c4bench.errors import UsageError
from c4bench.model.telemetry import CommRecord, Member

COMM = CommRecord("dp", "job", (Member(0, "h0", ("h0/0",)), Member(1, "h1", ("h1/0",))))


def test_records_come_back_as_written(tmp_path):
    """Communicator, operation and connection read back field by field, and the owner is this process."""
    with Recorder(tmp_path / "r", "job", 4) as recorder:
        index = recorder.communicator(COMM, 1)
        op = recorder.operation(index, 3, "all_reduce", "ring", "float32", 64, 5_000_000_000)
        for peer in range(3):
            op.awaiting(peer, still=True)
        op.awaiting(1, still=False)
        op.store()
        conn = recorder.connection(ConnName(index, 0, "h1/0", "h0/0", 17), 0xC123, 1_000_000_000)
        conn.set_state("credit", 0, 8, 2_000_000_000)
        for _ in range(3):
            conn.post(4_500_000_000)
        conn.acknowledge(40, 4_600_000_000)
        conn.acknowledge(60, 4_700_000_000)
        conn.set_state("transfer", 1, 5, 4_500_000_000)
        arrivals = recorder.arrivals(ConnName(index, 0, "h0/0", "h1/0", 23))
        arrivals.arrived(7)
        arrivals.store()
        ring = read_telemetry_file(tmp_path / "r")
        running = read_telemetry_file(tmp_path / "r", now_s=5.0)
    assert ring.comms == (COMM,)
    assert (ring.ops[0].seq, ring.ops[0].rank, ring.ops[0].kind, ring.ops[0].awaits) == (3, 1, "all_reduce", (0, 2))
    assert (ring.ops[0].entered_s, ring.ops[0].finished_s) == (5.0, 0.0)
    record = ring.conns[0]
    assert (record.peer, record.source, record.qp, record.source_port) == (0, "h1/0", 17, 0xC123)
    assert (record.wait_credit_s, record.transfer_s, record.state, record.state_since_s) == (2.5, 0.0, "transfer", 4.5)
    assert (record.messages, record.size_bytes, record.outstanding, record.owed) == (2, 100, 1, 5)
    assert (record.posted, record.posted_sum_ns, record.last_progress_s) == (3, 13_500_000_000, 4.7)
    assert running.conns[0].transfer_s == 0.5
    assert [(end.source, end.qp, end.messages, end.arrived_sum_ns) for end in ring.arrivals] == [("h0/0", 23, 1, 7)]
    with (tmp_path / "r").open("rb") as file:
        assert read_owner(tmp_path / "r", file.fileno()).rank == 4


@pytest.mark.parametrize(
    ("record", "format_", "values"),
    [
        (layout.CONN, "<QQqqqqqIIIIq9Q", range(1, 22)),
        (layout.TALLY, "<9Q", [(1 << 64) - at for at in range(1, 10)]),
        (layout.OP, "<QQqqq48s", (1, 1 << 63, -1, 2, 3, b"names")),
    ],
)
def test_records_lie_little_endian_without_gaps(record, format_, values):
    """A record's bytes are the same however CPython is told to pack them."""
    assert record.pack(*values) == struct.pack(format_, *values)


def test_interrupted_write_leaves_the_value_before():
    """A record cut off after any number of bytes reads as its previous value, never as a mixture."""
    mapped = mmap.mmap(-1, 4096)
    memory = memoryview(mapped)
    old, new = b"old" * 20, b"NEW" * 20
    slot = layout.Slot(memory, 0, 128)
    slot.write(b"first" * 12)
    slot.write(old)
    before = bytes(memory)
    slot.write(new)
    after = bytes(memory)
    changed = [at for at in range(256) if before[at] != after[at]]
    for seed in range(200):
        written = random.Random(seed).sample(changed, random.Random(seed).randrange(len(changed)))
        memory[:256] = before[:256]
        for at in written:
            memory[at] = after[at]
        assert layout.read_slot(mapped, 0, 128) == old
    memory[:256] = after[:256]
    assert layout.read_slot(mapped, 0, 128) == new


def test_reader_never_sees_a_mixture_under_fire(tmp_path):
    """While a writer thread updates without pause, every reading is one that was written, and counters never fall."""
    with Recorder(tmp_path / "r", "job", 0) as recorder:
        index = recorder.communicator(COMM, 0)
        conn = recorder.connection(ConnName(index, 1, "h0/0", "h1/0", 17), 0, 0)
        stop = threading.Event()

        def write():
            while not stop.is_set():
                conn.messages += 1
                conn.size_bytes = conn.messages * 7
                conn.store()

        thread = threading.Thread(target=write)
        thread.start()
        records = [read_telemetry_file(tmp_path / "r").conns[0] for _ in range(20)]
        stop.set()
        thread.join()
    assert all(record.size_bytes == record.messages * 7 for record in records)
    assert [record.messages for record in records] == sorted(record.messages for record in records)


def test_file_of_a_killed_process_is_read(tmp_path):
    """After SIGKILL in the middle of an operation the record still shows it entered and unfinished."""
    program = f"""
import os, signal, sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from c4bench.collective.recorder import Recorder
from c4bench.model.telemetry import CommRecord
recorder = Recorder(Path({str(tmp_path / "r")!r}), "job", 0)
index = recorder.communicator(CommRecord("dp", "job", ()), 0)
recorder.operation(index, 0, "barrier", "ring", "uint8", 0, 10**9).store()
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    (op,) = read_telemetry_file(tmp_path / "r").ops
    assert (op.kind, op.entered_s, op.finished_s) == ("barrier", 1.0, 0.0)


def test_foreign_and_truncated_files_are_refused(tmp_path):
    """What is not a whole telemetry file of this version is refused in one line that names the file."""
    path = tmp_path / "r"
    Recorder(path, "job", 0).close()
    whole = path.read_bytes()
    (tmp_path / "empty").touch()
    (tmp_path / "short").write_bytes(whole[:-1])
    (tmp_path / "foreign").write_bytes(b"\x7fELF" + whole[4:])
    for name in ("empty", "short", "foreign", "missing"):
        with pytest.raises(UsageError, match=name):
            read_telemetry_file(tmp_path / name)


def test_damaged_record_is_reported(tmp_path):
    """A record whose two copies are both spoiled is an error that says where, not a silent gap."""
    path = tmp_path / "r"
    with Recorder(path, "job", 0) as recorder:
        recorder.communicator(COMM, 0)
    raw = bytearray(path.read_bytes())
    raw[layout.COMMS_AT + layout.COMM_BYTES + 20] ^= 1
    path.write_bytes(raw)
    with pytest.raises(UsageError, match="damaged at byte"):
        read_telemetry_file(path)


def test_reader_needs_neither_numpy_nor_pyverbs():
    """The agent's side imports without numpy and without pyverbs."""
    program = (
        f"import sys; sys.path[:0] = {sys.path!r}; sys.modules['numpy'] = sys.modules['pyverbs'] = None;"
        "import c4bench.collective.ring_reader, c4bench.collective.recorder"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("what", ["communicators", "connections", "arrivals", "a release"])
def test_threads_allocate_one_after_the_other(tmp_path, monkeypatch, what):
    """Threads that use one recorder at the same time never get the same record, however slow each of them is."""
    inside, met = [], threading.Event()

    def slowly(real):
        def step(*arguments):
            inside.append(what)
            if len(inside) > 1:
                met.set()
            met.wait(0.1)
            result = real(*arguments)
            inside.pop()
            return result

        return step

    with Recorder(tmp_path / "r", "job", 0) as recorder:
        index, old = recorder.communicator(COMM, 0), recorder.communicator(COMM, 0)
        for name in ("allocate", "free"):
            monkeypatch.setattr(_SlotTable, name, slowly(getattr(_SlotTable, name)))
        steps = {
            "communicators": lambda _: recorder.communicator(COMM, 0),
            "connections": lambda qp: recorder.connection(ConnName(index, 1, "h0/0", "h1/0", qp), 0, 0),
            "arrivals": lambda qp: recorder.arrivals(ConnName(index, 1, "h1/0", "h0/0", qp)),
            "a release": lambda qp: recorder.release(old) if qp else recorder.communicator(COMM, 0),
        }
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(steps[what], range(2)))
    assert not met.is_set()


def test_tables_that_are_full_say_so(tmp_path):
    """The communicator too many is refused with the limit."""
    with Recorder(tmp_path / "r", "job", 0) as recorder:
        for _ in range(layout.COMMS):
            recorder.communicator(COMM, 0)
        with pytest.raises(UsageError, match="at most 64 communicators"):
            recorder.communicator(COMM, 0)


def test_a_collective_fills_all_layers(world):
    """After an all-reduce every rank's file shows it finished, and its connection's messages, bytes and idle state."""
    job = world(3, chunk_bytes=1024, staging_bytes=4096)
    job.run(lambda comm: comm.all_reduce(np.zeros(3000, np.float32)))
    for rank in range(3):
        ring = read_telemetry_file(job.path(rank))
        (op,), (conn,) = ring.ops, ring.conns
        assert 0 < op.entered_s <= op.started_s <= op.finished_s
        assert (op.kind, op.algorithm, op.dtype, op.size_bytes, op.awaits) == (
            "all_reduce",
            "ring",
            "float32",
            12000,
            (),
        )
        assert (conn.rank, conn.peer, conn.size_bytes, conn.messages) == (rank, (rank + 1) % 3, 16000, 16)
        assert (conn.outstanding, conn.owed, conn.state) == (0, 0, "idle")
        spent = conn.wait_credit_s + conn.wait_data_s + conn.transfer_s
        assert 0 < spent <= op.finished_s - op.entered_s + 1e-6


def test_a_hang_shows_who_waits_for_whom(world):
    """With a rank missing, its left neighbour waits for its credit, its right one for its data, the rest behind."""
    job = world(4, timeout_s=0.2)
    job.run(lambda comm: comm.rank == 2 or comm.all_reduce(np.zeros(100, np.float32)))
    rings = [read_telemetry_file(job.path(rank), now_s=2e10) for rank in range(4)]
    assert rings[2].ops == ()
    assert (rings[1].conns[0].peer, rings[1].conns[0].state, rings[1].conns[0].owed) == (2, "credit", 6)
    assert rings[1].conns[0].wait_credit_s > 1e9
    assert (rings[3].ops[0].awaits, rings[3].ops[0].finished_s) == ((2,), 0.0)
    assert (rings[0].ops[0].awaits, rings[0].conns[0].state) == ((3,), "data")
