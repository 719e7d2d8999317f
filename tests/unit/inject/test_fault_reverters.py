"""Whoever ends a fault in the injector's place: watchdog, timer, the next fault; and an injector that is killed."""

import os
import select
import signal
import subprocess
import sys
import time
from itertools import count
from types import SimpleNamespace

import pytest
from held_faults import INJECT, REQUEST, events, factor, make_place, run_hold
from night_cases import at_night

from c4bench.inject import fault_session
from c4bench.inject.actions import Plan, Run, SetKnob
from c4bench.inject.journal import Entry, Journal, boot
from c4bench.model.fault import TargetKind
from c4bench.workload.controls import Controls


def test_the_next_fault_sweeps_up_after_a_dead_watchdog(place, tmp_path):
    """An expired lease that nobody ended is ended before anything else begins."""
    plan = Plan(("pace",), (), (SetKnob(str(tmp_path / "controls"), "compute_factor", 1.0),))
    Controls.open(tmp_path / "controls").set("compute_factor", 7.0)
    with place.lock():
        place.write(Entry(fault_session.lease_of(REQUEST), TargetKind.PROCESS, plan, {}, time.monotonic() - 1, boot()))
    run_hold(place, [])
    assert [line["by"] for line in events(tmp_path, "reverted")] == ["sweep", "injector"]
    assert factor(tmp_path) == 1.0


def test_many_reverters_revert_once(place, tmp_path):
    """Watchdog, injector and several `heal`s at the same moment: one of them does it."""
    once = tmp_path / "once"
    plan = Plan((), (), (Run(("sh", "-c", f"sleep 0.05; echo x >> {once}")),))
    with place.lock():
        place.write(
            Entry(
                (lease := fault_session.lease_of(REQUEST)),
                TargetKind.PROCESS,
                plan,
                {},
                time.monotonic(),
                boot(),
            )
        )
    children = []
    for number in range(8):
        children.append(os.fork())
        if not children[-1]:
            os._exit(place.revert(lease.id, f"child {number}") is not None)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert sorted(codes) == [0] * 7 + [1]
    assert once.read_text() == "x\n"


def test_the_lock_outlives_a_killed_injector_until_its_last_command_ends(place, tmp_path):
    """A watchdog must not revert while an orphaned command is still about to apply."""
    child = os.fork()
    if not child:
        with place.lock():
            Run(("sh", "-c", f"echo began > {tmp_path}/began; sleep 0.4; echo ended > {tmp_path}/ended")).perform()
        os._exit(0)
    while not (tmp_path / "began").exists():
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with place.lock():
        assert (tmp_path / "ended").exists()


def test_the_watchdog_holds_no_file_of_its_makers(place):
    """An SSH session ends when its pipes close; a watchdog that kept one open would keep the session."""
    reader, writer = os.pipe()
    held = fault_session.FaultSession(place, fault_session.lease_of(REQUEST))
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], 0.3)
    assert ready
    assert os.read(reader, 1) == b""
    held.end()
    os.close(reader)


def doomed_hold(records, kill_at):
    """Run a whole `hold` in a child that is killed at its `kill_at`-th line; how many lines it ran, if it ended."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        os.waitpid(child, 0)
        with os.fdopen(reader) as line_count:
            return int(line_count.read() or 0)
    lines, home = count(1), os.getpid()

    def trace(frame, event, _):
        if not frame.f_code.co_filename.startswith(INJECT):
            return None
        if event == "line" and os.getpid() == home and next(lines) == kill_at:
            os.kill(home, signal.SIGKILL)
        return trace

    sys.settrace(trace)
    run_hold(records, [])
    sys.settrace(None)
    os.write(writer, str(next(lines) - 1).encode())
    os._exit(0)


@pytest.mark.parametrize("every", [19, *at_night(1)])
def test_an_injector_killed_at_any_line_leaves_a_host_that_heals_in_time(tmp_path, monkeypatch, every):
    """Wherever it dies, the target is as before when the lease ends, the journal is empty, and it was reverted once."""
    total = doomed_hold(make_place(tmp_path / "whole", monkeypatch), 0)
    assert total > 100
    for kill_at in range(1, total, every):
        doomed_hold(make_place(tmp_path / str(kill_at), monkeypatch), kill_at)
    time.sleep(REQUEST.lease_s + 0.4)
    by_watchdog = 0
    for kill_at in range(1, total, every):
        root = tmp_path / str(kill_at)
        assert factor(root) == 1.0, kill_at
        assert Journal(root / "state").entries() == [], kill_at
        reverts = [line["by"] for line in events(root, "reverted")]
        # Killed between the revert's record and the journal's, it is harmlessly done once more.
        assert reverts in ([], ["injector"], ["watchdog"], ["injector", "watchdog"]), kill_at
        assert reverts or not events(root, "applied"), kill_at
        by_watchdog += reverts == ["watchdog"]
        for line in events(root, "reverted"):
            expires_s = float(line["id"].split("-")[1]) / 1e9 + REQUEST.lease_s
            assert line["by"] != "watchdog" or 0 <= line["time_s"] - expires_s < 1.0, kill_at
    assert by_watchdog > 20 // every


def test_systemd_s_timer_finds_our_code_wherever_it_lies(monkeypatch):
    """The unit inherits nothing: the interpreter is told where c4bench is, and looks for it nowhere else first."""
    asked = []
    monkeypatch.setattr(
        fault_session,
        "subprocess",
        SimpleNamespace(run=lambda argv, **_: asked.append(argv), DEVNULL=subprocess.DEVNULL, TimeoutExpired=OSError),
    )
    timer = fault_session.SystemdTimer(time.monotonic() + 5.0, lease := fault_session.lease_of(REQUEST))
    timer.cancel()
    start, stop = asked
    command = start[start.index(sys.executable) :]
    code = next(word for word in start if word.startswith("--setenv=")).removeprefix("--setenv=")
    assert command == (sys.executable, "-P", "-m", "c4bench.inject", "heal", lease.id)
    assert float(next(w for w in start if w.startswith("--on-active=")).partition("=")[2]) == pytest.approx(
        5.5, abs=0.2
    )
    known = [*command[:4], "schema"]
    done = subprocess.run(known, env=dict([code.split("=", 1)]), cwd="/", capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert stop[-1] == next(w for w in start if w.startswith("--unit=")).partition("=")[2] + ".timer"
