"""Telemetry of processes that the agent has not started: their users are not believed."""

import asyncio
import os
import subprocess
import sys
from contextlib import contextmanager

import msgspec
import pytest

from c4bench.agent.attached import AttachedRanks
from c4bench.agent.ranks import Ranks
from c4bench.attach.launchers import Identity
from c4bench.attach.server import AttachedProcess
from c4bench.collective import ring_layout as layout
from c4bench.collective.recorder import Recorder
from c4bench.collective.ring_layout import CommEntry, ConnName
from c4bench.errors import UsageError
from c4bench.model.agent import AgentConfig
from c4bench.model.telemetry import CommRecord, Member
from c4bench.model.window import NUMBERS_AT_MOST, EndName, Numbering
from c4bench.wire.messages import Seated


def config(folder):
    return AgentConfig("h0", "10.0.0.1", str(folder), rings=str(folder), attach_records=str(folder))


def write_ring(folder, name):
    """A telemetry file as the preloaded library writes it, with a connection."""
    with Recorder(folder / name, "", -1) as recorder:
        index = recorder.communicator(CommRecord("verbs", "", ()), -1)
        recorder.connection(ConnName(index, -1, "10.0.0.1", "10.1.0.1", 17), 50_001, 1)


def write_calls(path, calls, rank=0, size=2):
    """A telemetry file as the library for MPI writes it, in which a rank has called so many collectives."""
    with Recorder(path, "", -1) as recorder:
        members = tuple(Member(each, "", ()) for each in dict.fromkeys((rank, size - 1)))
        index = recorder.communicator(CommRecord("mpi-world", "", members), rank)
        for seq in range(calls):
            recorder.operation(index, seq, "barrier", "", "", 0, 1_000_000 + seq).store()


@contextmanager
def sleeping():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def add(ranks, pid, ring, rank=None):
    """Attach a process, and give it a rank."""
    ranks.add(AttachedProcess(pid, os.getuid(), Identity("job", rank), ring), os.pidfd_open(pid))
    ranks.seat(Seated({pid: 5 if rank is None else rank}, {}))


def seen(folder, *names):
    """The window of an agent to which a living process with each of these telemetry files is attached."""

    async def play():
        ranks = Ranks(config(folder))
        with several(len(names)) as children:
            for rank, (child, name) in enumerate(zip(children, names, strict=True)):
                add(ranks.attached, child.pid, name, rank)
            window = ranks.window(0.0, 0.1)
            ranks.attached.close()
            return window, ranks.attached.unreadable

    return asyncio.run(play())


@contextmanager
def several(count):
    """So many sleeping processes."""
    if not count:
        yield []
        return
    with sleeping() as one, several(count - 1) as others:
        yield [one, *others]


def test_records_get_the_job_and_the_rank_of_their_process(tmp_path):
    """What the process does not know of itself is what its launcher and the master say."""
    write_ring(tmp_path, "7.ring")
    window, unreadable = seen(tmp_path, "7.ring")
    assert unreadable == 0
    assert [(one.job, one.rank, one.host, one.state) for one in window.ranks] == [("job", 0, "h0", "running")]
    assert window.comms == (CommRecord("job/verbs", "job", ()),)
    assert [(one.comm, one.rank, one.source) for one in window.conns] == [("job/verbs", 0, "10.0.0.1")]


