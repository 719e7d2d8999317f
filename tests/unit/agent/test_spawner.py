"""The spawner forks ranks and reports their ends, and no rank outlives the agent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from process_state import process_state

from c4bench.agent.spawner import Exited, Report, Spawn, Started, start
from c4bench.wire.framing import frame
from c4bench.wire.messages import JobSpec

JOB = JobSpec("job", "test", (), ())


@pytest.fixture
def spawner(request):
    """A spawner whose ranks run a function of the test."""
    line = start(lambda: request.param)
    yield line
    line.close()


def ask(line, rank, log):
    line.sendall(frame(msgspec.msgpack.encode(Spawn(JOB, rank, str(log)))))


def hear(line):
    length = int.from_bytes(line.recv(4))
    return msgspec.msgpack.decode(line.recv(length), type=Report)


def speak(_, rank):
    sys.stdout.write(f"rank {rank}\n")
    return rank


def sleep(*_):
    time.sleep(60)
    return 0


def fail(*_):
    raise ValueError("on purpose")


@pytest.mark.parametrize("spawner", [speak], indirect=True)
def test_ranks_are_started_and_their_ends_reported(spawner, tmp_path):
    """Each request is answered with a process number, each exit is reported with its code, and output is in the log."""
    ask(spawner, 3, tmp_path / "3.log")
    started = hear(spawner)
    assert (started.job, started.rank) == ("job", 3)
    assert hear(spawner) == Exited(started.pid, 3)
    assert (tmp_path / "3.log").read_text() == "rank 3\n"


@pytest.mark.parametrize("spawner", [fail], indirect=True)
def test_a_failing_rank_leaves_its_traceback(spawner, tmp_path):
    """An exception in a rank is in its log and its exit code, and the spawner continues."""
    for _ in range(2):
        ask(spawner, 0, tmp_path / "0.log")
        started = hear(spawner)
        assert hear(spawner) == Exited(started.pid, 1)
    assert (tmp_path / "0.log").read_text().count("ValueError: on purpose") == 2


@pytest.mark.parametrize("spawner", [sleep], indirect=True)
def test_a_killed_rank_is_reported_with_its_signal(spawner, tmp_path):
    """A rank that ends by a signal is reported with a negative code, and a stopped one shows as stopped."""
    ask(spawner, 0, tmp_path / "0.log")
    started = hear(spawner)
    os.kill(started.pid, signal.SIGSTOP)
    deadline = time.monotonic() + 5
    while process_state(started.pid) != "stopped" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process_state(started.pid) == "stopped"
    os.kill(started.pid, signal.SIGKILL)
    assert hear(spawner) == Exited(started.pid, -signal.SIGKILL)


@pytest.mark.parametrize("spawner", [sleep], indirect=True)
def test_no_rank_outlives_its_agent(spawner, tmp_path):
    """When the agent's end of the socket closes, all ranks are killed."""
    ask(spawner, 0, tmp_path / "0.log")
    started = hear(spawner)
    assert isinstance(started, Started)
    spawner.close()
    deadline = time.monotonic() + 5
    while process_state(started.pid) != "exited" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{started.pid}").exists() or process_state(started.pid) == "exited"


def test_a_missing_package_is_named_in_the_ranks_log(tmp_path):
    """If a package that ranks need is missing, the spawner continues, and each rank's log has the reason."""

    def missing():
        raise ModuleNotFoundError("No module named 'numpy'")

    line = start(missing)
    ask(line, 0, tmp_path / "0.log")
    started = hear(line)
    assert hear(line) == Exited(started.pid, 1)
    assert "ranks cannot run on this host: No module named 'numpy'" in (tmp_path / "0.log").read_text()
    line.close()


def test_ranks_load_only_what_all_of_them_need():
    """Ranks are forked with the collectives loaded, and without modules that only the agent or some ranks need."""
    others = {"asyncio", "ssl", "websockets", "numpy.random", "c4bench.collective.migration"}
    program = (
        f"import sys; sys.path[:0] = {sys.path!r}; import c4bench.agent.main, c4bench.workload.programs;"
        f"print({others!r} & {{*sys.modules}})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "set()", done.stderr
