"""The agent as a daemon: started once, found again, ended with all it has started."""

import os
import signal
import time

import pytest
from process_state import process_state

from c4bench.agent.main import Daemon
from c4bench.errors import UnhealthyError


@pytest.fixture
def daemon(tmp_path):
    daemon = Daemon(tmp_path)
    yield daemon
    daemon.stop(5)


def sleeper(ready):
    """A daemon's main that tells it is ready, and who it is."""

    def main():
        ready.write_text(f"{os.getpid()} {os.getsid(0)} {os.getppid()}")
        time.sleep(60)
        return 0

    return main


def start(daemon, tmp_path, main=None):
    ready = tmp_path / "ready"
    daemon.start(main or sleeper(ready), lambda: ready.exists() and ready.read_text() != "", 5)
    return ready.read_text().split()


def test_it_runs_on_its_own_and_is_found_by_its_pid_file(daemon, tmp_path):
    """The daemon is in a new session, which it does not lead, and its PID is in the file."""
    pid, session, _ = start(daemon, tmp_path)
    assert (tmp_path / "agent.pid").read_text().strip() == pid
    assert session not in (pid, str(os.getsid(0)))
    assert daemon.running


def test_a_second_one_is_refused(daemon, tmp_path):
    """The message names the first, which goes on undisturbed."""
    pid = start(daemon, tmp_path)[0]
    with pytest.raises(UnhealthyError, match=rf"runs here already \(process {pid}\); end it with --stop"):
        start(daemon, tmp_path)
    assert (tmp_path / "agent.pid").read_text().strip() == pid
    assert daemon.running


def test_stop_waits_until_it_is_gone(daemon, tmp_path):
    """Afterwards there is neither process nor pid file, and stopping again is no error."""
    pid = start(daemon, tmp_path)[0]
    daemon.stop(5)
    assert process_state(int(pid)) == "exited"
    assert not (tmp_path / "agent.pid").exists()
    daemon.stop(5)


def test_a_pid_file_left_by_a_crash_is_no_obstacle(daemon, tmp_path):
    """The number of a process that is somebody else's is neither believed nor killed."""
    (tmp_path / "agent.pid").write_text(f"{os.getpid()}\n")
    assert not daemon.running
    start(daemon, tmp_path)
    assert daemon.running


def test_one_that_does_not_listen_is_killed(daemon, tmp_path):
    """SIGTERM is asked first; what ignores it does not stay."""
    ready = tmp_path / "ready"

    def stubborn():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return sleeper(ready)()

    pid = start(daemon, tmp_path, stubborn)[0]
    daemon.stop(0.2)
    assert process_state(int(pid)) == "exited"


def test_what_it_started_counts_as_its_own(daemon, tmp_path):
    """While a child of a dead daemon lives, the daemon is running: a new one would meet the old one's ranks."""
    ready = tmp_path / "ready"

    def forking():
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        ready.write_text(f"{child}")
        return 0

    child = int(start(daemon, tmp_path, forking)[0])
    assert daemon.running
    os.kill(child, signal.SIGKILL)
    daemon.stop(5)
    assert not daemon.running


def test_one_that_fails_at_once_says_why(daemon):
    """The last line of its log is in the error, and nothing is left running."""

    def failing():
        os.write(2, b"ValueError: no such certificate\n")
        return 1

    with pytest.raises(UnhealthyError, match="the agent ended at once: ValueError: no such certificate"):
        daemon.start(failing, lambda: False, 5)
    assert not daemon.running


def test_one_that_is_never_ready_is_an_error(daemon, tmp_path):
    """After the time given the caller hears of it, with the place of the log."""
    with pytest.raises(UnhealthyError, match=r"not ready after 0.1 s \(log: .*agent.log\)"):
        daemon.start(sleeper(tmp_path / "ready"), lambda: False, 0.1)