def _cut(path):
    os.truncate(path, layout.FILE_BYTES // 2)


def _garble(path):
    """Both copies of each record of connections are torn."""
    with path.open("r+b") as file:
        file.seek(layout.CONNS_AT)
        file.write(b"\x01" * 2 * layout.CONN_BYTES)


def _misshape(path):
    """A connection with fewer numbers than it has to have, and a name that is none."""
    memory = memoryview(bytearray(path.read_bytes()))
    layout.Slot(memory, layout.CONNS_AT, layout.CONN_BYTES).write(b"\x00" * 9)
    layout.Slot(memory, layout.CONN_NAMES_AT, layout.CONN_NAME_BYTES).write(b"\xc1")
    path.write_bytes(memory)


def _comm(name, members=0):
    def write(path):
        memory = memoryview(bytearray(path.read_bytes()))
        record = CommRecord(name, "", tuple(Member(rank, "", ()) for rank in range(members)))
        layout.Slot(memory, layout.COMMS_AT, layout.COMM_BYTES).write(msgspec.msgpack.encode(CommEntry(0, record)))
        path.write_bytes(memory)

    return write


@pytest.mark.parametrize("harm", [_cut, _garble, _misshape, _comm("x" * 200), _comm("a\x1b[2J"), _comm("w", 4_500)])
def test_a_hostile_ring_costs_its_own_process_only(tmp_path, harm):
    """A file that is cut, torn or of impossible contents is not read; that of another process beside it is."""
    write_ring(tmp_path, "7.ring")
    write_ring(tmp_path, "8.ring")
    harm(tmp_path / "7.ring")
    window, unreadable = seen(tmp_path, "7.ring", "8.ring")
    assert unreadable == 1
    assert [one.rank for one in window.conns] == [1]
    assert [one.rank for one in window.ranks] == [0, 1]


def test_a_file_that_is_cut_later_ends_nobody(tmp_path):
    """A mapped file that is cut would end the agent by a signal; a copy is not."""
    write_ring(tmp_path, "7.ring")

    async def play():
        ranks = Ranks(config(tmp_path))
        with sleeping() as child:
            add(ranks.attached, child.pid, "7.ring")
            before = len(ranks.window(0.0, 0.1).conns)
            os.truncate(tmp_path / "7.ring", 0)
            after = ranks.window(0.1, 0.2)
            ranks.attached.close()
        return before, after

    before, after = asyncio.run(play())
    assert (before, len(after.conns), len(after.ranks)) == (1, 0, 1)


def test_programs_of_others_leave_half_of_the_numbers(tmp_path):
    """However many connections attached processes have, there are numbers left for the host's own ranks."""
    shared = Numbering()
    for qp in range(NUMBERS_AT_MOST // 2):
        shared.sends.number(EndName("c", 0, 1, "h0/0", "h1/0", qp))
    write_ring(tmp_path, "7.ring")

    async def play():
        ranks = AttachedRanks(config(tmp_path), shared)
        with sleeping() as child:
            add(ranks, child.pid, "7.ring")
            tables = ranks.tables(0.0)
            ranks.close()
        return tables, ranks.unreadable

    assert asyncio.run(play()) == ([], 1)
    assert shared.sends.number(EndName("own", 0, 1, "h0/0", "h1/0", 1)) == NUMBERS_AT_MOST // 2


class Followed:
    """A process of rank 5, with a telemetry file for its connections, and the windows of its agent."""

    def __init__(self, folder):
        self.calls = folder / "7.mpi.ring"
        self._ranks = Ranks(config(folder))
        write_ring(folder, "7.ring")

    def __enter__(self):
        self._child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        add(self._ranks.attached, self._child.pid, "7.ring", 5)
        return self

    def __exit__(self, *_raised):
        self._ranks.attached.close()
        self._child.kill()
        self._child.wait()

    def window(self):
        """A window's communicators by name and own place, the calls it has, and how many connections."""
        window = self._ranks.window(0.0, 1.0)
        comms = {(one.comm, one.members[:1]) for one in window.comms}
        return comms, [(op.comm, op.rank, op.seq) for op in window.ops], len(window.conns)


def test_what_a_program_calls_is_read_beside_its_connections(tmp_path):
    """A file that a library makes later is found, and one that it makes again replaces the one that it removed."""
    verbs, world = ("job/verbs", ()), ("job/mpi-world", (Member(1, "h0", (), 5),))

    async def play():
        with Followed(tmp_path) as followed:
            assert followed.window() == ({verbs}, [], 1)
            write_calls(followed.calls, 2, rank=1, size=3)
            assert followed.window() == ({verbs, world}, [("job/mpi-world", 1, 0), ("job/mpi-world", 1, 1)], 1)
            followed.calls.unlink()
            assert followed.window() == ({verbs, world}, [("job/mpi-world", 1, 0), ("job/mpi-world", 1, 1)], 1)
            write_calls(followed.calls, 1, rank=1, size=3)
            assert followed.window() == ({verbs, world}, [("job/mpi-world", 1, 0)], 1)

    asyncio.run(play())


@pytest.mark.parametrize("harm", [_cut, _comm("x" * 200), _comm("w", 4_500), lambda path: path.write_bytes(b"")])
def test_hostile_calls_cost_only_themselves(tmp_path, harm):
    """Of a process whose calls cannot be read the connections still are."""

    async def play():
        with Followed(tmp_path) as followed:
            write_calls(followed.calls, 2)
            harm(followed.calls)
            _, calls, connections = followed.window()
            assert (calls, connections, followed._ranks.attached.unreadable) == ([], 1, 1)

    asyncio.run(play())


def test_two_processes_do_not_share_their_records(tmp_path):
    """A telemetry file belongs to the first process that names it."""
    write_ring(tmp_path, "7.ring")

    async def play():
        ranks = AttachedRanks(config(tmp_path), Numbering())
        with sleeping() as one, sleeping() as other:
            add(ranks, one.pid, "7.ring")
            with pytest.raises(UsageError, match="those of another process"):
                add(ranks, other.pid, "7.ring")
            ranks.close()

    asyncio.run(play())
