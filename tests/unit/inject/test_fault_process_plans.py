"""What faults of a rank's process do to it, and how they are undone: signals, shared controls and a control group."""

import os
import signal
import subprocess
import time
from types import SimpleNamespace

import pytest
from fakes import rank_request

from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject import actions
from c4bench.inject.actions import (
    Delete,
    ExhaustMemory,
    Fill,
    Join,
    Plan,
    Run,
    SetKnob,
    Signal,
    StepClock,
    Write,
    together,
)
from c4bench.inject.drivers import process
from c4bench.inject.processes import ProcessTarget, started_ticks, state, user_of
from c4bench.workload.controls import Controls


@pytest.fixture
def rank(tmp_path):
    """A rank on paper, with controls that other faults have set already."""
    Controls.create(tmp_path / "controls").set("compute_factor", 1.5)
    return ProcessTarget(4711, 99, 1000, tmp_path / "ring", tmp_path / "controls", "/system.slice/agent.service")


@pytest.mark.parametrize(
    ("make", "sent", "undone", "claim"),
    [
        (process.kill, signal.SIGKILL, None, "life"),
        (process.segfault, signal.SIGSEGV, None, "life"),
        (process.stop, signal.SIGSTOP, signal.SIGCONT, "running"),
    ],
)
def test_signals_go_to_the_process_that_was_found(rank, make, sent, undone, claim):
    """The PID, its start and its user, so that no other process gets it; only a stopped one is continued."""
    plan = make(rank_request("process.x"), rank)
    assert plan.apply == (Signal(4711, 99, 1000, sent),)
    assert plan.revert == ((Signal(4711, 99, 1000, undone),) if undone else ())
    assert plan.claims == (f"{claim} of process 4711",)


def test_controls_are_set_and_set_back_to_what_they_were(rank, monkeypatch):
    """A slower rank is slower than it is now; a hang ends by itself with the lease, and an exit is called off."""
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: 500.0))
    path = str(rank.controls)
    slow = process.slow(rank_request("process.slow", factor=3), rank)
    assert (slow.apply, slow.revert) == (
        (SetKnob(path, "compute_factor", 4.5),),
        (SetKnob(path, "compute_factor", 1.5),),
    )
    assert slow.claims == ("pace of process 4711",)
    hang = process.hang(rank_request("process.hang"), rank)
    assert (hang.apply, hang.revert) == ((SetKnob(path, "hang_until_s", 530.0),), (SetKnob(path, "hang_until_s", 0.0),))
    leave = process.exit_rank(rank_request("process.exit", code=7), rank)
    assert (leave.apply, leave.revert) == ((SetKnob(path, "exit_code", 7.0),), (SetKnob(path, "exit_code", 0.0),))
    assert (hang.claims, leave.claims) == (("running of process 4711",), ("life of process 4711",))


def test_an_uneven_rank_is_slow_in_a_rhythm(rank):
    """The plan is that of a slow rank, repeated by the request's period, duty and count."""
    asked = rank_request("process.uneven", factor=3, period_s=2.0, duty=0.25, count=5)
    plan = process.intermittent(asked, rank)
    assert plan.apply == process.slow(asked, rank).apply
    assert (plan.rhythm.period_s, plan.rhythm.duty, plan.rhythm.count) == (2.0, 0.25, 5)


def test_memory_is_exhausted_in_a_group_of_the_ranks_own(rank):
    """The rank moves there and back to the group that it was found in; the group goes once it is empty."""
    plan = process.memory(rank_request("process.memory"), rank)
    group = "/sys/fs/cgroup/c4bench-4711"
    assert plan.apply == (
        Write("/sys/fs/cgroup/cgroup.subtree_control", "+memory"),
        Run(("mkdir", group)),
        Join(4711, 99, 1000, group),
        ExhaustMemory(group, 4 << 20),
    )
    assert plan.revert == (
        Join(4711, 99, 1000, "/sys/fs/cgroup/system.slice/agent.service"),
        Run(("rmdir", group)),
    )


@pytest.fixture
def sleeper():
    """A process of this user that sleeps."""
    child = subprocess.Popen(["sleep", "60"])
    yield child
    child.kill()
    child.wait()


def until(holds):
    deadline_s = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_signal_reaches_the_process_and_no_later_one(sleeper):
    """It is stopped and continued; with another start or user, or once it has ended, nothing is sent."""
    ticks, user = started_ticks(sleeper.pid), os.geteuid()
    Signal(sleeper.pid, ticks, user, signal.SIGSTOP).perform()
    until(lambda: state(sleeper.pid) == "T")
    with pytest.raises(UnhealthyError, match=f"process {sleeper.pid} has ended"):
        Signal(sleeper.pid, ticks + 1, user, signal.SIGKILL).perform()
    with pytest.raises(UnhealthyError, match=f"process {sleeper.pid} is another user's"):
        Signal(sleeper.pid, ticks, user + 1, signal.SIGKILL).perform()
    Signal(sleeper.pid, ticks, user, signal.SIGCONT).perform()
    until(lambda: state(sleeper.pid) == "S")
    Signal(sleeper.pid, ticks, user, signal.SIGKILL).perform()
    assert sleeper.wait(10) == -signal.SIGKILL
    assert (started_ticks(sleeper.pid), state(sleeper.pid), user_of(sleeper.pid)) == (None, "X", -1)
    with pytest.raises(UnhealthyError, match=f"process {sleeper.pid} has ended"):
        Signal(sleeper.pid, ticks, user, signal.SIGKILL).perform()


