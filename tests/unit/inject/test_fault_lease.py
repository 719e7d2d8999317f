import io
import os
import select
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from fakes import rank_request

from c4bench import inject, logs
from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject import fault_session, lease_guards, planning, processes
from c4bench.inject.actions import Plan, Run, SetKnob
from c4bench.inject.catalogue import load
from c4bench.inject.journal import Journal
from c4bench.inject.journal_entries import Entry, boot
from c4bench.inject.processes import ProcessTarget
from c4bench.inject.protocol import Applied, Healed
from c4bench.inject.registry import DRIVERS, WITNESSES
from c4bench.inject.witness.base import Aftermath, Evidence
from c4bench.model.fault import TargetKind
from c4bench.workload.controls import Controls

CATALOGUE = load()
REQUEST = msgspec.structs.replace(rank_request("process.slow", factor=3), lease_s=0.6, witness_s=0.01)
INJECT = str(Path(inject.__file__).parent)


class InstantWitness:
    def __init__(self, request):
        self.request = request

    def before(self):
        return {"gap_s": 1.0}

    def during(self, onset_s):
        return Evidence({"gap_s": 3.0}, onset_s)

    def after(self):
        return Aftermath({"gap_s": 1.0}, True)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A rank that exists only as its controls, and a journal."""
    return make_place(tmp_path, monkeypatch)


def make_place(root, monkeypatch):
    root.mkdir(exist_ok=True)
    Controls.create(root / "controls")
    target = ProcessTarget(os.getpid(), 1, os.geteuid(), root / "ring", root / "controls")
    monkeypatch.setattr(processes, "find", lambda _: target)
    monkeypatch.setattr(fault_session, "WITNESSES", {**WITNESSES, "compute_pace": InstantWitness})
    monkeypatch.setattr(planning, "DRIVERS", dict(DRIVERS))  # loaded here, not among the lines that are counted
    return Journal(root / "state")


def factor(root):
    return Controls.open(root / "controls").read("compute_factor")


def audited(root):
    path = root / "state" / "audit.jsonl"
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def events(root, kind):
    return [line for line in audited(root) if line["event"] == kind]


def run_hold(records, sent, *, say_revert=False, close=True):
    reader, writer = os.pipe()
    if say_revert:
        os.write(writer, b"revert\n")
    if close:
        os.close(writer)
    try:
        fault_session.hold(REQUEST, CATALOGUE, records, reader, sent.append)
    finally:
        os.close(reader)
        if not close:
            os.close(writer)


@pytest.mark.parametrize(
    ("how", "reason"),
    [({"say_revert": True}, "asked"), ({}, "closed"), ({"close": False}, "lease")],
)
def test_a_fault_ends_on_request_on_disconnect_and_when_its_lease_does(place, tmp_path, how, reason):
    """The saved state comes back, the journal forgets, and the reason is told."""
    Controls.open(tmp_path / "controls").set("compute_factor", 1.5)
    sent = []
    began_s = time.monotonic()
    run_hold(place, sent, **how)
    applied, healed = sent
    assert isinstance(applied, Applied)
    assert isinstance(healed, Healed)
    assert applied.witness.seen
    assert applied.onset_s <= applied.observed_s
    assert healed.reason == reason
    assert (time.monotonic() - began_s >= REQUEST.lease_s) == (reason == "lease")
    assert factor(tmp_path) == 1.5
    assert place.entries() == []


def test_each_change_of_a_fault_is_logged_in_a_line_and_never_on_stdout(place, tmp_path, monkeypatch, capsys):
    """The lines name who asked, the lease and who reverted; a revert by anybody but the injector is a warning."""
    monkeypatch.setenv("SUDO_USER", "alice")
    left_over = fault_session.lease_of(REQUEST)
    plan = Plan(("pace",), (), (SetKnob(str(tmp_path / "controls"), "compute_factor", 1.0),))
    with place.lock():
        place.write(Entry(left_over, TargetKind.PROCESS, plan, {}, time.monotonic() - 1, boot()))
    sent, written = [], io.StringIO()
    logs.configure("info", "json", written)
    run_hold(place, sent)
    assert capsys.readouterr().out == ""
    lines = [msgspec.json.decode(line) for line in written.getvalue().splitlines()]
    logged = [(line["level"], line["message"].replace(left_over.id, "OLD").replace(sent[0].id, "ID")) for line in lines]
    where = f"on {REQUEST.where}"
    assert logged == [
        ("WARNING", f"OLD {where}: reverted by sweep (asked by alice, lease 0.6 s)"),
        ("INFO", f"ID {where}: intent (asked by alice, lease 0.6 s)"),
        ("INFO", f"ID {where}: applied (asked by alice, lease 0.6 s)"),
        ("INFO", f"ID {where}: reverted by injector (asked by alice, lease 0.6 s)"),
    ]
    assert [(line["lease"], line["user"]) for line in lines[1:]] == [(sent[0].id, "alice")] * 3


def test_the_fault_is_in_force_while_it_is_held(place, tmp_path):
    """What is said to be applied is applied, and on disk, at that moment."""
    seen = []

    def say(reply):
        seen.append((type(reply), factor(tmp_path), [entry.lease.id for entry in place.entries()] == [reply.id]))

    reader, writer = os.pipe()
    os.close(writer)
    fault_session.hold(REQUEST, CATALOGUE, place, reader, say)
    os.close(reader)
    assert seen == [(Applied, 3.0, True), (Healed, 1.0, False)]


def test_two_faults_cannot_hold_the_same_thing(place, tmp_path):
    """The second is refused by the name of the first, and neither disturbs the other."""
    first = fault_session.FaultSession(place, fault_session.lease_of(REQUEST))
    first.begin(CATALOGUE.find("process.slow"))
    with pytest.raises(UsageError, match=rf"pace of process \d+, which {first.lease.id} has claimed"):
        run_hold(place, [])
    assert factor(tmp_path) == 3.0
    first.end()
    assert factor(tmp_path) == 1.0


def test_a_failing_apply_is_undone(place, tmp_path, monkeypatch):
    """When the second of two actions fails the first is reverted, and the error is the action's own."""
    controls = str(tmp_path / "controls")
    plan = Plan(
        ("x",), (SetKnob(controls, "compute_factor", 9.0), Run(("false",))), (SetKnob(controls, "compute_factor", 1.0),)
    )
    monkeypatch.setattr(planning, "DRIVERS", {**DRIVERS, "process.slow": lambda *_: plan})
    with pytest.raises(UnhealthyError, match="`false` was refused"):
        run_hold(place, [])
    assert factor(tmp_path) == 1.0
    assert place.entries() == []


