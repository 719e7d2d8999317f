"""The machine we run on as a host, and sessions on the pipes of a process."""

import sys
import time

import pytest

from c4bench.errors import UnhealthyError
from c4bench.inventory import Access
from c4bench.remote import Completed, connect

ECHO = [sys.executable, "-u", "-c", "import sys\nfor line in sys.stdin: print('heard', line, end='')\nsys.exit(7)"]


@pytest.fixture
def host():
    with connect("here", Access("127.0.0.1", connection="local")) as connection:
        yield connection


def test_a_command_gets_bytes_and_gives_bytes(host):
    """Input, output and complaints pass through unchanged, whatever their encoding."""
    done = host.run(["sh", "-c", "cat; echo oh >&2"], input=b"\xff\0\n", timeout_s=10)
    assert done == Completed(0, b"\xff\0\n", b"oh\n")


def test_a_failing_command_is_an_error_with_its_last_words(host):
    """The message names host, command, code and reason; without `check` the code is just returned."""
    with pytest.raises(UnhealthyError, match="here: sh failed with code 3: no luck"):
        host.run(["sh", "-c", "echo no luck >&2; exit 3"], timeout_s=10)
    assert host.run(["false"], timeout_s=10, check=False).code == 1


def test_a_missing_command_and_a_late_one_are_errors(host):
    """Neither is mistaken for a command that ran."""
    with pytest.raises(UnhealthyError, match=r"here: cannot run no-such-command"):
        host.run(["no-such-command"], timeout_s=10)
    with pytest.raises(UnhealthyError, match=r"sleep did not end within 0.1 s"):
        host.run(["sleep", "9"], timeout_s=0.1)


def test_a_file_is_copied_with_its_mode(host, tmp_path):
    """An executable stays one."""
    (tmp_path / "tool").write_text("x")
    (tmp_path / "tool").chmod(0o755)
    host.put(tmp_path / "tool", str(tmp_path / "copy"))
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o755
    with pytest.raises(UnhealthyError, match="cannot copy"):
        host.put(tmp_path / "tool", str(tmp_path / "none" / "copy"))


def test_a_session_answers_line_by_line_and_ends_with_its_input(host):
    """Lines go both ways while the command runs; closing ends its input, and its exit code stays to be read."""
    session = host.start(ECHO)
    for word in ("one", "two"):
        session.write_line(word)
        assert session.read_line(10) == f"heard {word}"
    assert session.exit_code is None
    session.close()
    assert session.exit_code == 7


def test_lines_that_arrive_together_are_read_one_by_one(host):
    """A second line in the same packet is not lost and not waited for."""
    session = host.start(["printf", "a\\nb\\n"])
    assert [session.read_line(10), session.read_line(0)] == ["a", "b"]
    session.close()


def test_waiting_for_a_line_ends_in_time(host, monkeypatch):
    """A silent command is an error after the time given, not before."""
    monkeypatch.setattr("c4bench.remote.local._GRACE_S", 0.1)
    session = host.start(["sleep", "9"])
    started = time.monotonic()
    with pytest.raises(UnhealthyError, match=r"here: sleep gave no answer within 0.2 s"):
        session.read_line(0.2)
    assert time.monotonic() - started >= 0.2
    session.close()


def test_a_command_that_ends_says_why(host):
    """Reading or writing to it afterwards is an error with its code and last words."""
    session = host.start(["sh", "-c", "echo broken >&2; exit 4"])
    with pytest.raises(UnhealthyError, match=r"here: sh ended \(code 4\): broken"):
        session.read_line(10)
    with pytest.raises(UnhealthyError, match=r"ended \(code 4\)"):
        session.write_line("hello?")
    session.close()


def test_a_command_that_ignores_the_end_of_its_input_is_killed(host, monkeypatch):
    """Closing always returns, and leaves no process."""
    monkeypatch.setattr("c4bench.remote.local._GRACE_S", 0.1)
    session = host.start(["sleep", "99"])
    session.close()
    assert session.exit_code == -9