def test_a_knob_is_set_in_the_ranks_controls(rank):
    """The rank reads what was set; where no such rank runs it is said."""
    SetKnob(str(rank.controls), "compute_factor", 2.5).perform()
    assert Controls.open(rank.controls).read("compute_factor") == 2.5
    with pytest.raises(UsageError):
        SetKnob(str(rank.controls) + "x", "compute_factor", 2.5).perform()


def test_a_kernel_file_is_written_and_never_created(tmp_path):
    """Text and a line end, without truncation, as files of the kernel expect it; a refusal is one line."""
    path = tmp_path / "knob"
    path.write_text("before, and more\n")
    Write(str(path), "now").perform()
    assert path.read_text() == "now\nre, and more\n"
    with pytest.raises(UnhealthyError, match=r"missing does not take 'now': No such file or directory"):
        Write(str(tmp_path / "missing"), "now").perform()
    assert not (tmp_path / "missing").exists()


def test_a_file_is_filled_and_deleted(tmp_path):
    """All its bytes are allocated at once, for its owner alone; deleting it again is harmless."""
    path = tmp_path / "filler"
    fill, delete = Fill(str(path), 3 << 20), Delete(str(path))
    fill.perform()
    assert (path.stat().st_size, path.stat().st_mode & 0o777) == (3 << 20, 0o600)
    assert path.stat().st_blocks * 512 >= 3 << 20
    fill.perform()
    assert delete.left
    delete.perform()
    delete.perform()
    assert (path.exists(), delete.left) == (False, False)
    with pytest.raises(UnhealthyError, match="cannot be deleted"):
        Delete(str(tmp_path)).perform()


@pytest.mark.parametrize("kind", ["link", "second name", "FIFO"])
def test_what_others_have_put_in_the_way_is_not_filled(tmp_path, kind):
    """A link, another name of a file, or a FIFO at the path is refused, and what it leads to is as before."""
    path, other = tmp_path / "filler", tmp_path / "other"
    other.write_text("x")
    {"link": path.symlink_to, "second name": path.hardlink_to}.get(kind, lambda _: os.mkfifo(path))(other)
    with pytest.raises(UnhealthyError, match=r"filler (is not c4bench's; remove it|does not take 1048576 bytes)"):
        Fill(str(path), 1 << 20).perform()
    assert other.read_text() == "x"


def test_a_step_of_the_clock_can_be_repeated(monkeypatch):
    """The time that the clock would have now, and the offset; not an offset from what it shows."""
    set_to = []
    clock = SimpleNamespace(
        monotonic=lambda: 107.0, clock_settime=lambda which, time_s: set_to.append((which, time_s)), CLOCK_REALTIME=0
    )
    monkeypatch.setattr(actions, "time", clock)
    for _ in range(2):
        StepClock(time_s=5000.0, monotonic_s=100.0, offset_s=-30.0).perform()
    assert set_to == [(0, 4977.0)] * 2

    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(clock, "clock_settime", refuse)
    with pytest.raises(UnhealthyError, match="the clock cannot be set: Operation not permitted"):
        StepClock(5000.0, 100.0, 0.0).perform()


@pytest.mark.parametrize(
    ("action", "line"),
    [
        (Write("/sys/x", "a b"), "echo 'a b' > /sys/x"),
        (Fill("/dev/shm/x", 5), "fallocate --length 5 /dev/shm/x"),
        (Delete("/x"), "rm -f /x"),
        (StepClock(1.0, 1.0, 30.0), "set the clock +30 s from its own time"),
        (SetKnob("/c", "compute_factor", 1.5), "set compute_factor in /c to 1.5"),
        (
            ExhaustMemory("/g", 7),
            "in /g: memory.max 7, and allocate memory until the kernel has killed a process",
        ),
    ],
)
def test_actions_are_printed_for_people(action, line):
    """What `plan` shows is what will be done."""
    assert str(action) == line


def test_a_command_that_fails_says_why():
    """Its own words in one line, or its exit code where it is silent; one that does not exist is named."""
    assert actions.run(("cat",), None, "in\n") == "in\n"
    with pytest.raises(UnhealthyError, match=r"`sh -c 'echo a >&2; echo b >&2; exit 3'` was refused: a; b"):
        actions.run(("sh", "-c", "echo a >&2; echo b >&2; exit 3"), None)
    with pytest.raises(UnhealthyError, match="was refused: out"):
        actions.run(("sh", "-c", "echo out; exit 3"), None)
    with pytest.raises(UnhealthyError, match="was refused: exit code 4"):
        actions.run(("sh", "-c", "exit 4"), None)
    with pytest.raises(UnhealthyError, match=r"^nosuchcommand: "):
        actions.run(("nosuchcommand",), None)


def test_plans_that_are_joined_take_effect_together():
    """First everything that prepares, then what takes effect; a claim that both have is one."""
    first = Plan(("a", "b"), (Run(("p1",)), Run(("e1",))), (Run(("r1",)),))
    second = Plan(("b", "c"), (Run(("p2",)), Run(("e2",)), Run(("e3",))), (Run(("r2",)),), sudden=2)
    joined = together(first, second)
    assert joined.claims == ("a", "b", "c")
    assert [action.argv[0] for action in joined.apply] == ["p1", "p2", "e1", "e2", "e3"]
    assert [action.argv[0] for action in joined.revert] == ["r1", "r2"]
    assert joined.sudden == 3


@pytest.mark.parametrize(("number", "shown"), [(18, "kill -CONT 7"), (33, "kill -33 7")])
def test_a_signal_is_shown_also_where_it_has_no_name(number, shown):
    """A plan that was read from a journal can always be printed."""
    assert str(Signal(7, 8, 9, number)) == shown