def test_every_action_of_a_revert_is_tried(place, tmp_path):
    """One that has nothing left to undo is told and does not keep the others from theirs."""
    controls = str(tmp_path / "controls")
    plan = Plan((), (), (Run(("false",)), SetKnob(controls, "compute_factor", 1.25)))
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
    reverted = place.revert(lease.id, "heal")
    assert reverted.problems == ("`false` was refused: exit code 1",)
    assert factor(tmp_path) == 1.25


def test_a_restart_of_the_host_has_undone_everything_itself(place, tmp_path):
    """An entry of an earlier boot is forgotten without touching the host."""
    Controls.open(tmp_path / "controls").set("compute_factor", 7.0)
    plan = Plan((), (), (SetKnob(str(tmp_path / "controls"), "compute_factor", 1.0),))
    with place.lock():
        place.write(
            Entry((lease := fault_session.lease_of(REQUEST)), TargetKind.PROCESS, plan, {}, 0.0, "another boot")
        )
    assert place.revert(lease.id, "heal").problems == ()
    assert factor(tmp_path) == 7.0
    assert place.entries() == []


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


def test_an_injector_killed_at_any_line_leaves_a_host_that_heals_in_time(tmp_path, monkeypatch):
    """Wherever it dies, the target is as before when the lease ends, the journal is empty, and it was reverted once."""
    total = doomed_hold(make_place(tmp_path / "whole", monkeypatch), 0)
    assert total > 100
    for kill_at in range(1, total):
        doomed_hold(make_place(tmp_path / str(kill_at), monkeypatch), kill_at)
    time.sleep(REQUEST.lease_s + 0.4)
    by_watchdog = 0
    for kill_at in range(1, total):
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
    assert by_watchdog > 20


@pytest.mark.parametrize(
    ("arguments", "code", "sent"),
    [
        (["hold"], 2, "is no command"),
        (["--log-level=loud", "status"], 2, "invalid choice: 'loud'"),
        (["--log-level=debug", "--log-format=json", "plan", "{"], 2, "the request is not one"),
        (["hold", "{"], 2, "the request is not one"),
        (["plan", '{"fault":"nic.rat","host":"h5"}'], 2, "similar"),
        (["hold", '{"fault":"process.kill","host":"h5","job":"none","rank":0}'], 2, "does not run on h5"),
    ],
)
def test_the_command_refuses_in_one_json_line(arguments, code, sent):
    """Whatever is wrong comes back as an answer, with the house's exit code."""
    if arguments[0] == "hold" and len(arguments[-1]) > 10 and os.geteuid() != 0:
        pytest.skip("needs root")
    done = subprocess.run([sys.executable, "-m", "c4bench.inject", *arguments], capture_output=True, check=False)
    answer = msgspec.json.decode(done.stdout)
    assert (done.returncode, answer["exit_code"]) == (code, code)
    assert sent in answer["error"]


def test_systemd_s_timer_finds_our_code_wherever_it_lies(monkeypatch):
    """The unit inherits nothing: the interpreter is told where c4bench is, and looks for it nowhere else first."""
    asked = []
    monkeypatch.setattr(lease_guards, "subprocess", SimpleNamespace(run=lambda argv, **_: asked.append(argv)))
    timer = lease_guards.SystemdTimer(time.monotonic() + 5.0, lease := fault_session.lease_of(REQUEST))
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
